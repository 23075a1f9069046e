"""Speedups over plain decoding from paired runs, with confidence intervals.

A machine's speed drifts by ten or twenty per cent within minutes, so only adjacent runs are comparable. A
pair is one job, answered plainly and by a variant, interleaved or adjacent. The speedup of a variant is its
tokens per second over all pairs divided by plain decoding's over the same pairs; the interval is a bootstrap
over pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from suffixsvc_bench.decode.workload.outcome import Outcome
from suffixsvc_bench.report.statistics import bootstrap_interval

__all__ = ["Pair", "Ratio", "Row", "ratio_against", "ratio_of", "row_of"]


@dataclass(frozen=True, slots=True)
class Pair:
    """One job answered by a variant, and by its reference (usually plain decoding)."""

    job: str
    agent: str
    outcome: Outcome
    reference: Outcome

    @property
    def ratio(self) -> float:
        """Tokens per second over the reference's."""
        return self.outcome.speed / self.reference.speed if self.reference.speed else 0.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """A speedup with its confidence interval.

    Attributes:
        value: total tokens per second over the reference's.
        low, high: 95 % bootstrap interval.
        median: median of the pairs' own ratios.
        pairs: number of pairs.
    """

    value: float
    low: float
    high: float
    median: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True)
class Row:
    """Summary of one variant on one workload.

    Attributes:
        tokens_per_step: MAT; 0 where the number of steps is unknown.
        own_ms_p50, own_ms_p99: time of layer queries per step, milliseconds.
        deciding_ms: time per step outside target and layers, milliseconds, mean.
    """

    workload: str
    variant: str
    speedup: Ratio
    tokens: int
    tokens_per_second: float
    tokens_per_step: float
    drafted: int
    accepted: int
    by_layer: Mapping[str, int]
    own_ms_p50: float
    own_ms_p99: float
    deciding_ms: float

    @property
    def acceptance(self) -> float:
        """Accepted / drafted; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def as_dict(self) -> dict[str, Any]:
        """JSON-able data."""
        return asdict(self) | {"acceptance": self.acceptance}


def ratio_of(pairs: Sequence[Pair], seed: int = 1) -> Ratio:
    """Speedup of some pairs.

    Raises:
        ValueError: no pairs.
    """
    if not pairs:
        raise ValueError("pairs must not be empty")
    columns = np.array(
        [(p.outcome.tokens, p.outcome.seconds, p.reference.tokens, p.reference.seconds) for p in pairs]
    )
    low, high = bootstrap_interval(columns, lambda drawn: _ratio(drawn.sum(axis=1)), seed)
    median = float(np.median([pair.ratio for pair in pairs]))
    return Ratio(float(_ratio(columns.sum(axis=0))), low, high, median, len(pairs))


def ratio_against(ours: Sequence[Pair], theirs: Sequence[Pair]) -> Ratio:
    """Speedup of one variant over another, from answers to the same jobs in the same rounds."""
    return ratio_of([Pair(a.job, a.agent, a.outcome, b.outcome) for a, b in zip(ours, theirs, strict=True)])


def row_of(workload: str, variant: str, pairs: Sequence[Pair]) -> Row:
    """Summarise one variant on one workload."""
    outcomes = [pair.outcome for pair in pairs]
    tokens, seconds = sum(o.tokens for o in outcomes), sum(o.seconds for o in outcomes)
    layers: dict[str, int] = {}
    for outcome in outcomes:
        for name, accepted in outcome.by_layer.items():
            layers[name] = layers.get(name, 0) + accepted
    steps = sum(o.steps for o in outcomes)
    own = np.array([ms for o in outcomes for ms in o.own_ms] or [0.0])
    return Row(
        workload,
        variant,
        ratio_of(pairs),
        tokens,
        tokens / seconds if seconds else 0.0,
        tokens / steps if steps else 0.0,
        sum(o.drafted for o in outcomes),
        sum(o.accepted for o in outcomes),
        layers,
        float(np.percentile(own, 50)),
        float(np.percentile(own, 99)),
        1e3 * sum(o.deciding_seconds for o in outcomes) / max(1, steps),
    )


def _ratio(sums: Any) -> Any:
    return (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])
