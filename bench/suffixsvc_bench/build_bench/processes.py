"""Programs measured as a whole: seconds, processor seconds, and what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import StoreError

__all__ = ["Run", "run_part", "run_program"]

_PARTS: Final = "suffixsvc_bench.build_bench.part"


@dataclass(frozen=True, slots=True)
class Run:
    """Of one process, from its start to its end: wall seconds, processor seconds, its standard output."""

    wall_s: float
    cpu_s: float
    said: str


def run_program(command: Sequence[str | Path]) -> Run:
    """Run a program.

    Raises:
        StoreError: it failed, with the end of what it said.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as out, \
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as err:  # fmt: skip
        began = time.perf_counter()
        process = subprocess.Popen(list(map(str, command)), stdout=out, stderr=err)
        try:
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)  # nobody else may wait for it
        if process.returncode != 0:
            err.seek(0)
            raise StoreError(
                f"{Path(str(command[0])).name} failed",
                got=err.read()[-400:].strip() or f"exit code {process.returncode}",
            )
        out.seek(0)
        return Run(wall, used.ru_utime + used.ru_stime, out.read())


def run_part(what: str, **options: Any) -> dict[str, Any]:
    """Run a function of :mod:`suffixsvc_bench.build_bench.part` in a process of its own: what it answers,
    with "process_wall_s" and "process_cpu_s" of the whole process."""
    run = run_program([sys.executable, "-m", _PARTS, what, json.dumps(options, default=str)])
    answer: dict[str, Any] = json.loads(run.said.splitlines()[-1])
    return answer | {"process_wall_s": run.wall_s, "process_cpu_s": run.cpu_s}
