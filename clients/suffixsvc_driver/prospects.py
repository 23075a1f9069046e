"""What speedup is possible on a target, before anything is switched on: from its cost curve alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from suffixsvc_driver.curve import CostCurve

__all__ = ["ACCEPTANCES", "Prospect", "prospects"]

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
        free = _best(curve, acceptance, 0.0)
        paid = None if draft_cost is None else _best(curve, acceptance, draft_cost)
        found.append(
            Prospect(acceptance, *free, paid[1] if paid else None, paid[0] if paid else 0)
        )  # fmt: skip
    return found


def _best(curve: CostCurve, acceptance: float, draft_cost: float) -> tuple[int, float, float]:
    """Drafted tokens, speedup, tokens a step."""
    best = (0, 1.0, 1.0)
    path = tokens = 1.0
    for drafted in range(1, curve.max_width):
        path *= acceptance
        tokens += path
        width = curve.padded_width(drafted + 1, curve.max_width)
        speedup = tokens / (curve.costs[width] + draft_cost * drafted)
        if speedup > best[1]:
            best = (drafted, speedup, tokens)
    return best
