"""What speedup is possible on a target, before anything is switched on: from its cost curve alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from suffixsvc_driver.curve import CostCurve

__all__ = ["ACCEPTANCES", "Prospect", "best_speedup", "paying_step_seconds", "pays_from", "prospects"]

#: of each drafted token, if all before it were accepted
ACCEPTANCES: Final = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Prospect:
    """The best that a drafter of constant acceptance can do.

    Attributes:
        acceptance: of each drafted token, if all before it were accepted.
        draft_tokens: drafted each step; 0: drafting does not pay.
        speedup: against plain decoding; 1 where drafting does not pay.
        tokens_per_step: written each step, the target's own included.
        speedup_with_model: the same where each drafted token costs what a draft model's does; None: no draft
            model was given.
        draft_tokens_with_model: drafted each step then.
    """

    acceptance: float
    draft_tokens: int
    speedup: float
    tokens_per_step: float
    speedup_with_model: float | None = None
    draft_tokens_with_model: int = 0


def prospects(
    curve: CostCurve, acceptances: Sequence[float] = ACCEPTANCES, *, draft_cost: float | None = None
) -> list[Prospect]:
    """The best fixed number of drafted tokens for each acceptance.

    A step that sends n tokens writes 1 + p + .. + p^n and costs c[1 + n], padded where a wider one is
    cheaper; drafts from memory cost nothing beside that.

    Args:
        draft_cost: of a token of a draft model, in plain steps.
    """
    found = []
    for acceptance in acceptances:
        free = _best(curve, acceptance, 0.0, 0.0)
        paid = None if draft_cost is None else _best(curve, acceptance, draft_cost, 0.0)
        found.append(
            Prospect(acceptance, *free, paid[1] if paid else None, paid[0] if paid else 0)
        )  # fmt: skip
    return found


def best_speedup(
    curve: CostCurve, acceptance: float, *, token_cost: float = 0.0, ask_cost: float = 0.0
) -> float:
    """What the best fixed number of drafted tokens brings against plain decoding; 1 where none pays.

    Args:
        token_cost: of each drafted token, in plain steps.
        ask_cost: of asking for them, once a step, in plain steps.
    """
    return _best(curve, acceptance, token_cost, ask_cost)[1]


def pays_from(curve: CostCurve, *, token_cost: float = 0.0, ask_cost: float = 0.0) -> float | None:
    """The lowest acceptance, to a thousandth, at which drafting pays; None where it never does.

    Args:
        token_cost, ask_cost: see :func:`best_speedup`.
    """

    def pays(thousandths: int) -> bool:
        best = best_speedup(curve, thousandths / 1000, token_cost=token_cost, ask_cost=ask_cost)
        return best > 1.0

    if not pays(1000):
        return None
    low, high = -1, 1000  # it does not pay at low, and does at high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high / 1000


def paying_step_seconds(curve: CostCurve, acceptance: float, ask_seconds: float) -> float | None:
    """How long a plain step must take for asking in every step to pay, on targets with a curve like this;
    None where no draft of this acceptance saves a step.

    Args:
        ask_seconds: what asking takes, once a step.
    """
    saved = 0.0
    path = tokens = 1.0
    for drafted in range(1, curve.max_width):
        path *= acceptance
        tokens += path
        saved = max(saved, tokens - curve.costs[curve.padded_width(drafted + 1, curve.max_width)])
    return ask_seconds / saved if saved > 0.0 else None


def _best(
    curve: CostCurve, acceptance: float, token_cost: float, ask_cost: float
) -> tuple[int, float, float]:
    """Drafted tokens, speedup, tokens a step."""
    best = (0, 1.0, 1.0)
    path = tokens = 1.0
    for drafted in range(1, curve.max_width):
        path *= acceptance
        tokens += path
        width = curve.padded_width(drafted + 1, curve.max_width)
        speedup = tokens / (curve.costs[width] + token_cost * drafted + ask_cost)
        if speedup > best[1]:
            best = (drafted, speedup, tokens)
    return best
