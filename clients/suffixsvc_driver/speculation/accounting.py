"""Statistics of generations: queries and tokens, per layer and per kind of evidence.

    drafted            tokens sent to the target
    accepted           drafted tokens that the target agreed with
    acceptance rate    accepted / drafted
    MAT                mean accepted tokens per step, the bonus token included

The same tokens are counted per layer (the layer that was queried) and per kind of evidence (the text that
they come from): "suffix" is the output of another session, "prompt" the session's own prompt and output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self

from suffixsvc.types import DraftSource
from suffixsvc_driver.drafts.events import Verify

#: DraftSource -> kind of evidence
EVIDENCE: Final[Mapping[int, str]] = {
    DraftSource.NONE: "target",
    DraftSource.SESSION: "prompt",
    DraftSource.PROMPT_LOOKUP: "prompt",
    DraftSource.NAMESPACE: "suffix",
    DraftSource.CORPUS: "suffix",
    DraftSource.DRAFT_MODEL: "draft-model",
    DraftSource.GRAMMAR: "grammar",
    DraftSource.PREDICTION: "prediction",
}
_NONE: Final = int(DraftSource.NONE)


@dataclass(slots=True)
class _Counts:
    """Numbers, counts, and tables of counts."""

    def add(self, other: Self) -> None:
        """Add the counts of ``other``."""
        for each in fields(self):
            mine, added = getattr(self, each.name), getattr(other, each.name)
            if isinstance(added, _Counts):
                mine.add(added)
            elif isinstance(added, dict):
                for name, counts in added.items():
                    mine.setdefault(name, type(counts)()).add(counts)
            else:
                setattr(self, each.name, mine + added)


@dataclass(slots=True)
class HitCounts(_Counts):
    """Drafted and accepted tokens of one origin."""

    drafted: int = 0  #: tokens sent to the target
    accepted: int = 0  #: drafted tokens that the target agreed with
    steps_with_draft: int = 0
    steps_with_hit: int = 0  #: steps with at least one accepted token
    output_tokens: int = 0  #: tokens of the output from this origin

    @property
    def acceptance_rate(self) -> float:
        """``accepted / drafted``; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def count(self, drafted: int, accepted: int, written: int) -> None:
        """Add the counts of a step."""
        self.drafted += drafted
        self.accepted += accepted
        self.output_tokens += written
        self.steps_with_draft += drafted > 0
        self.steps_with_hit += accepted > 0


@dataclass(slots=True)
class LayerCounts(_Counts):
    """Queries to a layer, its answers, and what was sent of them."""

    asked: int = 0  #: queries
    answered: int = 0  #: answers with at least one token
    offered: int = 0  #: tokens of the answers
    failures: int = 0  #: exceptions and missing answers, treated as empty drafts
    junk: int = 0  #: answers with invalid parts, which were removed
    forbidden: int = 0  #: tokens removed because a grammar forbids them or a token before them
    seconds: float = 0.0  #: of all queries
    sent: HitCounts = field(default_factory=HitCounts)


