"""Allocation of a shared batch to the drafts of several generations. Pure arithmetic.

    base        the newest token of every generation, and replayed tokens
    + drafts    the tokens of all proposals that gain most, as many as their cost allows
    + padding   up to a cheaper width

A token costs the same in any position of the batch, so the best n tokens of all drafts are the best set of n,
and n is found as the length of a single draft: it maximises sum of gains - lambda * c[base + n]. See
:mod:`suffixsvc_driver.policy.expected_gain`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.policy.expected_gain import MIN_GAIN


@dataclass(frozen=True, slots=True)
class BudgetShares:
    """Contents of a batch beyond its base.

    Attributes:
        lengths: number of leading tokens of each proposal to send.
        padding: filler tokens that reach a cheaper width.
        gain: expected gain over the base alone, tokens.
    """

    lengths: tuple[int, ...]
    padding: int = 0
    gain: float = 0.0


def allocate_budget(
    proposals: Sequence[Sequence[float]], curve: CostCurve, rate: float, base: int, room: int
) -> BudgetShares:
    """Choose how many tokens of every proposal to send.

    Args:
        proposals: expected gain of each drafted token, by generation. The allocation is optimal if the gains
            of each proposal decrease; otherwise (generations that replay) a token is considered only after
            all tokens before it are taken.
        rate: lambda, tokens per unit of cost.
        base: tokens in the batch without drafts.
        room: upper bound of added tokens.
    """
    widest = min(curve.max_width, base + room)
    plain = curve.cost(base)
    heads = [(-gains[0], i, 0) for i, gains in enumerate(proposals) if gains]
    heapq.heapify(heads)
    taken: list[int] = []
    best, best_width, best_gain = 0, base, 0.0
    expected = 0.0
    while base + len(taken) <= widest:
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
    if best_gain <= MIN_GAIN:
        best, best_width, best_gain = 0, base, 0.0
    sent = taken[:best]
    lengths = tuple(sent.count(i) for i in range(len(proposals)))
    return BudgetShares(lengths, best_width - base - best, best_gain)
