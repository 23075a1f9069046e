"""Placement of contexts on KV sequences: the sequence that holds the longest prefix is preferred.

Requests run concurrently: a sequence that another job uses is not free, but its KV can be copied. This module
records token lists only; the engine changes the KV itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from suffixsvc_driver.drafts.chain import common_prefix

__all__ = ["KvSequence", "KvSequences", "Placement"]

#: a tail after the common prefix of at most this length is cut, since it is cheap to recompute; a longer one
#: probably belongs to another agent's session
_CHEAP_TAIL: Final = 32


@dataclass(slots=True, eq=False)
class KvSequence:
    """One sequence of the llama.cpp context.

    Attributes:
        tokens: tokens whose KV it holds.
        used: number of the last placement on it.
    """

    index: int
    tokens: list[int] = field(default_factory=list)
    used: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """The sequence for a context; it holds ``keep`` of its tokens, after copying from ``copy_from``."""

    sequence: KvSequence
    keep: int
    copy_from: KvSequence | None = None


class KvSequences:
    """A fixed number of sequences; the least recently used one is replaced."""

    def __init__(self, count: int) -> None:
        self.all = [KvSequence(i) for i in range(count)]
        self._clock = 0

    def plan(self, context: Sequence[int], taken: Collection[int] = ()) -> Placement | None:
        """Choose a sequence that is not taken, or None. Changes nothing.

        The last context token always counts as missing: drafting starts from its logits.
        """
        free = [each for each in self.all if each.index not in taken]
        if not free:
            return None
        most = len(context) - 1
        shared = {each.index: min(most, common_prefix(each.tokens, context)) for each in self.all}
        best = max(self.all, key=lambda each: (shared[each.index], each.index not in taken, each.used))
        keep = shared[best.index]
        oldest = min(free, key=lambda each: (each.used, each.index))
        if keep == 0:
            return Placement(oldest, 0)
        if best.index not in taken and (len(best.tokens) - keep <= _CHEAP_TAIL or best is oldest):
            return Placement(best, keep)
        return Placement(oldest, keep, copy_from=best)

    def apply(self, placement: Placement) -> None:
        """Record a placement: from now on the sequence holds the kept tokens."""
        sequence = placement.sequence
        source = placement.copy_from or sequence
        sequence.tokens = source.tokens[: placement.keep]
        self._clock += 1
        sequence.used = self._clock
