"""Numbers of all answers since the server started: tokens by source, acceptance by layer and by position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from suffixsvc.types import DraftSource
from suffixsvc_driver.decode.generation import Result, StepRecord
from suffixsvc_driver.speculation.accounting import Stats


@dataclass(slots=True)
class Numbers:
    """Counts of answers, or of a part of one.

    Attributes:
        stats: by layer.
        sources: emitted tokens by DraftSource.
        drafted, accepted: drafted tokens by position in the draft, and those that the model accepted.
    """

    stats: Stats = field(default_factory=Stats)
    sources: Counter[int] = field(default_factory=Counter)
    drafted: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)

    def add(self, other: Numbers) -> None:
        """Add the counts of ``other``."""
        self.stats.add(other.stats)
        for mine, added in (
            (self.sources, other.sources),
            (self.drafted, other.drafted),
            (self.accepted, other.accepted),
        ):
            mine.update(added)

    def add_steps(self, steps: Iterable[StepRecord]) -> None:
        """Add steps of an answer that has not ended."""
        for step in steps:
            self.stats.count_step(step.decision, step.accepted, step.path, step.sources)
            self.sources.update(step.sources)
            self._add_positions(step)

    @classmethod
    def of(cls, result: Result) -> Numbers:
        """Return the counts of an answer that has ended."""
        found = cls(Stats(), Counter(result.sources))
        found.stats.add(result.stats)
        for step in result.steps:
            found._add_positions(step)
        return found

    def _add_positions(self, step: StepRecord) -> None:
        sent = step.decision
        count = sent.drafted
        if count:
            self.drafted.update(_depths(sent.parents[:count]) if sent.parents else range(count))
            self.accepted.update(range(step.agreed))

    def to_json(self) -> dict[str, Any]:
        """Return the counts as the page shows them."""
        stats = self.stats
        return {
            "steps": stats.steps,
            "tokens": stats.tokens,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "sources": {DraftSource(source).name: count for source, count in sorted(self.sources.items())},
            "layers": {
                name: [counts.sent.drafted, counts.sent.accepted, counts.sent.output_tokens]
                for name, counts in sorted(stats.layers.items())
                if counts.sent.drafted
            },
            "positions": [
                [self.drafted[at], self.accepted[at]] for at in range(max(self.drafted, default=-1) + 1)
            ],
        }


def _depths(parents: Sequence[int]) -> list[int]:
    """Return the position of each token of a tree on its path."""
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found
