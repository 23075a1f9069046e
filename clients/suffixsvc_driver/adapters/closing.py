"""Ends sessions beside the decode loop: keeping an output waits for a disk or a network."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from suffixsvc.interrupts import AtomicCondition
from suffixsvc.types import BackendSession

__all__ = ["SessionCloser"]

_log = structlog.get_logger(__name__)

#: sessions that wait to be closed; beyond it whoever keeps them is gone, and the oldest are let go
_MOST_WAITING: Final = 4096


class SessionCloser:
    """Closes sessions in a thread of its own, in order, each with a commit. Thread-safe.

    Args:
        on_failure: called, from any thread, with what a close raised or why a session was let go.
        tick: called in the thread every ``tick_seconds`` once it runs: for what ends by itself.
    """

    def __init__(
        self, on_failure: Callable[[Exception], None], tick: Callable[[], None], tick_seconds: float
    ) -> None:
        self._on_failure = on_failure
        self._tick = tick
        self._tick_seconds = tick_seconds
        self._waiting: deque[BackendSession] = deque()
        self._wake = AtomicCondition()
        self._thread: threading.Thread | None = None
        self._holding = False  # the thread is closing one
        self._stopped = False

    def start(self) -> None:
        """Have the thread run from now on. Idempotent."""
        with self._wake:
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._work, name="suffixsvc-closing", daemon=True)
                self._thread.start()

    def put(self, sessions: Iterable[BackendSession]) -> None:
        """Close them soon; at once, in this thread, after :meth:`stop`. Not with locks held."""
        with self._wake:
            stopped = self._stopped
            if not stopped:
                self._waiting.extend(sessions)
            surplus = max(0, len(self._waiting) - _MOST_WAITING)
            for _ in range(surplus):
                self._waiting.popleft()
            self._wake.notify_all()
        if surplus:
            self._on_failure(RuntimeError(f"more than {_MOST_WAITING} sessions wait to be kept"))
        if stopped:
            for session in sessions:
                self._close(session)

    def wait_until_empty(self) -> None:
        """Return when every session put so far is closed."""
        with self._wake:
            self._wake.wait_for(lambda: not self._waiting and not self._holding)

    def stop(self, patience_seconds: float) -> None:
        """Close what waits and end the thread; what is not closed by then is let go. Idempotent."""
        with self._wake:
            self._stopped = True
            self._wake.notify_all()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(patience_seconds)
        with self._wake:
            left = len(self._waiting)
            self._waiting.clear()
        if left:
            self._on_failure(TimeoutError(f"{left} sessions were not closed in {patience_seconds} s"))

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: bool(self._waiting) or self._stopped, self._tick_seconds)
                session = self._waiting.popleft() if self._waiting else None
                if session is None and self._stopped:
                    return
                self._holding = session is not None
            if session is None:
                self._guarded(self._tick)
                continue
            self._close(session)
            with self._wake:
                self._holding = False
                self._wake.notify_all()

    def _close(self, session: BackendSession) -> None:
        self._guarded(lambda: session.close(commit=True))

    def _guarded(self, work: Callable[[], object]) -> None:
        """Run it: what it raises must end neither the decode loop nor the thread that closes the others."""
        try:
            work()
        except Exception as error:
            try:
                self._on_failure(error)
            except Exception:
                _log.exception("a failure could not be told")
