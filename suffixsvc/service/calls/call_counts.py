"""Counts of ended calls by method and status, and durations of those with one request and one reply.

A ``Stream`` or a ``Watch`` is one call, whatever it carries: nothing is counted here for a step on a stream.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import Final, NamedTuple

#: inclusive upper bounds of the buckets of durations, in seconds; a last bucket has what is longer
BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Durations(NamedTuple):
    """Durations of the ended calls of one method.

    Attributes:
        up_to: the number of calls up to each bound, then that of all.
        seconds: their sum.
    """

    up_to: tuple[int, ...]
    seconds: float


class CallCounts:
    """The ended calls of one server. Thread-safe. Methods are "package.Service/Method"."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = Counter[tuple[str, str]]()
        #: of each method: calls by bucket, and the sum of the seconds
        self._buckets: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def add(self, method: str, code: str, seconds: float, *, unary: bool) -> None:
        """Count a call.

        Args:
            code: name of its gRPC status.
            unary: it has one request and one reply, so that its duration is counted.
        """
        with self._lock:
            self._ended[method, code] += 1
            if unary:
                buckets = self._buckets.setdefault(method, [0] * (len(BOUNDS) + 1))
                buckets[bisect_left(BOUNDS, seconds)] += 1
                self._seconds[method] = self._seconds.get(method, 0.0) + seconds

    def ended(self) -> dict[tuple[str, str], int]:
        """The numbers of calls by method and code."""
        with self._lock:
            return dict(self._ended)

    def durations(self) -> dict[str, Durations]:
        """The durations by method."""
        with self._lock:
            return {
                method: Durations(tuple(accumulate(buckets)), self._seconds[method])
                for method, buckets in self._buckets.items()
            }
