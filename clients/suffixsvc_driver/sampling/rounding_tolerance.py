"""Rounding tolerance of sampling: distance of a position's random numbers from sampling a given token.

Rounding changes logits slightly. This moves the boundaries between the tokens' intervals, and it moves the
cut-offs (top_k, top_p, min_p): a token near a cut-off may be kept or removed, which moves all boundaries by
its share. The interval of a token is therefore computed with bounds:

    tokens by probability:   kept . . . kept | uncertain . . uncertain | removed . . .
                                             `-- a cut-off is near ---'

    interval of token t:     low   with the uncertain tokens below it removed and those above it kept
                             high  with the uncertain tokens below it kept and those above it removed

A token is uncertain if its logit is within ``gap`` of the cut-off's, or the share before it within ``share``
of top_p. With a grammar, a token can also be sampled after a refusal: the first number picks a refused token
and the second number this one. The distance of such a path is the larger of both.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from suffixsvc.types import FloatArray
from suffixsvc_driver.sampling.sampler import Sampler
from suffixsvc_driver.sampling.settings import IdArray, Sampling, WideArray, uniform

_Mask = npt.NDArray[np.bool_]


def near_tie_distance(
    logits: FloatArray, sampler: Sampler, position: int, token: int, *, gap: float, share: float
) -> float:
    """Return the distance of the position's random numbers from sampling ``token``.

    0 if it would be sampled within the tolerance of the cut-offs, infinite if it cannot be sampled.

    Args:
        logits: float32[n_vocab] of the position, as computed.
        sampler: of the generation, which has accepted all text before; not greedy.
        position: absolute, prompt included.
        token: the token in question.
        gap: tolerance of logits.
        share: tolerance of cumulative probabilities.
    """
    sampling = sampler.sampling
    adjusted = sampler.adjusted(logits)
    first, second = (uniform(sampling.seed, position, second=i) for i in (False, True))
    ids, scaled, sure = _candidates(adjusted, sampling, gap, share)
    distance = _distance(ids, scaled, sure, token, first)
    if sampling.grammar is None:
        return distance
    permitted = sampler.permitted(ids)
    low, high = _intervals(scaled, sure)
    refused = ~permitted & (high > low)
    if not refused.any():
        return distance
    to_refused = np.maximum(0.0, np.maximum(low - first, first - high))[refused].min()
    again = _distance(ids[permitted], scaled[permitted], sure[permitted], token, second)
    if not (permitted & sure).any():
        everything = np.arange(len(adjusted))
        rest = everything[sampler.permitted(everything) & (adjusted > -math.inf)]
        at, scaled, sure = _candidates(adjusted[rest], sampling, gap, share)
        again = min(again, _distance(rest[at], scaled, sure, token, second))
    return min(distance, max(float(to_refused), again))


def _candidates(
    logits: FloatArray, sampling: Sampling, gap: float, share: float
) -> tuple[IdArray, WideArray, _Mask]:
    """Return ascending ids that may be kept, their scaled logits, and which are certainly kept."""
    total = len(logits)
    wide = logits.astype(np.float64)
    scaled = wide / sampling.temperature
    order = np.argsort(-wide, kind="stable")
    ranked = wide[order]
    may, sure = np.ones(total, np.bool_), np.ones(total, np.bool_)
    if 0 < sampling.top_k < total:
        may, sure = _truncation(sampling.top_k, ranked, gap)
    if sampling.top_p < 1.0:
        among = min(sampling.top_k or total, total)
        weights = np.exp(scaled[order] - scaled[order[0]])
        before = (np.cumsum(weights) - weights) / weights[:among].sum()
        count = max(1, int(np.count_nonzero(before[:among] < sampling.top_p)))
        level_may, level_sure = _truncation(count, ranked, gap)
        may &= level_may | (before <= sampling.top_p + share)
        # the most probable token is always kept
        alone = (np.arange(total) == 0) & level_sure
        sure &= alone | (level_sure & (before <= sampling.top_p - share))
    if sampling.min_p > 0.0:
        edge = ranked[0] + math.log(sampling.min_p) * sampling.temperature
        may &= ranked >= edge - gap
        sure &= ranked >= min(edge + gap, ranked[0])  # the most probable token is always kept
    keep = np.sort(order[may])
    certain = np.zeros(total, np.bool_)
    certain[order] = sure & may
    return keep, scaled[keep], certain[keep]


def _truncation(count: int, ranked: WideArray, gap: float) -> tuple[_Mask, _Mask]:
    """Return which of the ranked tokens may be, and which certainly are, among the first ``count``."""
    sure = ranked > ranked[count] + gap if count < len(ranked) else np.ones(len(ranked), np.bool_)
    return ranked >= ranked[count - 1] - gap, sure


def _distance(ids: IdArray, scaled: WideArray, sure: _Mask, token: int, number: float) -> float:
    """Return the distance of a number from the token's interval."""
    where = np.flatnonzero(ids == token)
    if len(where) == 0:
        return math.inf
    low, high = (float(side[where[0]]) for side in _intervals(scaled, sure))
    return max(0.0, low - number, number - high)


def _intervals(scaled: WideArray, sure: _Mask) -> tuple[WideArray, WideArray]:
    """Return the lowest lower and the highest upper end of each token's interval, given that it is kept."""
    if not len(scaled):
        return scaled, scaled
    weights = np.exp(scaled - scaled.max())
    fixed, loose = np.where(sure, weights, 0.0), np.where(sure, 0.0, weights)
    fixed_below, loose_below = np.cumsum(fixed) - fixed, np.cumsum(loose) - loose
    fixed_above = fixed.sum() - fixed_below - fixed
    loose_above = loose.sum() - loose_below - loose
    least = np.finfo(np.float64).tiny  # for banned tokens
    low = fixed_below / np.maximum(fixed_below + weights + fixed_above + loose_above, least)
    top = fixed_below + loose_below + weights
    high = top / np.maximum(top + fixed_above, least)
    return low, high
