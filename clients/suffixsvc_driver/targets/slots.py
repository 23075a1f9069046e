"""Which KV sequence a prompt goes to: a small prefix cache, pure bookkeeping.

Agents of a pipeline share a system prompt and differ behind it. A new prompt goes to the slot with the
longest common prefix; where using it would destroy what an agent still needs, its prefix is copied to
the slot unused for longest, which is far cheaper than prefilling.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from suffixsvc_driver.chain import common_prefix
from suffixsvc_driver.targets import Batch

__all__ = ["Placement", "Slot", "SlotCache"]

#: a slot whose tail behind the common prefix is at most this long is simply cut: it is cheap to lose
_CHEAP_TAIL = 32


@dataclass(slots=True)
class Slot:
    """One sequence: the tokens in its KV, and the batches they were computed in."""

    index: int
    tokens: list[int] = field(default_factory=list)
    history: list[Batch] = field(default_factory=list)
    last_used: int = 0

    def truncate(self, keep: int) -> None:
        """Forget everything from position ``keep`` on."""
        del self.tokens[keep:]
        while self.history and self.history[-1].start >= keep:
            self.history.pop()

    def extend(self, batch: Batch, keep: int) -> None:
        """A batch was computed at the slot's end; its first ``keep`` tokens stay, of a tree those that it
        says."""
        self.history.append(batch)
        if batch.parents:
            head = len(batch.token_ids) - len(batch.parents)
            self.tokens.extend(batch.token_ids[:head])
            self.tokens.extend(batch.token_ids[head + i] for i in batch.kept)
        else:
            self.tokens.extend(batch.token_ids[:keep])


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a prompt goes: ``keep`` tokens are there already, once copied from slot ``copy_from``."""

    slot: int
    keep: int
    copy_from: int | None = None


class SlotCache:
    """A fixed number of slots, the least recently used one being replaced.

    Args:
        whole: a slot serves only a prompt that goes on behind all it holds: its state cannot be cut.
        copies: what one slot holds can be copied to another.
    """

    def __init__(self, count: int, *, whole: bool = False, copies: bool = True) -> None:
        self.slots = [Slot(i) for i in range(count)]
        self._whole, self._copies = whole, copies
        self._clock = 0

    def place(self, prompt: Sequence[int], free: Collection[int] | None = None) -> Placement:
        """Choose the slot for a prompt. At least its last token is left to be computed. Only decides;
        the slots change when the caller carries it out.

        Args:
            free: slots it may go to; the others are in use, and can only be copied from. None = all.
        """
        usable = range(len(self.slots)) if free is None else free
        readable = range(len(self.slots)) if self._copies else usable
        most = len(prompt) - 1
        shared = {i: min(most, common_prefix(self.slots[i].tokens, prompt)) for i in readable}
        if self._whole:
            shared = {i: n if n == len(self.slots[i].tokens) else 0 for i, n in shared.items()}
        best = max(readable, key=lambda i: (shared[i], i in usable, self.slots[i].last_used))
        keep = shared[best]
        tail = len(self.slots[best].tokens) - keep
        oldest = min(usable, key=lambda i: (self.slots[i].last_used, i))
        if keep == 0:
            return Placement(oldest, 0)
        if best not in usable or (self._copies and tail > _CHEAP_TAIL and oldest != best):
            return Placement(oldest, keep, copy_from=best)
        return Placement(best, keep)

    def emptied(self) -> Placement:
        """The slot unused for longest, with nothing in it."""
        return Placement(min(self.slots, key=lambda slot: (slot.last_used, slot.index)).index, 0)

    def carry_out(self, placement: Placement) -> Slot:
        """Update the book for a placement; the KV itself is the caller's."""
        slot = self.slots[placement.slot]
        if placement.copy_from is not None:
            source = self.slots[placement.copy_from]
            slot.tokens, slot.history = list(source.tokens), list(source.history)
        slot.truncate(placement.keep)
        self._clock += 1
        slot.last_used = self._clock
        return slot

    def forget_use(self) -> None:
        """Which slot was used when does not matter any more: all are empty."""
        self._clock = 0
        for slot in self.slots:
            slot.last_used = 0
