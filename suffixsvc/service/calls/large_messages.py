"""Memory of the large messages that a service works on at a time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from suffixsvc.errors import LimitExceededError

#: bytes of all large messages at a time; each takes about four times as much until it is answered
LARGE_MESSAGE_BYTES: Final = 128 << 20
_RETRY_SECONDS: Final = 1.0


class LargeMessages:
    """The large messages in progress, at most ``limit`` bytes of them. Thread-safe.

    A principal has at most as many bytes in progress as it leaves to others, or one message.

    Args:
        limit: bytes of all principals together.
    """

    def __init__(self, limit: int = LARGE_MESSAGE_BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._of = Counter[str]()

    @contextmanager
    def in_progress(self, principal: str, size: int) -> Iterator[None]:
        """Count a message of ``size`` bytes during the block.

        Raises:
            LimitExceededError: too many are in progress; ``retry_after_s`` says when to send it again.
        """
        with self._lock:
            own, left = self._of[principal], self._limit - self._of.total() - size
            if left < 0 or (own and own + size > left):
                raise _refused(principal, own, left + size)
            self._of[principal] += size
        try:
            yield
        finally:
            with self._lock:
                self._of[principal] -= size
                if not self._of[principal]:
                    del self._of[principal]


def _refused(principal: str, own: int, left: int) -> LimitExceededError:
    error = LimitExceededError(
        "large messages in progress must be at most as many bytes of a principal as it leaves to others",
        expected=f"room; {left:,} bytes are left",
        got=f"{own:,} bytes of {principal!r} in progress" if principal else f"{own:,} bytes in progress",
        remedy=f"Send it again in {_RETRY_SECONDS:.0f} s, fewer at a time, or in smaller messages.",
    )
    error.retry_after_s = _RETRY_SECONDS
    return error
