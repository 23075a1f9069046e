"""Runner of child processes that tests kill.

Run as a program with the path of a module that has a ``live(order)``. It loads the module once, forks a child
for each line of JSON that it reads, and prints ``pid N``, the lines of the child, and ``done STATUS``.
``support.forking`` is the other end.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from suffixsvc.store import LmdbStore

__all__ = ["kill_hook", "report"]

#: a cache imports the store when it opens one; here it is loaded before the fork, not by every child
LOADED = LmdbStore


def report(line: str) -> None:
    """Print a line for the parent: one write below PIPE_BUF, so that lines of threads never mix."""
    os.write(1, line.encode() + b"\n")


def kill_hook(order: dict[str, Any]) -> Callable[[str], None]:
    """A hook that kills this process at its order["hits"]-th call with order["point"]."""
    hits = order["hits"]

    def hook(point: str) -> None:
        nonlocal hits
        if point == order["point"]:
            hits -= 1
            if hits <= 0:
                report(f"! {point}")
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


def main(path: Path) -> None:
    sys.path[:0] = [str(path.parent), str(Path(__file__).parent.parent)]
    # a log line that a kill cuts short would merge with the next line
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    live = importlib.import_module(path.stem).live
    gc.freeze()  # collections in a child neither traverse nor copy what was loaded
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                live(json.loads(line))
            except BaseException as e:  # the parent treats it as a failed run, not as a killed one
                report(f"? {e!r}")
            finally:
                os._exit(1)
        report(f"pid {child}")
        _, status = os.waitpid(child, 0)
        report(f"done {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
