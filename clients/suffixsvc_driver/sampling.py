"""The target's choice of a token from its logits: greedy, or sampled with the position's own number.

A sampled choice depends on the logits, the seed and the absolute position alone, so drafts never change
it: verification keeps a drafted token exactly where this choice is that token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import InvalidConfigError, ModelError
from suffixsvc.types import FloatArray

__all__ = ["GREEDY", "Sampling", "boundary_distance", "choose", "uniform"]

_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target picks a token.

    Attributes:
        temperature: 0 is greedy (argmax, the lowest id on ties).
        top_k: keep only so many of the most probable tokens, the lower id on ties; 0 keeps all.
        top_p: then keep the smallest set of the most probable ones that reaches this share.
        seed: of the uniform numbers, one per position.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not math.isfinite(self.temperature) or self.temperature < 0:
            raise InvalidConfigError("temperature makes no sense", expected=">= 0", got=self.temperature)
        if self.top_k < 0:
            raise InvalidConfigError("top_k makes no sense", expected=">= 0", got=self.top_k)
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidConfigError("top_p makes no sense", expected="0 < top_p <= 1", got=self.top_p)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


GREEDY: Final = Sampling()


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that belongs to a position: splitmix64 of the counter, 53 bits of it."""
    z = _mix((_mix(seed & _MASK) + position * 0x9E3779B97F4A7C15) & _MASK)
    return (z >> 11) * 2.0**-53


def _mix(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def choose(logits: FloatArray, sampling: Sampling, position: int) -> int:
    """The token for absolute ``position`` (prompt included) from logits float32[n_vocab].

    Raises:
        ModelError: the logits hold NaN where it decides.
    """
    best = int(logits.argmax())
    if math.isnan(logits[best]):
        raise ModelError("the target computed NaN", expected="finite logits", remedy="Check the model file.")
    if sampling.greedy:
        return best
    ids, bounds = _distribution(logits, sampling)
    index = int(np.searchsorted(bounds, uniform(sampling.seed, position), side="right"))
    return int(ids[min(index, len(ids) - 1)])


def boundary_distance(logits: FloatArray, sampling: Sampling, position: int, token: int) -> float:
    """How far the position's number is from the interval that would give ``token``: 0 inside it, and
    infinite for a token that top_k or top_p removed."""
    ids, bounds = _distribution(logits, sampling)
    where = np.flatnonzero(ids == token)
    if len(where) == 0:
        return math.inf
    number, index = uniform(sampling.seed, position), int(where[0])
    low = float(bounds[index - 1]) if index else 0.0
    return max(0.0, low - number, number - float(bounds[index]))


def _distribution(
    logits: FloatArray, sampling: Sampling
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Ids kept, ascending, and the upper ends of their intervals. In order of ids, not of probability:
    two nearly equal tokens would swap places and move every boundary between them."""
    scaled = logits.astype(np.float64) / sampling.temperature
    kept = _most_probable(scaled, sampling)
    weights = np.exp(scaled[kept] - scaled[kept].max())
    bounds = np.cumsum(weights)
    return kept, bounds / bounds[-1]


def _most_probable(scaled: npt.NDArray[np.float64], sampling: Sampling) -> npt.NDArray[np.int64]:
    total = len(scaled)
    k = min(sampling.top_k or total, total)
    if k < total:
        # everything above the k-th value, then the lowest ids among those equal to it
        edge = np.partition(scaled, total - k)[total - k]
        above = np.flatnonzero(scaled > edge)
        level = np.flatnonzero(scaled == edge)[: k - len(above)]
        kept = np.sort(np.concatenate([above, level]))
    else:
        kept = np.arange(total)
    if sampling.top_p >= 1.0:
        return kept
    order = kept[np.argsort(-scaled[kept], kind="stable")]
    weights = np.exp(scaled[order] - scaled[order[0]])
    share = np.cumsum(weights) / weights.sum()
    return np.sort(order[: int(np.searchsorted(share, sampling.top_p, side="left")) + 1])
