"""Speedups over plain decoding from paired runs of agent calls.

A call runs with drafts once, and plain before or after it or both, because a machine's speed drifts by ten or
twenty per cent within minutes. A second run with drafts would profit from what the service learned in the
first. The ratio of a call is its tokens per second with drafts over those of its plain runs; the median over
calls is reported with a bootstrap interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from suffixsvc_bench.report.statistics import bootstrap_interval

__all__ = ["Interval", "Pairing", "Timing", "median_ratio"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Decoding of one answer: without the prompt's prefill, with all costs of drafting."""

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
    """A median with its 95 % bootstrap interval."""

    median: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.low:.2f} to {self.high:.2f}, {self.count} calls)"


def speed(timings: Sequence[Timing]) -> float:
    """Tokens per second over several runs; 0 without time."""
    seconds = sum(timing.seconds for timing in timings)
    return sum(timing.tokens for timing in timings) / seconds if seconds > 0 else 0.0


def median_ratio(pairings: Sequence[Pairing], seed: int = 1) -> Interval | None:
    """Median ratio over calls; None without calls."""
    ratios = np.array([pairing.ratio for pairing in pairings])
    if not len(ratios):
        return None
    low, high = bootstrap_interval(ratios, lambda drawn: np.median(drawn, axis=1), seed)
    return Interval(float(np.median(ratios)), low, high, len(ratios))
