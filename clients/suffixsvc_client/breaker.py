"""Circuit breaker: after some failures in a row, ask nobody; now and then let one call try.

closed ──n failures──> open ──pause over──> half-open (one call) ──success──> closed
                         ^──────────────────failure, pause doubled──┘
"""

from __future__ import annotations

import threading

__all__ = ["Breaker"]


class Breaker:
    """Thread-safe; knows no clock: callers say what time it is, in seconds."""

    def __init__(self, failures: int, pause_s: float, max_pause_s: float) -> None:
        self._allowed_failures = failures
        self._first_pause = pause_s
        self._max_pause = max_pause_s
        self._lock = threading.Lock()
        self._failures = 0
        self._pause = pause_s
        #: no call before this; None while closed
        self._silent_until: float | None = None

    @property
    def open(self) -> bool:
        return self._silent_until is not None

    def allows(self, now: float) -> bool:
        """Whether a call may go out. While open it grants one probe per pause."""
        with self._lock:
            if self._silent_until is None:
                return True
            if now < self._silent_until:
                return False
            self._silent_until = now + self._pause
            return True

    def succeeded(self) -> None:
        with self._lock:
            self._failures, self._pause, self._silent_until = 0, self._first_pause, None

    def failed(self, now: float) -> None:
        with self._lock:
            self._failures += 1
            if self._silent_until is not None:
                self._pause = min(self._pause * 2, self._max_pause)
            if self._failures >= self._allowed_failures:
                self._silent_until = now + self._pause
