"""Estimates of the best possible speedup on a target, from its cost curve and an acceptance rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from suffixsvc_driver.cost.curve import CostCurve

#: P(accepted | all tokens before it accepted) of a drafted token, as tabulated by default
ACCEPTANCES: Final = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class SpeedupEstimate:
    """Largest speedup with drafts of constant acceptance.

    Attributes:
        acceptance: P(accepted | all tokens before it accepted) of every drafted token.
        draft_tokens: best number of drafted tokens per step; 0 if drafting does not pay.
        speedup: relative to plain decoding; 1 if drafting does not pay.
        tokens_per_step: mean emitted tokens per step, the bonus token included.
        speedup_with_model: speedup with the drafting cost of a draft model; None without one.
        draft_tokens_with_model: best number of drafted tokens per step with a draft model.
    """

    acceptance: float
    draft_tokens: int
    speedup: float
    tokens_per_step: float
    speedup_with_model: float | None = None
    draft_tokens_with_model: int = 0


def speedup_estimates(
    curve: CostCurve, acceptances: Sequence[float] = ACCEPTANCES, *, draft_cost: float | None = None
) -> list[SpeedupEstimate]:
    """Return the best fixed draft length for each acceptance.

    A step that sends n tokens emits 1 + p + .. + p^n tokens on average and costs c[1 + n], padded to a
    cheaper width if there is one. Drafts from memory have no further cost.

    Args:
        draft_cost: cost of a token of a draft model, in plain steps; None without a draft model.
    """
    found = []
    for acceptance in acceptances:
        free = _best(curve, acceptance, 0.0, 0.0)
        paid = None if draft_cost is None else _best(curve, acceptance, draft_cost, 0.0)
        with_model = (paid[1], paid[0]) if paid else (None, 0)
        found.append(SpeedupEstimate(acceptance, *free, *with_model))
    return found


def best_speedup(
    curve: CostCurve, acceptance: float, *, token_cost: float = 0.0, query_cost: float = 0.0
) -> float:
    """Return the speedup of the best fixed draft length over plain decoding; 1 if none pays.

    Args:
        token_cost: cost of drafting a token, in plain steps.
        query_cost: cost of the query of each step, in plain steps.
    """
    return _best(curve, acceptance, token_cost, query_cost)[1]


def break_even_acceptance(
    curve: CostCurve, *, token_cost: float = 0.0, query_cost: float = 0.0
) -> float | None:
    """Return the lowest acceptance, to a thousandth, at which drafting pays; None if it never does.

    See :func:`best_speedup` for the arguments.
    """

    def pays(thousandths: int) -> bool:
        best = best_speedup(curve, thousandths / 1000, token_cost=token_cost, query_cost=query_cost)
        return best > 1.0

    if not pays(1000):
        return None
    low, high = -1, 1000  # invariant: drafting pays at high and not at low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high / 1000


def break_even_step_seconds(curve: CostCurve, acceptance: float, query_seconds: float) -> float | None:
    """Return the seconds of a plain step above which a query in every step pays, for this curve."""
    saved = max((tokens - cost for _, tokens, cost in _lengths(curve, acceptance)), default=0.0)
    return query_seconds / saved if saved > 0.0 else None


def _lengths(curve: CostCurve, acceptance: float) -> Iterator[tuple[int, float, float]]:
    """Yield each draft length, its tokens per step, and the cost of its batch."""
    path = tokens = 1.0
    for drafted in range(1, curve.max_width):
        path *= acceptance
        tokens += path
        yield drafted, tokens, curve.costs[curve.padded_width(drafted + 1, curve.max_width)]


def _best(
    curve: CostCurve, acceptance: float, token_cost: float, query_cost: float
) -> tuple[int, float, float]:
    """Return the best draft length, its speedup and its tokens per step."""
    best = (0, 1.0, 1.0)
    for drafted, tokens, cost in _lengths(curve, acceptance):
        speedup = tokens / (cost + token_cost * drafted + query_cost)
        if speedup > best[1]:
            best = (drafted, speedup, tokens)
    return best
