"""Statistics of benchmark results: bootstrap confidence intervals, geometric means, percentiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

RESAMPLES: Final = 10_000
CONFIDENCE: Final = 0.95

_Floats = npt.NDArray[np.float64]


def bootstrap_interval(
    rows: npt.NDArray[Any], statistic: Callable[[_Floats], _Floats], seed: int = 1
) -> tuple[float, float]:
    """Percentile bootstrap interval: the central 95 % of the statistic over resamples with replacement.

    Args:
        rows: float[n, ...], one measurement per row.
        statistic: float[resamples, n, ...] -> float[resamples].
        seed: of the resampling.
    """
    n = len(rows)
    drawn = np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))
    edge = (1 - CONFIDENCE) / 2
    low, high = np.quantile(statistic(rows[drawn]), [edge, 1 - edge])
    return float(low), float(high)


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Microseconds p50, p90, p99 and mean; only a mean of 0 without values."""
    if not seconds:
        return {"mean": 0.0}
    found = np.percentile(seconds, [50, 90, 99])
    figures = zip(("p50", "p90", "p99", "mean"), (*found, np.mean(seconds)), strict=True)
    return {name: float(value) * 1e6 for name, value in figures}


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean; 0 if there are no values or one of them is not positive."""
    if not values or min(values) <= 0:
        return 0.0
    return math.exp(sum(map(math.log, values)) / len(values))
