"""Speedups over plain decoding from paired runs, with confidence intervals.

A machine's speed drifts by ten or twenty per cent within minutes, so only adjacent runs are comparable. A
pair is one job, answered plainly and by a variant, interleaved or adjacent. The speedup of a variant is its
tokens per second over all pairs divided by plain decoding's over the same pairs; the interval is a bootstrap
over pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from suffixsvc_bench.report.statistics import bootstrap_interval
from suffixsvc_bench.speculation.paired import Outcome, Pair


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


@dataclass(frozen=True, slots=True)
class Row:
    """Summary of one variant on one workload.

    Attributes:
        acceptance: accepted / drafted; 0 without drafts.
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
    acceptance: float


@dataclass(frozen=True, slots=True)
class LengthRow:
    """Summary of one variant's answers to prompts of some lengths.

    Attributes:
        least, most: shortest and longest prompt, tokens.
        acceptance: accepted / drafted; 0 without drafts.
        tokens_per_step: MAT; 0 where the number of steps is unknown.
    """

    least: int
    most: int
    speedup: Ratio
    tokens_per_step: float
    drafted: int
    accepted: int
    acceptance: float


def by_length(pairs: Sequence[Pair], parts: int = 4) -> list[LengthRow]:
    """Summarise answers by the length of their prompts, in at most ``parts`` groups of equal size."""
    ordered = sorted(pairs, key=lambda pair: pair.prompt_tokens)
    rows = []
    for group in np.array_split(np.arange(len(ordered)), min(parts, len(ordered))) if ordered else []:
        its = [ordered[i] for i in group]
        total = Outcome.sum([pair.outcome for pair in its])
        rows.append(
            LengthRow(
                its[0].prompt_tokens,
                its[-1].prompt_tokens,
                ratio_of(its),
                total.tokens / total.steps if total.steps else 0.0,
                total.drafted,
                total.accepted,
                total.accepted / total.drafted if total.drafted else 0.0,
            )
        )
    return rows


def ratio_of(pairs: Sequence[Pair]) -> Ratio:
    """Speedup of some pairs.

    Raises:
        ValueError: no pairs.
    """
    if not pairs:
        raise ValueError("pairs must not be empty")
    columns = np.array(
        [(p.outcome.tokens, p.outcome.seconds, p.reference.tokens, p.reference.seconds) for p in pairs]
    )
    low, high = bootstrap_interval(columns, lambda drawn: _ratio(drawn.sum(axis=1)))
    median = float(np.median([pair.ratio for pair in pairs]))
    return Ratio(float(_ratio(columns.sum(axis=0))), low, high, median, len(pairs))


def ratio_against(ours: Sequence[Pair], theirs: Sequence[Pair]) -> Ratio:
    """Speedup of one variant over another, from answers to the same jobs in the same rounds."""
    return ratio_of([Pair(a.job, a.agent, a.outcome, b.outcome) for a, b in zip(ours, theirs, strict=True)])


def row_of(workload: str, variant: str, pairs: Sequence[Pair]) -> Row:
    """Summarise one variant on one workload."""
    total = Outcome.sum([pair.outcome for pair in pairs])
    own = np.array(total.own_ms or [0.0])
    return Row(
        workload,
        variant,
        ratio_of(pairs),
        total.tokens,
        total.speed,
        total.tokens / total.steps if total.steps else 0.0,
        total.drafted,
        total.accepted,
        total.by_layer,
        float(np.percentile(own, 50)),
        float(np.percentile(own, 99)),
        1e3 * total.deciding_seconds / max(1, total.steps),
        total.accepted / total.drafted if total.drafted else 0.0,
    )


def _ratio(sums: Any) -> Any:
    return (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])
