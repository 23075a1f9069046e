"""Statistics of benchmark results: bootstrap confidence intervals and geometric means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["bootstrap_interval", "geometric_mean"]

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


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean; 0 if there are no values or one of them is not positive."""
    if not values or min(values) <= 0:
        return 0.0
    return math.exp(sum(map(math.log, values)) / len(values))
