"""Whole processes as units of measurement: wall-clock time, CPU time and output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import StoreError

_FRACTION: Final = re.compile(rb"^[01]\.\d+$", re.MULTILINE)
#: output in which the progress is looked for
_MOST_BYTES: Final = 1 << 20
_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Run:
    """Wall-clock seconds, CPU seconds and standard output of a process that ended."""

    wall_s: float
    cpu_s: float
    stdout: str


def run_program(
    command: Sequence[str | Path], name: str = "", on_progress: Callable[[float], None] | None = None
) -> Run:
    """Run a program to its end.

    Args:
        command: the program and its arguments.
        name: for the error; by default the program's.
        on_progress: called every 0.2 s with the last fraction 0..1 that the program wrote as a line of its
            output. Without it nothing polls, and the wall-clock time is exact.

    Raises:
        StoreError: it failed; ``got`` is the end of its standard error.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as out, \
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as err:  # fmt: skip
        began = time.perf_counter()
        process = subprocess.Popen(list(map(str, command)), stdout=out, stderr=err)
        try:
            while not (ended := os.wait4(process.pid, os.WNOHANG if on_progress else 0))[0]:
                # pread: the offset of the file is the program's, too
                written = _FRACTION.findall(os.pread(out.fileno(), _MOST_BYTES, 0))
                if on_progress is not None and written:
                    on_progress(float(written[-1]))
                time.sleep(_POLL_SECONDS)
            _, status, used = ended
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


def run_part(
    module: str, part: str, on_progress: Callable[[float], None] | None = None, **options: Any
) -> dict[str, Any]:
    """Run a measurement in a separate process, to which its memory and start-up time are attributed.

        python -m MODULE PART '{"option": value}'

    ``on_progress`` is that of :func:`run_program`.

    Returns:
        The last line of its output, a JSON object, with "process_wall_s" and "process_cpu_s" of the whole
        process added.
    """
    command = [sys.executable, "-m", module, part, json.dumps(options, default=str)]
    run = run_program(command, f"process to {part} {options.get('folder', '')}".rstrip(), on_progress)
    answer: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return answer | {"process_wall_s": run.wall_s, "process_cpu_s": run.cpu_s}
