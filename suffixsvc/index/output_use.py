"""Distributions of the use of outputs: how old outputs are when they are drafted from, and how long they were
not used when they are evicted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from suffixsvc.types import OutputId

#: bounds of the buckets: from a second to a month
_SECONDS: Final = (1, 10, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400, 30 * 86400)
#: ids from here on are times in microseconds, those below are counts (``SuffixCache(ids_from_clock=)``)
_FIRST_TIME: Final = 10**14


class Distribution:
    """Counts of values in buckets, and their sum. Thread-safe.

    Args:
        bounds: inclusive upper bounds of the buckets, ascending; a last bucket has what is larger.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(map(float, bounds))
        self._lock = threading.Lock()
        self._counts = np.zeros(len(self.bounds) + 1, np.int64)
        self._sum = 0.0

    def observe(self, values: npt.ArrayLike) -> None:
        """Count values; any number of them."""
        observed = np.asarray(values, np.float64)
        if not observed.size:
            return
        places = np.searchsorted(self.bounds, observed)
        with self._lock:
            self._counts += np.bincount(places, minlength=len(self._counts))
            self._sum += float(observed.sum())

    def read(self) -> tuple[list[int], float]:
        """The numbers of values up to each bound, then that of all; and the sum."""
        with self._lock:
            return np.cumsum(self._counts).tolist(), self._sum


class OutputUse:
    """The distributions of one cache. Thread-safe.

    Args:
        now_us: returns the store time.

    Attributes:
        reuse_ages: seconds between the write of an output and the noting of a use, of outputs whose id is
            the time of their write. The core records each output that drafts were taken from once until it
            is asked, at least twice a minute in a service, and of an index or a segment the 1,024 used last.
        idle_seconds: seconds between the last use of an output (its write, if it was never drafted from) and
            its eviction.
    """

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self.reuse_ages = Distribution(_SECONDS)
        self.idle_seconds = Distribution(_SECONDS)

    def note(self, used: Sequence[OutputId]) -> None:
        """Count outputs that drafts were taken from."""
        ids = np.asarray(used, np.int64)
        times = ids[ids >= _FIRST_TIME]
        if times.size:
            self.reuse_ages.observe(np.maximum(self._now_us() - times, 0) / 1e6)
