"""What the server has to reach, and whether a run reached it (the figures of docs/benchmarks.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from suffixsvc_bench.decode.figures import Ratio
from suffixsvc_bench.report.statistics import geometric_mean
from suffixsvc_bench.serving.figures import BestMode, Row
from suffixsvc_bench.serving.phases.conversation import Conversation
from suffixsvc_bench.serving.servers.process import DRAFTS, LLAMA_PLAIN, NO_DRAFTS

#: workloads whose texts repeat, as an agent's do
_REPEATING: Final = ("sql", "json", "python", "edit", "repeat")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A figure beside what is required of it.

    Attributes:
        measured: the figure as text.
        required: the condition.
        met: whether the condition holds.
    """

    figure: str
    measured: str
    required: str
    met: bool


def requirements_of(
    *,
    reference: str,
    rows: Sequence[Row],
    best: Sequence[BestMode],
    clients: Mapping[str, Ratio],
    parallel: int,
    overhead: Ratio | None,
    conversation: Conversation | None,
    schema: Mapping[str, Ratio],
) -> list[Requirement]:
    """The figures of the parts that were run, in order; the arguments are attributes of a run's results."""
    return [
        *(_over_plain(rows) if reference == LLAMA_PLAIN else ()),
        *_over_best(best),
        *(_several_clients(clients, parallel) if LLAMA_PLAIN in clients else ()),
        *_overhead(overhead),
        *_conversation(conversation),
        *_schema(schema),
    ]


def _over_plain(rows: Sequence[Row]) -> Iterator[Requirement]:
    found = {
        row.workload: row.whole
        for row in rows
        if row.subject == DRAFTS and row.workload in _REPEATING and row.whole is not None
    }
    if found:
        worst = min(found, key=lambda name: found[name].low)
        yield Requirement(
            f"one client, over {LLAMA_PLAIN}: {', '.join(found)}",
            f"lowest {_interval(found[worst])}, {worst}",
            "lower ends >= 1.0",
            found[worst].low >= 1.0,
        )


def _over_best(best: Sequence[BestMode]) -> Iterator[Requirement]:
    if not best:
        return
    worst = min(best, key=lambda each: each.whole.high)
    names = ", ".join(each.workload for each in best)
    yield Requirement(
        f"one client, over llama-server's best mode: {names}",
        f"lowest {_interval(worst.whole)}, {worst.workload}",
        "upper ends >= 1.0",
        worst.whole.high >= 1.0,
    )
    mean = geometric_mean([each.whole.value for each in best])
    yield Requirement("the same, geometric mean", f"{mean:.2f}", ">= 1.15", mean >= 1.15)


def _several_clients(clients: Mapping[str, Ratio], parallel: int) -> Iterator[Requirement]:
    for subject, least in ((NO_DRAFTS, 0.95), (DRAFTS, 1.1)):
        if subject in clients:
            yield Requirement(
                f"{parallel} clients, generation, over {LLAMA_PLAIN}: {subject}",
                _interval(clients[subject]),
                f">= {least}",
                clients[subject].value >= least,
            )


def _overhead(found: Ratio | None) -> Iterator[Requirement]:
    if found is not None:
        yield Requirement(
            "HTTP and scheduling per token, over the driver",
            f"{found.value - 1:+.1%} ({found.low - 1:+.1%} to {found.high - 1:+.1%})",
            "<= 3 %",
            found.value <= 1.03,
        )


def _conversation(found: Conversation | None) -> Iterator[Requirement]:
    if found is not None:
        yield Requirement(
            f"{len(found.turns)} turns: prompt tokens computed, over the new ones",
            f"{found.ratio:.3f} ({found.computed:,} of {found.new:,})",
            "<= 1.05",
            found.ratio <= 1.05,
        )


def _schema(ratios: Mapping[str, Ratio]) -> Iterator[Requirement]:
    if "whole" in ratios:
        yield Requirement(
            "strict JSON schema on, over off",
            _interval(ratios["whole"]),
            "upper end >= 1.0",
            ratios["whole"].high >= 1.0,
        )


def _interval(found: Ratio) -> str:
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"
