"""Speedups over plain decoding from paired runs, with intervals.

A machine drifts by ten or twenty per cent within minutes, so that only runs that lie side by side can be
compared. A pair is one job, once plain and once another way, right after each other. The speedup of a way is
tokens per second over all its pairs divided by plain's over the same pairs; the interval comes from a
bootstrap that draws pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from suffixsvc_bench.bootstrap import interval
from suffixsvc_bench.decode.outcome import Outcome

__all__ = ["Pair", "Ratio", "Row", "against", "ratio_of", "row_of"]


@dataclass(frozen=True, slots=True)
class Pair:
    """One job answered in one way, beside its reference (plain decoding, usually)."""

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
    """A speedup.

    Attributes:
        value: total tokens per second over the reference's.
        low, high: hold it in 95 % of resamples.
        median: of the single pairs.
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
    """One way on one workload, summed up.

    Attributes:
        tokens_per_step: 0 where nobody tells how many steps there were.
        own_ms_p50, own_ms_p99: what asking the layers took in a step, milliseconds.
        deciding_ms: per step in neither the target nor a layer, milliseconds, on average.
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
        return self.accepted / self.drafted if self.drafted else 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"acceptance": self.acceptance}


def ratio_of(pairs: Sequence[Pair], seed: int = 1) -> Ratio:
    """Raises ValueError without any pair."""
    if not pairs:
        raise ValueError("no pair, no ratio")
    columns = np.array(
        [(p.outcome.tokens, p.outcome.seconds, p.reference.tokens, p.reference.seconds) for p in pairs]
    )
    low, high = interval(columns, lambda drawn: _ratio(drawn.sum(axis=1)), seed)
    median = float(np.median([pair.ratio for pair in pairs]))
    return Ratio(float(_ratio(columns.sum(axis=0))), low, high, median, len(pairs))


def against(ours: Sequence[Pair], theirs: Sequence[Pair]) -> Ratio:
    """One way over another, from answers to the same jobs in the same turns."""
    return ratio_of([Pair(a.job, a.agent, a.outcome, b.outcome) for a, b in zip(ours, theirs, strict=True)])


def row_of(workload: str, variant: str, pairs: Sequence[Pair]) -> Row:
    """What came out for one way on one workload."""
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
