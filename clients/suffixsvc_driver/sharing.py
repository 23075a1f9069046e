"""Who gets how much of a batch that several generations share: pure arithmetic.

    base        every generation's newest token, and what is computed again
    + drafts    of all proposals the tokens that gain most, as many as the curve makes worth their price
    + padding   up to a cheaper width

A token costs the same wherever it stands in the batch, so the best n tokens of all drafts together are the
best set of n, and n is found as the length of one draft is: sum of gains - lambda * c[base + n]. See
:mod:`suffixsvc_driver.policy`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.policy import LEAST_GAIN

__all__ = ["Shares", "share_out"]


@dataclass(frozen=True, slots=True)
class Shares:
    """What goes into a batch beside its base.

    Attributes:
        lengths: tokens of each proposal, its first ones.
        padding: tokens that only fill a cheaper width.
        gain: over the base alone, tokens.
    """

    lengths: tuple[int, ...]
    padding: int = 0
    gain: float = 0.0


def share_out(
    proposals: Sequence[Sequence[float]], curve: CostCurve, rate: float, base: int, room: int
) -> Shares:
    """Choose how much of every proposal to send.

    Args:
        proposals: of each generation, the tokens that each of its drafted tokens gains. Exact where they
            fall; where they do not (generations that replay), a token is looked at once all before it are
            taken.
        rate: lambda, tokens per unit cost.
        base: tokens in the batch in any case.
        room: that may be added at most.
    """
    widest = min(curve.max_width, base + room)
    plain = curve.cost(base)
    heads = [(-gains[0], i, 0) for i, gains in enumerate(proposals) if gains]
    heapq.heapify(heads)
    taken: list[int] = []
    best, best_width, best_gain = 0, base, 0.0
    expected = 0.0
    while base + len(taken) <= widest:
        # a single plain step is never padded
        width = curve.padded_width(base + len(taken), widest)
        gain = expected - rate * (curve.costs[width] - plain)
        if gain > best_gain:
            best, best_width, best_gain = len(taken), width, gain
        if not heads:
            break
        loss, i, at = heapq.heappop(heads)
        expected -= loss
        taken.append(i)
        if at + 1 < len(proposals[i]):
            heapq.heappush(heads, (-proposals[i][at + 1], i, at + 1))
    if best_gain <= LEAST_GAIN:
        best, best_width, best_gain = 0, base, 0.0
    sent = taken[:best]
    lengths = tuple(sent.count(i) for i in range(len(proposals)))
    return Shares(lengths, best_width - base - best, best_gain)
