"""Counting: what each layer offered, what was sent, what the target kept.

Words, as everywhere in this project: drafted = sent to the target; accepted = the target agreed;
acceptance rate = accepted / drafted; MAT = tokens written per target step, the target's own included.
Hit rates are counted twice: per layer (who was asked) and per kind of evidence (whose text it was:
"suffix" is another session's output, "prompt" the session's own prompt and output).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from suffixsvc.types import DraftSource
from suffixsvc_driver.events import Verify

__all__ = ["EVIDENCE", "HitCounts", "LayerCounts", "Stats"]

#: DraftSource -> kind of evidence
EVIDENCE: Final[Mapping[int, str]] = {
    DraftSource.NONE: "target",
    DraftSource.SESSION: "prompt",
    DraftSource.PROMPT_LOOKUP: "prompt",
    DraftSource.NAMESPACE: "suffix",
    DraftSource.CORPUS: "suffix",
    DraftSource.DRAFT_MODEL: "draft-model",
}


@dataclass(slots=True)
class HitCounts:
    """What was sent from one origin and what became of it."""

    drafted: int = 0  #: tokens sent to the target
    accepted: int = 0  #: of those, tokens the target agreed with
    steps_with_draft: int = 0
    steps_with_hit: int = 0  #: steps with at least one accepted token
    output_tokens: int = 0  #: tokens of the output that came from here

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    def count(self, drafted: int, accepted: int, written: int) -> None:
        """One step."""
        self.drafted += drafted
        self.accepted += accepted
        self.output_tokens += written
        self.steps_with_draft += drafted > 0
        self.steps_with_hit += accepted > 0

    def add(self, other: HitCounts) -> None:
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.output_tokens += other.output_tokens
        self.steps_with_draft += other.steps_with_draft
        self.steps_with_hit += other.steps_with_hit


@dataclass(slots=True)
class LayerCounts:
    """A layer's own book: what it was asked and answered, beside what was sent of it."""

    asked: int = 0
    answered: int = 0  #: answers with at least one token
    offered: int = 0  #: tokens in those answers
    failures: int = 0  #: exceptions and answers that did not come, counted as empty drafts
    junk: int = 0  #: answers of which something had to be cut off
    forbidden: int = 0  #: tokens that a grammar forbids or that hung on such, cut off before all else
    seconds: float = 0.0
    sent: HitCounts = field(default_factory=HitCounts)

    def add(self, other: LayerCounts) -> None:
        self.asked += other.asked
        self.answered += other.answered
        self.offered += other.offered
        self.failures += other.failures
        self.junk += other.junk
        self.forbidden += other.forbidden
        self.seconds += other.seconds
        self.sent.add(other.sent)


@dataclass(slots=True)
class Stats:
    """Of one generation, or of many added up."""

    steps: int = 0
    tokens: int = 0
    padding: int = 0  #: tokens sent only to reach a cheaper width
    replayed: int = 0  #: tokens computed again, because a recurrent state could not be cut between them
    cost: float = 0.0  #: plain decode steps that the steps should have cost by the curve, asking included
    layers: dict[str, LayerCounts] = field(default_factory=dict)
    evidence: dict[str, HitCounts] = field(default_factory=dict)

    def layer(self, name: str) -> LayerCounts:
        return self.layers.setdefault(name, LayerCounts())

    def count_step(
        self, sent: Verify, accepted: int, written: Iterable[int], path: Sequence[int] = ()
    ) -> None:
        """A target step.

        Args:
            sent: what was verified.
            accepted: how many of its drafted tokens the target agreed with, padding left out.
            written: DraftSource of each token written.
            path: which drafted tokens these were; empty for the first ones.
        """
        origin = list(written)
        sources = sent.sources[: len(sent.sources) - sent.padding]
        self.steps += 1
        self.tokens += len(origin)
        self.padding += sent.padding
        if not sources:  # a plain step, where every microsecond is the driver's own
            self.evidence.setdefault("target", HitCounts()).output_tokens += len(origin)
            return
        own = sum(source != DraftSource.NONE for source in origin)
        path = path or range(accepted)
        if sent.layers:
            whose = sent.layers[: len(sources)]
            right = [whose[i] for i in path]
            for name in dict.fromkeys(whose):
                self.layer(name).sent.count(whose.count(name), right.count(name), right[:own].count(name))
        else:
            first = sent.continued_at if sent.continued_by else len(sources)
            self.layer(sent.layer).sent.count(first, min(first, accepted), min(first, own))
            if sent.continued_by:
                behind = len(sources) - first
                self.layer(sent.continued_by).sent.count(
                    behind, max(0, accepted - first), max(0, own - first)
                )
        kinds = [EVIDENCE[s] for s in sources]
        kept = [kinds[i] for i in path]
        output = [EVIDENCE[s] for s in origin]
        for kind in {*kinds, *output}:
            counts = self.evidence.setdefault(kind, HitCounts())
            counts.count(kinds.count(kind), kept.count(kind), output.count(kind))

    @property
    def drafted(self) -> int:
        return sum(c.drafted for c in self.evidence.values())

    @property
    def accepted(self) -> int:
        return sum(c.accepted for c in self.evidence.values())

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mat(self) -> float:
        """Mean accepted tokens per target step, the target's own token included."""
        return self.tokens / self.steps if self.steps else 0.0

    def hit_rates(self, kind: str) -> tuple[float, float, float]:
        """Of a kind of evidence: share of steps with a draft, share of steps with an accepted token,
        share of output tokens."""
        counts = self.evidence.get(kind, HitCounts())
        steps, tokens = max(1, self.steps), max(1, self.tokens)
        return counts.steps_with_draft / steps, counts.steps_with_hit / steps, counts.output_tokens / tokens

    def layer_hit_rates(self, name: str) -> tuple[float, float, float]:
        """The same of a layer: share of steps in which it had a draft (sent or not), in which a token
        of it was accepted, and its share of the output tokens."""
        counts = self.layers.get(name, LayerCounts())
        steps, tokens = max(1, self.steps), max(1, self.tokens)
        return counts.answered / steps, counts.sent.steps_with_hit / steps, counts.sent.output_tokens / tokens

    def add(self, other: Stats) -> None:
        """Add another generation's counts."""
        self.steps += other.steps
        self.tokens += other.tokens
        self.padding += other.padding
        self.replayed += other.replayed
        self.cost += other.cost
        for name, layer in other.layers.items():
            self.layer(name).add(layer)
        for kind, counts in other.evidence.items():
            self.evidence.setdefault(kind, HitCounts()).add(counts)

    def to_json(self) -> dict[str, Any]:
        """Plain data, rates included."""
        return {
            **asdict(self),
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": self.acceptance_rate,
            "mat": self.mat,
        }
