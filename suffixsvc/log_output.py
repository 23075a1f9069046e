"""Where log lines go: to stderr, whatever has become of it. A log that cannot be written stops nothing."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import structlog

__all__ = ["StderrLogger"]

_STDERR = 2


class StderrLogger(structlog.PrintLogger):
    """structlog's logger for one stream, which loses a line that cannot be written.

    Where the reader of a pipe has ended (``serve 2>&1 | head``) stderr becomes the null device, so that what
    else is written there raises nothing either. On a full disk the next line is tried again.
    """

    def __init__(self, *_: Any) -> None:
        super().__init__(sys.stderr)

    def msg(self, message: str) -> None:
        """Write one line."""
        try:
            super().msg(message)
        except BrokenPipeError:
            with contextlib.suppress(OSError):
                _to_null_device()
        except (OSError, ValueError):  # ValueError: the stream is closed
            return

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def _to_null_device() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, _STDERR)
    finally:
        os.close(null)
