"""What a pair of models costs on this machine, measured: a drafted token, a step of the target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from suffixsvc_driver.cost import Progress, live_curve, seconds_per_step
from suffixsvc_driver.prospects import best_speedup, pays_from
from suffixsvc_driver.targets.llama import LlamaTarget
from suffixsvc_driver.targets.llama_context import ContextSettings

__all__ = ["CURVE_WIDTH", "PairCost", "measure_pair", "measured_seconds_per_token"]

#: the widest step measured, unless somebody says otherwise: curves are kept by it
CURVE_WIDTH: Final = 64
_CONTEXT_SIZE: Final = 1024


@dataclass(frozen=True, slots=True)
class PairCost:
    """What was measured of a target and a draft model.

    Attributes:
        threads: they computed on.
        step_seconds: a plain step of the target.
        draft_seconds: a drafted token, of the draft model.
        cost_ratio: of drafting what is a token of the target, to a plain step.
        pays_from: acceptance of each drafted token from which drafting pays; None where it never does.
        best: speedup if everything is accepted.
    """

    threads: int
    step_seconds: float
    draft_seconds: float
    cost_ratio: float
    pays_from: float | None
    best: float


def measure_pair(
    target: Path,
    draft: Path,
    *,
    threads: int,
    token_ratio: float = 1.0,
    rounds: int = 5,
    progress: Progress | None = None,
) -> PairCost:
    """Measure both models, one after the other. Of the target's curve only a few steps are taken where one is
    kept; the draft model's token is always measured now: a ratio of what was measured on two days is none.

    Args:
        token_ratio: tokens of the draft model for a token of the target.
        rounds: how often each width of the target is measured.

    Raises:
        ModelNotFoundError, ModelCorruptError, ModelError.
    """
    settings = ContextSettings(context_size=_CONTEXT_SIZE, threads=threads, max_width=CURVE_WIDTH)
    with LlamaTarget(target, settings) as large:
        curve = live_curve(large, rounds=rounds, progress=progress).expected()
    seconds = measured_seconds_per_token(draft, threads)
    ratio = seconds * token_ratio / curve.seconds_per_step
    return PairCost(
        threads,
        curve.seconds_per_step,
        seconds,
        ratio,
        pays_from(curve, token_cost=ratio),
        best_speedup(curve, 1.0, token_cost=ratio),
    )


def measured_seconds_per_token(model: Path, threads: int) -> float:
    """What a plain step of a model takes now."""
    settings = ContextSettings(context_size=_CONTEXT_SIZE, threads=threads, max_width=1)
    with LlamaTarget(model, settings) as target:
        return seconds_per_step(target)
