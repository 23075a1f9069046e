"""Distributions of the use of outputs: how old outputs are when they are drafted from, and how long they were
not used when they are evicted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from suffixsvc.types import OutputId

#: bounds of the buckets: LSNs, and seconds from a second to a month
_LSNS: Final = (1, 3, 10, 30, 100, 300, 1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 1e7)
_SECONDS: Final = (1, 10, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400, 30 * 86400)


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
        last_lsn: returns the last LSN of the log, without waiting.

    Attributes:
        reuse_gaps: LSNs between an output and the end of the log when its use was noted. The core records
            each output that drafts were taken from once until it is asked, at least twice a minute in a
            service, and of an index or a segment the 1,024 used last.
        idle_seconds: seconds between the last use of an output (its write, if it was never drafted from) and
            its eviction.
    """

    def __init__(self, last_lsn: Callable[[], OutputId]) -> None:
        self._last_lsn = last_lsn
        self.reuse_gaps = Distribution(_LSNS)
        self.idle_seconds = Distribution(_SECONDS)

    def note(self, used: Sequence[OutputId]) -> None:
        """Count outputs that drafts were taken from."""
        if used:
            self.reuse_gaps.observe(np.maximum(self._last_lsn() - np.asarray(used, np.int64), 0))
