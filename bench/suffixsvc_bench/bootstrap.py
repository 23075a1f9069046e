"""Intervals by drawing again from what was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["interval"]

RESAMPLES: Final = 10_000
CONFIDENCE: Final = 0.95

_Floats = npt.NDArray[np.float64]


def interval(
    rows: npt.NDArray[Any], statistic: Callable[[_Floats], _Floats], seed: int = 1
) -> tuple[float, float]:
    """What holds the statistic in 95 % of resamples.

    Args:
        rows: float[n, ...], a measurement each.
        statistic: float[resamples, n, ...] -> float[resamples].
    """
    n = len(rows)
    drawn = np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))
    edge = (1 - CONFIDENCE) / 2
    low, high = np.quantile(statistic(rows[drawn]), [edge, 1 - edge])
    return float(low), float(high)
