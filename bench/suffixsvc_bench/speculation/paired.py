"""Paired runs: one call answered with drafts and plain, and the median ratio of their speeds.

A machine's speed drifts by ten or twenty per cent within minutes, so only adjacent runs are comparable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from suffixsvc_bench.report.statistics import bootstrap_interval


@dataclass(frozen=True, slots=True)
class Outcome:
    """Tokens, time and draft counts of an answer, or of several.

    Attributes:
        tokens: tokens written.
        seconds: decoding time without the prompt's prefill, all costs of drafting included.
        steps: steps of the target.
        drafted, accepted: tokens sent to verification, and those that the target accepted.
        by_layer: accepted tokens of each layer.
        own_ms: for each step, the time of layer queries, milliseconds.
        deciding_seconds: time outside target and layers, over all steps.
        token_ids: tokens written, where known.
    """

    tokens: int
    seconds: float
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    by_layer: dict[str, int] = field(default_factory=dict)
    own_ms: tuple[float, ...] = ()
    deciding_seconds: float = 0.0
    token_ids: tuple[int, ...] = ()

    @property
    def speed(self) -> float:
        """Tokens per second; 0 without time."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @classmethod
    def sum(cls, outcomes: Sequence[Outcome]) -> Outcome:
        """Several answers together."""
        by_layer = Counter[str]()
        for each in outcomes:
            by_layer.update(each.by_layer)
        return cls(
            sum(each.tokens for each in outcomes),
            sum(each.seconds for each in outcomes),
            sum(each.steps for each in outcomes),
            sum(each.drafted for each in outcomes),
            sum(each.accepted for each in outcomes),
            dict(by_layer),
            tuple(ms for each in outcomes for ms in each.own_ms),
            sum(each.deciding_seconds for each in outcomes),
            tuple(token for each in outcomes for token in each.token_ids),
        )


@dataclass(frozen=True, slots=True)
class Pair:
    """One job answered by a variant, and by its reference (usually plain decoding).

    Attributes:
        prompt_tokens: of the job; 0 if unknown.
    """

    job: str
    agent: str
    outcome: Outcome
    reference: Outcome
    prompt_tokens: int = 0

    @property
    def ratio(self) -> float:
        """Tokens per second over the reference's."""
        return self.outcome.speed / self.reference.speed if self.reference.speed else 0.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with its 95 % bootstrap interval."""

    median: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.low:.2f} to {self.high:.2f}, {self.count} calls)"


def median_ratio(pairs: Sequence[Pair]) -> Interval | None:
    """Median ratio over calls; None without calls."""
    if not pairs:
        return None
    ratios = np.array([pair.ratio for pair in pairs])
    low, high = bootstrap_interval(ratios, lambda drawn: np.median(drawn, axis=1))
    return Interval(float(np.median(ratios)), low, high, len(ratios))
