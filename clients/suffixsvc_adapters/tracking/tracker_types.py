"""Types of the session tracker: its configuration, its counters, and one draft request."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from suffixsvc.config import validate_labels
from suffixsvc.types import Labels, TokenIds, VerifyCost
from suffixsvc.values import as_cost_curve
from suffixsvc_driver.settings.checks import as_integer, as_real


@dataclass(frozen=True, slots=True)
class TrackerConfig:
    """How an adapter drafts, and how many sequences it tracks.

    Attributes:
        max_draft_tokens: limit of a draft.
        verify_cost: cost of verifying each drafted token, in plain decode steps, or a curve (see
            ``Session.step``). 0 if the engine verifies a fixed width whatever is drafted.
        tree: draft trees instead of chains.
        vocab_size: drafts contain only token ids below this; None = any.
        max_sequences: live sequences; a new one evicts the least recently used one. Sequences that the engine
            reports as running are exempt, up to eight times this number.
        idle_seconds: a sequence that was not used for this long is closed.
        labels: stored with every output.
        reads: further namespaces to draft from.

    Raises:
        InvalidConfigError, InvalidCostError: a value out of range.
    """

    max_draft_tokens: int = 16
    verify_cost: VerifyCost = 0.02
    tree: bool = False
    vocab_size: int | None = None
    max_sequences: int = 64
    idle_seconds: float = 60.0
    labels: Labels = field(default_factory=dict)
    reads: Sequence[str] = ()

    def __post_init__(self) -> None:
        as_cost_curve(self.verify_cost, 0)
        validate_labels(self.labels)
        as_integer("max_draft_tokens", self.max_draft_tokens)
        as_integer("max_sequences", self.max_sequences)
        if self.vocab_size is not None:
            as_integer("vocab_size", self.vocab_size)
        as_real("idle_seconds", self.idle_seconds, sys.float_info.min, condition="a finite number > 0")


@dataclass(frozen=True, slots=True)
class TrackerStats:
    """Counters of a tracker.

    Attributes:
        asked: draft requests.
        answered: drafts with at least one token.
        opened: sessions opened.
        turns: times a sequence continued after text that its model did not emit.
        closed: sessions closed, whether or not their outputs could be stored.
        failures: errors of the backend, and malformed token ids.
        drafted, accepted: drafted tokens that the engine got, and those of them that were accepted.
        live: live sequences, now.
    """

    asked: int = 0
    answered: int = 0
    opened: int = 0
    turns: int = 0
    closed: int = 0
    failures: int = 0
    drafted: int = 0
    accepted: int = 0
    live: int = 0

    @property
    def acceptance(self) -> float:
        """Acceptance rate: accepted / drafted, 0 if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0


class DraftRequest(NamedTuple):
    """A request for a draft that continues one sequence.

    Attributes:
        token_ids: int32[n], all tokens from ``start`` on, the newest last.
        start: absolute position of the first of them. More than 0 only for engines that pass a tail, which
            have to name their sequences (``hint``).
        hint: a name that the engine has for the sequence: a request id, a row. The sequence of that name is
            tried first; if its tokens do not match, all sequences are searched.
        hint_is_unique: ``hint`` is a request id, which the engine gives to one sequence only: a new name
            is a new sequence, even if another sequence has the same tokens.
        written: number of last tokens that the model is known to have emitted.
        max_draft_tokens: less than the configured number; 0 sends the tokens without drafting.
        vocab_size: of this sequence's model, instead of the configured one.
        stop_before: the draft ends before any of these (end-of-sequence tokens that the model has to emit).
        stop_after: the draft ends with any of these (end-of-sequence tokens that a draft may contain).
        last: the sequence ends with these tokens. No draft is made, and its output is stored at once.
    """

    token_ids: TokenIds
    start: int = 0
    hint: Hashable = None
    hint_is_unique: bool = False
    written: int = 0
    max_draft_tokens: int | None = None
    vocab_size: int | None = None
    stop_before: frozenset[int] = frozenset()
    stop_after: frozenset[int] = frozenset()
    last: bool = False
