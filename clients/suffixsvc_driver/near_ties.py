"""Could rounding have made the target choose another token? How far from it, in the position's numbers.

Rounding moves logits a little. That moves the boundaries between tokens, so that a number close to one picks
the neighbour; and it moves the cut-offs (top_k, top_p, min_p), so that a token close to one is kept or not,
which moves all boundaries by its share. Both are looked at here:

    tokens by probability:   sure . . . sure | doubtful . . doubtful | gone . . .
                                             `-- a cut-off is near --'

    interval of token t:     from  low  when all doubtful ones below it are out, those above it in
                             to    high the other way round

A token is doubtful where its logit is within ``gap`` of the cut-off's, or the share before it within
``share`` of top_p. A grammar adds a second way to a token: the first number picks a refused one, then the
second number this one; of the two, the number that is further off counts.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from suffixsvc.types import FloatArray
from suffixsvc_driver.chooser import Chooser
from suffixsvc_driver.sampling import Sampling, uniform

__all__ = ["near_tie_distance"]

_Wide = npt.NDArray[np.float64]
_Mask = npt.NDArray[np.bool_]
_Ids = npt.NDArray[np.int64]


def near_tie_distance(
    logits: FloatArray, chooser: Chooser, position: int, token: int, *, gap: float, share: float
) -> float:
    """How far the position's numbers are from picking ``token``, cut-offs that are near being drawn either
    way: 0 where it would be picked, infinite where it could not.

    Args:
        logits: float32[n_vocab] of the position, as computed.
        chooser: of the generation, told all text before; not greedy.
        gap: logits so far apart may change places.
        share: probabilities so far apart may.
    """
    sampling = chooser.sampling
    adjusted = chooser.adjusted(logits)
    first, second = (uniform(sampling.seed, position, second=i) for i in (False, True))
    ids, scaled, sure = _candidates(adjusted, sampling, gap, share)
    distance = _reach(ids, scaled, sure, token, first)
    if sampling.grammar is None:
        return distance
    permitted = chooser.permitted(ids)
    low, high = _intervals(scaled, sure)
    refused = ~permitted & (high > low)
    if not refused.any():
        return distance
    to_refused = np.maximum(0.0, np.maximum(low - first, first - high))[refused].min()
    again = _reach(ids[permitted], scaled[permitted], sure[permitted], token, second)
    if not (permitted & sure).any():
        everything = np.arange(len(adjusted))
        rest = everything[chooser.permitted(everything) & (adjusted > -math.inf)]
        at, scaled, sure = _candidates(adjusted[rest], sampling, gap, share)
        again = min(again, _reach(rest[at], scaled, sure, token, second))
    return min(distance, max(float(to_refused), again))


def _candidates(
    logits: FloatArray, sampling: Sampling, gap: float, share: float
) -> tuple[_Ids, _Wide, _Mask]:
    """Ids, ascending, that are kept or may be; their scaled logits; which are kept in any case."""
    total = len(logits)
    wide = logits.astype(np.float64)
    scaled = wide / sampling.temperature
    order = np.argsort(-wide, kind="stable")
    ranked = wide[order]
    may, sure = np.ones(total, np.bool_), np.ones(total, np.bool_)
    if 0 < sampling.top_k < total:
        may, sure = _cut_behind(sampling.top_k, ranked, gap)
    if sampling.top_p < 1.0:
        among = min(sampling.top_k or total, total)
        weights = np.exp(scaled[order] - scaled[order[0]])
        before = (np.cumsum(weights) - weights) / weights[:among].sum()
        count = max(1, int(np.count_nonzero(before[:among] < sampling.top_p)))
        level_may, level_sure = _cut_behind(count, ranked, gap)
        may &= level_may | (before <= sampling.top_p + share)
        # the most probable one stays whatever the share
        alone = (np.arange(total) == 0) & level_sure
        sure &= alone | (level_sure & (before <= sampling.top_p - share))
    if sampling.min_p > 0.0:
        edge = ranked[0] + math.log(sampling.min_p) * sampling.temperature
        may &= ranked >= edge - gap
        sure &= ranked >= min(edge + gap, ranked[0])  # the most probable one stays
    keep = np.sort(order[may])
    certain = np.zeros(total, np.bool_)
    certain[order] = sure & may
    return keep, scaled[keep], certain[keep]


def _cut_behind(count: int, ranked: _Wide, gap: float) -> tuple[_Mask, _Mask]:
    """The first ``count`` of the order are kept: which may be, and which are in any case."""
    sure = ranked > ranked[count] + gap if count < len(ranked) else np.ones(len(ranked), np.bool_)
    return ranked >= ranked[count - 1] - gap, sure


def _reach(ids: _Ids, scaled: _Wide, sure: _Mask, token: int, number: float) -> float:
    """How far a number is from the token's interval."""
    where = np.flatnonzero(ids == token)
    if len(where) == 0:
        return math.inf
    low, high = (float(side[where[0]]) for side in _intervals(scaled, sure))
    return max(0.0, low - number, number - high)


def _intervals(scaled: _Wide, sure: _Mask) -> tuple[_Wide, _Wide]:
    """Lowest lower and highest upper end of each token's interval, itself being kept."""
    if not len(scaled):
        return scaled, scaled
    weights = np.exp(scaled - scaled.max())
    fixed, loose = np.where(sure, weights, 0.0), np.where(sure, 0.0, weights)
    fixed_below, loose_below = np.cumsum(fixed) - fixed, np.cumsum(loose) - loose
    fixed_above = fixed.sum() - fixed_below - fixed
    loose_above = loose.sum() - loose_below - loose
    least = np.finfo(np.float64).tiny  # of tokens that are banned
    low = fixed_below / np.maximum(fixed_below + weights + fixed_above + loose_above, least)
    top = fixed_below + loose_below + weights
    high = top / np.maximum(top + fixed_above, least)
    return low, high
