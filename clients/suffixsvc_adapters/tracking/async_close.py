"""A thread that closes sessions off the decode loop: committing an output waits for a disk or a network."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from suffixsvc.runtime.signal_guard import AtomicCondition
from suffixsvc.types import BackendSession

_log = structlog.get_logger(__name__)

#: limit of the queue; above it the backend is taken for unreachable, and the oldest sessions are dropped
_MAX_QUEUED: Final = 4096


class SessionCloser:
    """Closes sessions on one background thread, in order, each with a commit. Thread-safe.

    Args:
        on_failure: called, from any thread, with the error of a close or the reason for dropping sessions.
        tick: called on the thread every ``tick_seconds`` while it runs, for time-based cleanup.
    """

    def __init__(
        self, on_failure: Callable[[Exception], None], tick: Callable[[], None], tick_seconds: float
    ) -> None:
        self._on_failure = on_failure
        self._tick = tick
        self._tick_seconds = tick_seconds
        self._queue: deque[BackendSession] = deque()
        self._changed = AtomicCondition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._stopped = False

    def start(self) -> None:
        """Start the thread. Idempotent."""
        with self._changed:
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="suffixsvc-closing", daemon=True)
                self._thread.start()

    def put(self, sessions: Iterable[BackendSession]) -> None:
        """Queue sessions; after :meth:`stop`, close them in this thread. Call it without locks held."""
        with self._changed:
            stopped = self._stopped
            if not stopped:
                self._queue.extend(sessions)
            surplus = max(0, len(self._queue) - _MAX_QUEUED)
            for _ in range(surplus):
                self._queue.popleft()
            self._changed.notify_all()
        if surplus:
            self._on_failure(RuntimeError(f"more than {_MAX_QUEUED} sessions wait to be closed"))
        if stopped:
            for session in sessions:
                self._close(session)

    def wait_until_empty(self) -> None:
        """Wait until every session put so far is closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue and not self._closing)

    def stop(self, timeout_seconds: float) -> None:
        """Close the queued sessions and end the thread; after the timeout, drop the rest. Idempotent."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(timeout_seconds)
        with self._changed:
            dropped = len(self._queue)
            self._queue.clear()
        if dropped:
            self._on_failure(TimeoutError(f"{dropped} sessions were not closed in {timeout_seconds} s"))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue) or self._stopped, self._tick_seconds)
                session = self._queue.popleft() if self._queue else None
                if session is None and self._stopped:
                    return
                self._closing = session is not None
            if session is None:
                self._guarded(self._tick)
                continue
            self._close(session)
            with self._changed:
                self._closing = False
                self._changed.notify_all()

    def _close(self, session: BackendSession) -> None:
        self._guarded(lambda: session.close(commit=True))

    def _guarded(self, work: Callable[[], object]) -> None:
        """Run ``work``; its errors must end neither the decode loop nor this thread."""
        try:
            work()
        except Exception as error:
            try:
                self._on_failure(error)
            except Exception:
                _log.exception("a failure could not be reported")
