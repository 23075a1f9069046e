"""Whole processes as units of measurement: wall-clock time, CPU time and output."""

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
from typing import Any

from suffixsvc.errors import StoreError


@dataclass(frozen=True, slots=True)
class Run:
    """Wall-clock seconds, CPU seconds and standard output of a process that ended."""

    wall_s: float
    cpu_s: float
    stdout: str


def run_program(command: Sequence[str | Path], name: str = "") -> Run:
    """Run a program to its end.

    Args:
        command: the program and its arguments.
        name: for the error; by default the program's.

    Raises:
        StoreError: it failed; ``got`` is the end of its standard error.
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
        process.returncode = os.waitstatus_to_exitcode(status)  # wait4 has reaped the process
        if process.returncode != 0:
            err.seek(0)
            raise StoreError(
                f"{name or Path(str(command[0])).name} failed",
                got=err.read()[-400:].strip() or f"exit code {process.returncode}",
            )
        out.seek(0)
        return Run(wall, used.ru_utime + used.ru_stime, out.read())


def run_part(module: str, part: str, **options: Any) -> dict[str, Any]:
    """Run a measurement in a separate process, to which its memory and start-up time are attributed.

        python -m MODULE PART '{"option": value}'

    Returns:
        The last line of its output, a JSON object, with "process_wall_s" and "process_cpu_s" of the whole
        process added.
    """
    command = [sys.executable, "-m", module, part, json.dumps(options, default=str)]
    run = run_program(command, f"process to {part} {options.get('folder', '')}".rstrip())
    answer: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return answer | {"process_wall_s": run.wall_s, "process_cpu_s": run.cpu_s}
