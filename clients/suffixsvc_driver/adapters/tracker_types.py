"""What goes into a session tracker and what can be read off it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from suffixsvc.config import validate_labels
from suffixsvc.errors import InvalidConfigError
from suffixsvc.types import Labels, TokenIds, VerifyCost
from suffixsvc.values import as_cost_curve

__all__ = ["Asked", "TrackerConfig", "TrackerStats"]


@dataclass(frozen=True, slots=True)
class TrackerConfig:
    """How an adapter drafts, and what it remembers of running sequences.

    Attributes:
        max_draft_tokens: at most so many tokens a draft.
        verify_cost: what each drafted token costs the engine, in plain decode steps, or a curve (see
            ``Session.step``). 0 where the engine verifies a fixed width whatever is drafted.
        tree: draft trees instead of chains.
        vocab_size: no token id from here on is handed out; None = any.
        max_sequences: sequences alive at a time; the one least recently asked about is closed for a new one.
            Those that the engine says are running are spared, up to eight times this number.
        idle_seconds: one that nobody asked about for so long is closed.
        labels: kept with every output.
        reads: further namespaces to draft from.
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
        for name in ("max_draft_tokens", "vocab_size", "max_sequences"):
            value = getattr(self, name)
            if not (value is None and name == "vocab_size") and (type(value) is not int or value < 1):
                raise InvalidConfigError(
                    f"{name} makes no sense", expected="an int >= 1", got=repr(value)[:80]
                )
        seconds = self.idle_seconds
        if type(seconds) not in (int, float) or not (math.isfinite(seconds) and seconds > 0):
            raise InvalidConfigError(
                "idle_seconds makes no sense", expected="a number of seconds > 0", got=repr(seconds)[:80]
            )


@dataclass(frozen=True, slots=True)
class TrackerStats:
    """What a tracker has counted.

    Attributes:
        asked: drafts that were asked for.
        answered: with at least one token.
        opened: sessions.
        turns: times a session went on behind text that its model did not write.
        closed: sessions that ended, whatever became of what they wrote.
        failures: what the backend raised, and token ids that are none.
        drafted, accepted: tokens handed out, and tokens of them that came true.
        live: sequences now.
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
        """accepted / drafted, 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0


class Asked(NamedTuple):
    """One sequence an engine wants a draft for.

    Attributes:
        token_ids: int32[n], all tokens from ``start`` on, the newest last.
        start: absolute position of the first of them. More than 0 only for engines that show a tail: those
            have to name their sequences (``hint``).
        hint: a name the engine has for the sequence: a request id, a row. Tried first, never trusted: what
            does not continue that sequence's tokens is looked for among all.
        named: ``hint`` is a request id, which the engine gives to one sequence only: a new name is a new
            sequence, even if another one has the same tokens.
        written: how many of the last tokens the model has written for sure.
        max_draft_tokens: less than the configured number; 0 only tells.
        vocab_size: of this sequence's model, instead of the configured one.
        stop_before: the draft ends before any of these: ends of text that the model itself shall write.
        stop_after: the draft ends with any of these: ends of text that a draft may contain.
        last: the sequence ends with these tokens. No draft is made, and its output is kept at once.
    """

    token_ids: TokenIds
    start: int = 0
    hint: Hashable = None
    named: bool = False
    written: int = 0
    max_draft_tokens: int | None = None
    vocab_size: int | None = None
    stop_before: frozenset[int] = frozenset()
    stop_after: frozenset[int] = frozenset()
    last: bool = False
