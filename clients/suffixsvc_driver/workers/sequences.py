"""Which KV sequence a request's context goes to: the one that holds most of it already.

Several requests are placed side by side, so a sequence that another one is using is not free; what it holds
can still be copied. Pure bookkeeping: the KV itself is the engine's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from suffixsvc_driver.chain import common_prefix

__all__ = ["KvSequence", "KvSequences", "Placement"]

#: a tail behind the common prefix that is at most this long is simply cut: it is cheap to lose. A longer one
#: is what another agent will ask for again
_CHEAP_TAIL: Final = 32


@dataclass(slots=True, eq=False)
class KvSequence:
    """One sequence of the context.

    Attributes:
        tokens: those whose KV it holds.
        used: when it was placed last, on a clock of placements.
    """

    index: int
    tokens: list[int] = field(default_factory=list)
    used: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a context goes: ``keep`` of its tokens are there, once copied from ``copy_from``."""

    sequence: KvSequence
    keep: int
    copy_from: KvSequence | None = None


class KvSequences:
    """A fixed number of sequences; the one unused for longest is replaced."""

    def __init__(self, count: int) -> None:
        self.all = [KvSequence(i) for i in range(count)]
        self._clock = 0

    def plan(self, context: Sequence[int], taken: Collection[int] = ()) -> Placement | None:
        """Choose a sequence that is not taken; None where all are. Its last token is left to be computed,
        since its logits are what drafting starts from. Changes nothing."""
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

    def carry_out(self, placement: Placement) -> None:
        """Note the placement: from now on the sequence holds what is kept."""
        sequence = placement.sequence
        source = placement.copy_from or sequence
        sequence.tokens = source.tokens[: placement.keep]
        self._clock += 1
        sequence.used = self._clock
