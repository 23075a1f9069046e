"""Measured costs of a pair of models on this machine: a drafted token, a step of the target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from suffixsvc_driver.cost.speedup_estimate import best_speedup, break_even_acceptance
from suffixsvc_driver.profile.target_cost import Progress, measured_curve, seconds_per_step
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.llama.offload import Offload
from suffixsvc_driver.targets.single import LlamaTarget

#: default of the widest measured step, which is part of a stored curve's key
CURVE_WIDTH: Final = 64
_CONTEXT_SIZE: Final = 1024


@dataclass(frozen=True, slots=True)
class PairCost:
    """Measured costs of a target and a draft model.

    Attributes:
        threads: compute threads.
        step_seconds: time of a plain step of the target.
        draft_seconds: time of a drafted token, in tokens of the draft model.
        cost_ratio: cost of drafting one token of the target, relative to a plain step.
        pays_from: acceptance rate from which drafting pays; None if it never does.
        best: speedup if every drafted token is accepted.
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
    """Measure both models, one after the other.

    A stored curve of the target is corrected by a few steps; the draft model is always measured now, since
    measurements from different times have no meaningful ratio.

    Args:
        token_ratio: tokens of the draft model per token of the target.
        rounds: how often each width of the target is measured.

    Raises:
        ModelNotFoundError, ModelCorruptError, ModelError: an unusable file.
    """
    settings = ContextSettings(context_size=_CONTEXT_SIZE, threads=threads, max_width=CURVE_WIDTH)
    with LlamaTarget(target, settings) as large:
        curve = measured_curve(large, rounds=rounds, progress=progress).expected()
    seconds = measured_seconds_per_token(draft, threads)
    ratio = seconds * token_ratio / curve.seconds_per_step
    return PairCost(
        threads,
        curve.seconds_per_step,
        seconds,
        ratio,
        break_even_acceptance(curve, token_cost=ratio),
        best_speedup(curve, 1.0, token_cost=ratio),
    )


def measured_seconds_per_token(model: Path, threads: int, offload: Offload | None = None) -> float:
    """Measure the time of a plain step of a model."""
    settings = ContextSettings(context_size=_CONTEXT_SIZE, threads=threads, max_width=1)
    with LlamaModel(model, offload=offload) as loaded, LlamaTarget(loaded, settings) as target:
        return seconds_per_step(target)
