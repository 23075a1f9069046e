"""Requests that are being prepared: read, but neither admitted by the scheduler nor refused.

Templates are rendered one at a time, so preparing can be slower than reading. What waits for it has a bound,
as what waits for a lane has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from suffixsvc_driver.decode.requests import QueueFullError


class Preparing:
    """Counts requests that are being prepared. Used in the event loop only.

    Args:
        limit: largest number of one principal. All together have at most twice as many; one principal has at
            most as many as are left, so that it cannot keep others out.

    Attributes:
        requests: their number by principal.
    """

    def __init__(self, limit: int) -> None:
        self._limit = 2 * limit
        self.requests: Counter[str] = Counter()

    @contextmanager
    def one(self, principal: str) -> Iterator[None]:
        """Count one more for the block. Raises QueueFullError."""
        own, left = self.requests[principal], self._limit - self.requests.total()
        if own >= left:
            raise QueueFullError(
                "too many requests are being prepared",
                expected=f"at most {self._limit} requests, of one principal at most as many as are left",
                got=f"{self._limit - left} requests, {own} of this principal",
                remedy="Send the request again later.",
            )
        self.requests[principal] += 1
        try:
            yield
        finally:
            self.requests[principal] -= 1
            if not self.requests[principal]:
                del self.requests[principal]
