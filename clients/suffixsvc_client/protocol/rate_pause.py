"""Pause of a client whose messages a rate of the service refuses.

A refusal by a rate is an answer, not an outage: it says when the service admits the next message. Until then
nothing is sent, and then one message until the service has admitted it.
"""

from __future__ import annotations

import threading
from typing import Final

#: a rate without refusals for so long is not exceeded any more: the next refusal is logged again
EPISODE_S: Final = 60.0
#: a rate holds one second of messages: those that can wait are not sent until it has them again
_REFILL_S: Final = 1.0


class RatePause:
    """A pause without a clock: callers pass the time in seconds, monotonic. Thread-safe.

    Args:
        longest_s: of a pause. An operator can raise a rate meanwhile.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest = longest_s
        self._lock = threading.Lock()
        #: of the last refusal: how long it lasts, and its end
        self._pause, self._end = 0.0, float("-inf")
        #: no message before this time; None: no rate is exceeded as far as is known
        self._next: float | None = None
        #: of the last refusal
        self._refused_at = float("-inf")

    @property
    def active(self) -> bool:
        """Whether the service has admitted no message since it refused one."""
        return self._next is not None

    def lasts(self, now: float) -> bool:
        """Whether no message may be sent."""
        return (begins := self._next) is not None and now < begins

    def allows(self, now: float) -> bool:
        """Whether a message may be sent. After a pause one may, until it is admitted or as long again."""
        if self._next is None:
            return True
        with self._lock:
            if self.lasts(now):
                return False
            self._next = now + self._pause
            return True

    def allows_early(self, now: float) -> bool:
        """Whether a message may be sent that would not be missed: a later one has its tokens, too."""
        return now >= self._end + _REFILL_S

    def bounded(self, seconds: float) -> float:
        """How long to wait after a refusal that names a time."""
        return min(seconds, self._longest)

    def on_admitted(self, now: float) -> None:
        """End the pause, unless the message was sent before it."""
        with self._lock:
            if now >= self._end:
                self._next = None

    def on_refusal(self, now: float, seconds: float) -> None:
        """Begin or extend the pause. ``seconds``: after which the service admits a message."""
        with self._lock:
            self._pause = self.bounded(seconds)
            self._end = max(self._end, now + self._pause)
            self._next = self._end

    def begins_episode(self, now: float) -> bool:
        """Record a refusal, by any limit that a time ends; whether it is the first one for EPISODE_S."""
        with self._lock:
            first = now - self._refused_at >= EPISODE_S
            self._refused_at = now
            return first
