"""Output of log lines to stderr, by the caller or by a thread. Errors of the stream are ignored.

Servers log through :func:`queued_log_output`: a bounded queue that a daemon thread writes, so that a stalled
reader (a paused pager, a stopped log collector) does not block calls. Lines beyond the bound are dropped and
counted in a warning once the reader continues.
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

log = structlog.get_logger(__name__)

#: maximum number of queued lines
MAX_QUEUED_LINES: Final = 1000
#: longest wait for the queue to be written at the end of a server
_END_SECONDS: Final = 1.0
_STDERR = 2


class StderrLogger(structlog.PrintLogger):
    """structlog logger for stderr that drops a line which cannot be written.

    If the reader of a pipe has ended (``serve 2>&1 | head``), stderr is redirected to the null device, so
    that other writes to it do not fail either. On a full disk the next line is attempted again.
    """

    def __init__(self, *_: Any) -> None:
        super().__init__(sys.stderr)

    def msg(self, message: str) -> None:
        """Write one line."""
        try:
            super().msg(message)
        except BrokenPipeError:
            _to_null_device()
        except (OSError, ValueError):  # ValueError: the stream is closed
            return

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


@contextlib.contextmanager
def queued_log_output() -> Iterator[None]:
    """Queue log lines for the block, so that callers do not wait for the reader of stderr.

    At the end it waits for the queue for at most a second, then redirects stderr to the null device, so that
    no other write to it delays the end of the process.
    """
    if not _has_stderr():
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


def dropped_lines() -> int:
    """Number of log lines that this process has dropped because stderr was not read in time."""
    return _LineQueue.dropped_in_all


class _LineQueue:
    """Bounded queue of log lines, and the thread that writes them. Thread-safe."""

    #: of all queues of the process, of which there is one at a time
    dropped_in_all = 0

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        #: lines dropped since the queue was full; all are until it is empty, so that one warning counts them
        self._dropped = 0
        self._lock = threading.RLock()  # reentrant: held while the warning is queued
        self._written = threading.Event()
        threading.Thread(target=self._write_all, name="suffixsvc-log", daemon=True).start()

    def put(self, line: str) -> None:
        """Queue or drop a line, without waiting."""
        with self._lock:
            if self._dropped or self._lines.qsize() >= MAX_QUEUED_LINES:
                self._dropped += 1
                _LineQueue.dropped_in_all += 1
            else:
                self._lines.put(line)

    def close(self) -> None:
        """Wait until the lines are written, at most a second."""
        self._log_dropped()
        self._lines.put(None)
        if not self._written.wait(_END_SECONDS):
            _to_null_device()

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            _write(f"{line}\n".encode(errors="backslashreplace"))
            if self._dropped and self._lines.empty():
                self._log_dropped()
        self._written.set()

    def _log_dropped(self) -> None:
        with self._lock:
            lost, self._dropped = self._dropped, 0
            if lost:
                log.warning("log lines were dropped: stderr was not read in time", lost=lost)


class _QueueLogger:
    """structlog logger that writes to a queue."""

    def __init__(self, lines: _LineQueue) -> None:
        self.msg = lines.put
        self.log = self.debug = self.info = self.warn = self.warning = self.msg
        self.fatal = self.failure = self.err = self.error = self.critical = self.exception = self.msg


def _write(line: bytes) -> None:
    """Write to the descriptor: a blocked write through ``sys.stderr`` would hold its lock at exit."""
    try:
        while line:
            line = line[os.write(_STDERR, line) :]
    except BrokenPipeError:
        _to_null_device()
    except OSError:
        return


def _has_stderr() -> bool:
    """Whether the process has a stderr; without one, descriptor 2 may belong to another file."""
    try:
        return sys.stderr is not None and sys.stderr.fileno() == _STDERR
    except (OSError, ValueError):
        return False


def _to_null_device() -> None:
    """Redirect stderr to the null device, if that can be opened."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), _STDERR)
