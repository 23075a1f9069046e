"""Speed against plain decoding: the same call run with drafts, and plain before and after it.

A machine drifts by ten or twenty per cent within minutes; runs that lie side by side drift together. The
ratio of a call is its tokens per second with drafts over those without; the median over calls is
reported with a bootstrap interval. A call is run with drafts only once: a second run would profit from
what the service learned in the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from suffixsvc_bench.bootstrap import interval

__all__ = ["Interval", "Pairing", "Timing", "median_ratio"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Decoding of one answer: the prompt's prefill left out, everything that drafting costs included."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Pairing:
    """The run of one call with drafts, and its plain runs."""

    call: str
    agent: str
    drafted: Timing
    plain: tuple[Timing, ...]

    @property
    def ratio(self) -> float:
        """Tokens per second with drafts over tokens per second without."""
        return speed([self.drafted]) / speed(self.plain)


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with the interval that holds it in 95 % of resamples."""

    median: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.low:.2f} to {self.high:.2f}, {self.count} calls)"


def speed(timings: Sequence[Timing]) -> float:
    """Tokens per second over several runs; 0 where nothing was measured."""
    seconds = sum(timing.seconds for timing in timings)
    return sum(timing.tokens for timing in timings) / seconds if seconds > 0 else 0.0


def median_ratio(pairings: Sequence[Pairing], seed: int = 1) -> Interval | None:
    """Median ratio over calls; None without any call."""
    ratios = np.array([pairing.ratio for pairing in pairings])
    if not len(ratios):
        return None
    low, high = interval(ratios, lambda drawn: np.median(drawn, axis=1), seed)
    return Interval(float(np.median(ratios)), low, high, len(ratios))