@dataclass(slots=True)
class Stats(_Counts):
    """Statistics of one generation, or the sum of several."""

    steps: int = 0  #: target steps
    tokens: int = 0  #: emitted tokens
    padding: int = 0  #: tokens sent only to reach a cheaper width
    replayed: int = 0  #: tokens recomputed because a recurrent state could not be truncated
    cost: float = 0.0  #: of the steps by the cost curve and of the queries, in plain steps
    layers: dict[str, LayerCounts] = field(default_factory=dict)
    evidence: dict[str, HitCounts] = field(default_factory=dict)

    def layer(self, name: str) -> LayerCounts:
        """Return the counts of a layer, created when missing."""
        counts = self.layers.get(name)
        if counts is None:
            counts = self.layers[name] = LayerCounts()
        return counts

    def _counts_of(self, kind: str) -> HitCounts:
        counts = self.evidence.get(kind)
        if counts is None:
            counts = self.evidence[kind] = HitCounts()
        return counts

    def count_step(self, sent: Verify, accepted: int, path: Sequence[int], origin: Sequence[int]) -> int:
        """Add the counts of a target step.

        Args:
            sent: the verified draft.
            accepted: drafted tokens that the target agreed with, padding included.
            path: of the emitted tokens, see :meth:`Verify.path`.
            origin: DraftSource of each emitted token.

        Returns:
            Drafted tokens that the target agreed with, padding excluded.
        """
        drafted = sent.drafted
        sources = sent.sources[:drafted]
        accepted = sent.agreed(path, accepted)
        self.steps += 1
        self.tokens += len(origin)
        self.padding += sent.padding
        own = len(origin) - origin.count(_NONE)
        first = sources[0] if sources else _NONE
        if sent.layers or sent.continued_by or sources.count(first) != drafted:
            agreed = path[:accepted] if sent.parents else range(accepted)
            self._count_origins(sent, sources, agreed, origin, own)
            return accepted
        if sources:
            self.layer(sent.layer).sent.count(drafted, accepted, own)
            self._counts_of(EVIDENCE[first]).count(drafted, accepted, own)
        if own < len(origin):
            self._counts_of("target").output_tokens += len(origin) - own
        return accepted

    def _count_origins(
        self, sent: Verify, sources: Sequence[int], agreed: Sequence[int], origin: Sequence[int], own: int
    ) -> None:
        """Add the counts of a draft of several layers or kinds of evidence.

        Args:
            sent: the verified draft.
            sources: DraftSource of its tokens, padding excluded.
            agreed: indices of the tokens that the target agreed with.
            origin: DraftSource of each emitted token.
            own: number of emitted tokens that were drafted.
        """
        drafted_by = sent.layers[: len(sources)]
        if not drafted_by:
            first = sent.continued_at if sent.continued_by else len(sources)
            drafted_by = (sent.layer,) * first + (sent.continued_by,) * (len(sources) - first)
        accepted_by = [drafted_by[i] for i in agreed]
        for name in dict.fromkeys(drafted_by):
            counts = self.layer(name).sent
            counts.count(drafted_by.count(name), accepted_by.count(name), accepted_by[:own].count(name))
        kinds = [EVIDENCE[s] for s in sources]
        accepted_kinds = [kinds[i] for i in agreed]
        output = [EVIDENCE[s] for s in origin]
        for kind in dict.fromkeys([*kinds, *output]):
            counts = self._counts_of(kind)
            counts.count(kinds.count(kind), accepted_kinds.count(kind), output.count(kind))

    @property
    def drafted(self) -> int:
        """Drafted tokens of all kinds of evidence."""
        return sum(c.drafted for c in self.evidence.values())

    @property
    def accepted(self) -> int:
        """Accepted tokens of all kinds of evidence."""
        return sum(c.accepted for c in self.evidence.values())

    @property
    def acceptance_rate(self) -> float:
        """``accepted / drafted``; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mat(self) -> float:
        """Mean accepted tokens per step, the bonus token included."""
        return self.tokens / self.steps if self.steps else 0.0

    def hit_rates(self, kind: str) -> tuple[float, float, float]:
        """Return the hit rates of a kind of evidence.

        Shares of the steps with a draft, of the steps with an accepted token, and of the output tokens.
        """
        counts = self.evidence.get(kind, HitCounts())
        return self._rates(counts.steps_with_draft, counts)

    def layer_hit_rates(self, name: str) -> tuple[float, float, float]:
        """Return the hit rates of a layer.

        Shares of the steps with an answer (sent or not), of the steps with an accepted token, and of
        the output tokens.
        """
        counts = self.layers.get(name, LayerCounts())
        return self._rates(counts.answered, counts.sent)

    def _rates(self, drafts: int, counts: HitCounts) -> tuple[float, float, float]:
        steps, tokens = max(1, self.steps), max(1, self.tokens)
        return drafts / steps, counts.steps_with_hit / steps, counts.output_tokens / tokens

    def to_json(self) -> dict[str, Any]:
        """Return JSON data, rates included."""
        return {
            **asdict(self),
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": self.acceptance_rate,
            "mat": self.mat,
        }
