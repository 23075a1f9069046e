"""Output of log lines: to stderr, by the caller or by a thread. A log that cannot be written stops nothing.

Servers log through :func:`queued_log_lines`: a bounded queue that one daemon thread writes, so that a reader
that stalls (a paused pager, a stopped log collector) holds no call. Lines beyond the bound are lost, and
counted in a warning when the reader goes on.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final

import structlog

__all__ = ["MOST_WAITING_LINES", "StderrLogger", "queued_log_lines"]

log = structlog.get_logger(__name__)

#: lines that wait for the reader of stderr at most
MOST_WAITING_LINES: Final = 1000
#: how long the end of a server waits until the queue is written
_END_SECONDS: Final = 1.0
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


@contextlib.contextmanager
def queued_log_lines() -> Iterator[None]:
    """No caller waits for the reader of stderr.

    At the end the queue is written for at most a second. Where that is not enough stderr becomes the null
    device, so that nothing else holds the end of the process.
    """
    if not _stderr_is_a_file():
        yield
        return
    before = structlog.get_config()["logger_factory"]
    lines = _LineQueue()
    structlog.configure(logger_factory=lambda *_: _QueueLogger(lines))
    try:
        yield
    finally:
        lines.close()
        structlog.configure(logger_factory=before)


class _LineQueue:
    """Bounded queue of log lines and the thread that writes them. Thread-safe."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        #: lines lost since the queue was full; all are, until it is empty, so that their number has one place
        self._lost = 0
        self._lock = threading.RLock()  # the line with the number of lost ones is put while it is held
        self._written = threading.Event()
        threading.Thread(target=self._write_all, name="suffixsvc-log", daemon=True).start()

    def put(self, line: str) -> None:
        """Never waits for the reader."""
        with self._lock:
            if self._lost or self._lines.qsize() >= MOST_WAITING_LINES:
                self._lost += 1
            else:
                self._lines.put(line)

    def close(self) -> None:
        """Wait until the lines are written, at most for a second."""
        self._log_lost()
        self._lines.put(None)
        if not self._written.wait(_END_SECONDS):
            with contextlib.suppress(OSError):
                _to_null_device()

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            _write(f"{line}\n".encode(errors="backslashreplace"))
            if self._lost and self._lines.empty():
                self._log_lost()
        self._written.set()

    def _log_lost(self) -> None:
        with self._lock:
            lost, self._lost = self._lost, 0
            if lost:
                log.warning("log lines were lost: they were not read in time", lost=lost)


class _QueueLogger:
    """structlog's logger for a queue."""

    def __init__(self, lines: _LineQueue) -> None:
        self.msg = lines.put
        self.log = self.debug = self.info = self.warn = self.warning = self.msg
        self.fatal = self.failure = self.err = self.error = self.critical = self.exception = self.msg


def _write(line: bytes) -> None:
    """To the descriptor: the buffer of ``sys.stderr`` has a lock, which a write that blocks would still hold
    when the process ends."""
    try:
        while line:
            line = line[os.write(_STDERR, line) :]
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            _to_null_device()
    except OSError:
        return


def _stderr_is_a_file() -> bool:
    """False where the process was started without stderr, whose descriptor may be of another file."""
    try:
        return sys.stderr is not None and sys.stderr.fileno() == _STDERR
    except (OSError, ValueError):
        return False


def _to_null_device() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, _STDERR)
    finally:
        os.close(null)
