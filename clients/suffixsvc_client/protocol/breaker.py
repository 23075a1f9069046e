"""Circuit breaker: after consecutive failures it rejects calls, and lets one probe through per pause.

closed ──n failures──> open ──pause over──> half-open (one call) ──success──> closed
                         ^──────────────────failure, pause doubled──┘
"""

from __future__ import annotations

import threading
from typing import Final

#: longest pause while the service cannot be reached, which costs a call no time: it may be restarting
RESTART_PAUSE_S: Final = 1.0
#: and for so long afterwards: its first answers can come late
RESTART_S: Final = 30.0


class CircuitBreaker:
    """A circuit breaker without a clock: callers pass the time in seconds, monotonic. Thread-safe.

    Args:
        failures: consecutive failures that open it.
        pause_s: first pause; it doubles after every failed probe.
        max_pause_s: longest pause. While the service may be restarting it is RESTART_PAUSE_S, or ``pause_s``
            if that is longer.
    """

    def __init__(self, failures: int, pause_s: float, max_pause_s: float) -> None:
        self._allowed_failures = failures
        self._first_pause = pause_s
        self._max_pause = max_pause_s
        self._lock = threading.Lock()
        self._failures = 0
        self._pause = pause_s
        #: the service may be restarting before this time
        self._restarting_until = float("-inf")
        #: no call before this time; None while closed
        self._open_until: float | None = None

    @property
    def open(self) -> bool:
        """Whether calls are rejected, but for probes."""
        return self._open_until is not None

    def allows(self, now: float) -> bool:
        """Whether a call may be sent. While open, one probe per pause may."""
        with self._lock:
            if self._open_until is None:
                return True
            if now < self._open_until:
                return False
            self._open_until = now + self._pause
            return True

    def on_success(self) -> None:
        """Close the breaker after a successful call."""
        with self._lock:
            self._failures, self._pause, self._open_until = 0, self._first_pause, None

    def on_failure(self, now: float, *, waited: bool = True) -> None:
        """Count a failed call; open the breaker, or double the pause after a failed probe.

        Args:
            waited: the service did not answer, or answered wrongly. False: it could not be reached.
        """
        with self._lock:
            self._failures += 1
            if not waited:
                self._restarting_until = now + RESTART_S
            longest = self._max_pause
            if now < self._restarting_until:
                longest = min(longest, max(self._first_pause, RESTART_PAUSE_S))
            if self._open_until is not None:
                self._pause = min(self._pause * 2, longest)
            if self._failures >= self._allowed_failures:
                self._open_until = now + self._pause
