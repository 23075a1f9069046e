"""Whether two calls take the same time: alternating samples, a difference of medians and its interval."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from suffixsvc_bench.report.statistics import bootstrap_interval

__all__ = ["WARM_CALLS", "Difference", "difference"]

#: calls of each before those that are timed
WARM_CALLS = 50
_BLOCKS = 40


@dataclass(frozen=True, slots=True)
class Difference:
    """Seconds that the second call takes more than the first one, with a 95 % interval."""

    seconds: float
    low: float
    high: float
    median: float

    @property
    def found(self) -> bool:
        """Whether the interval excludes no difference."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{1e6 * self.seconds:+.1f} us ({1e6 * self.low:+.1f} .. {1e6 * self.high:+.1f})"


def difference(
    first: Callable[[], object], second: Callable[[], object], samples: int, seed: int = 1
) -> Difference:
    """Time two calls in pairs, in random order within a pair.

    The pairs are divided into blocks; the difference of a block is that of its medians, and the interval is a
    bootstrap over the blocks, which machine noise makes differ from each other.

    Args:
        samples: of each.
    """
    choice = random.Random(seed)
    taken = np.empty((samples, 2))
    for _ in range(WARM_CALLS):
        first()
        second()
    for row in taken:
        for column in choice.sample((0, 1), 2):
            began = time.perf_counter()
            (first, second)[column]()
            row[column] = time.perf_counter() - began
    blocks = [np.median(block, axis=0) for block in np.array_split(taken, _BLOCKS)]
    differences = np.array([second - first for first, second in blocks])
    low, high = bootstrap_interval(differences, lambda drawn: np.mean(drawn, axis=1))
    return Difference(float(differences.mean()), low, high, float(np.median(taken)))
