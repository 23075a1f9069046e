"""The time for which what others wrote may be drafted from, without a message of the service."""

from __future__ import annotations

import math
import time


class Lease:
    """A lease. Any thread reads it, also one that steps: after a stop of the whole process (SIGSTOP) it may
    run before the threads that end the lease.

    Args:
        seconds: until its end, unless it is renewed.

    Attributes:
        ends_at: time (monotonic) from which nothing is drafted; infinite while nothing of others is held.
    """

    __slots__ = ("_heard_at", "ends_at")

    def __init__(self, seconds: float) -> None:
        self._heard_at = time.monotonic()
        self.ends_at = self._heard_at + seconds

    @property
    def over(self) -> bool:
        """Whether it is over, and what others wrote may still be held."""
        return time.monotonic() >= self.ends_at

    @property
    def silent_seconds(self) -> float:
        """Time since the last message."""
        return time.monotonic() - self._heard_at

    def renew(self, heard_at: float, seconds: float) -> None:
        """A message was received at a time (monotonic)."""
        self._heard_at = heard_at
        self.ends_at = heard_at + seconds

    def end(self) -> None:
        """Nothing of others is held any more."""
        self.ends_at = math.inf
