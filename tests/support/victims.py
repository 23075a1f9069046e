"""What processes that are to be killed have in common.

Run as a program, with the path of a module that has a ``live(order)``: loads it once, then forks one victim
for each line of JSON it reads, and prints ``pid N``, what the victim says, and ``done STATUS``. See
``support.forking`` for the other end.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

__all__ = ["killer", "say"]


def say(line: str) -> None:
    """A line for whoever forked this process: one write below PIPE_BUF, so lines of threads never mix."""
    os.write(1, line.encode() + b"\n")


def killer(order: dict[str, Any]) -> Callable[[str], None]:
    """A hook that kills this process when it is called with order["point"] for the order["hits"]-th time."""
    hits = order["hits"]

    def hook(point: str) -> None:
        nonlocal hits
        if point == order["point"]:
            hits -= 1
            if hits <= 0:
                say(f"! {point}")
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


def main(path: Path) -> None:
    sys.path[:0] = [str(path.parent), str(Path(__file__).parent.parent)]
    # a line of the log that a kill cuts short would swallow the line after it
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    live = importlib.import_module(path.stem).live
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                live(json.loads(line))
            except BaseException as e:  # the parent sees it as a failed run, not as a killed one
                say(f"? {e!r}")
            finally:
                os._exit(1)
        say(f"pid {child}")
        _, status = os.waitpid(child, 0)
        say(f"done {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
