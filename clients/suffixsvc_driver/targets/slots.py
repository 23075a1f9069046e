"""Slot cache: a small prefix cache that assigns prompts to KV sequences.

Agents of a pipeline share a system prompt and differ after it. A new prompt gets the slot with the longest
common prefix; if using that slot would destroy the tail that another agent still needs, the prefix is copied
to the least recently used slot, which is far cheaper than prefilling. This module records tokens only; the
caller changes the KV itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from suffixsvc_driver.drafts.chain import common_prefix
from suffixsvc_driver.targets import Batch

__all__ = ["Placement", "Slot", "SlotCache"]

#: a tail after the common prefix of at most this length is cut, since it is cheap to recompute
_CHEAP_TAIL = 32


@dataclass(slots=True)
class Slot:
    """One sequence: the tokens in its KV, and the batches that computed them."""

    index: int
    tokens: list[int] = field(default_factory=list)
    history: list[Batch] = field(default_factory=list)
    last_used: int = 0

    def truncate(self, keep: int) -> None:
        """Remove everything from position ``keep`` on."""
        del self.tokens[keep:]
        while self.history and self.history[-1].start >= keep:
            self.history.pop()

    def extend(self, batch: Batch, keep: int) -> None:
        """Record a batch computed at the slot's end, of which the first ``keep`` tokens are kept; of a tree,
        ``batch.kept``."""
        self.history.append(batch)
        if batch.parents:
            head = len(batch.token_ids) - len(batch.parents)
            self.tokens.extend(batch.token_ids[:head])
            self.tokens.extend(batch.token_ids[head + i] for i in batch.kept)
        else:
            self.tokens.extend(batch.token_ids[:keep])


@dataclass(frozen=True, slots=True)
class Placement:
    """The slot for a prompt; it holds ``keep`` of its tokens, after copying from slot ``copy_from``."""

    slot: int
    keep: int
    copy_from: int | None = None


class SlotCache:
    """A fixed number of slots; the least recently used one is replaced.

    Args:
        whole: a slot is reused only for prompts that continue all of its tokens, since it cannot be cut.
        copies: whether the KV of a slot can be copied to another.
    """

    def __init__(self, count: int, *, whole: bool = False, copies: bool = True) -> None:
        self.slots = [Slot(i) for i in range(count)]
        self._whole, self._copies = whole, copies
        self._clock = 0

    def place(self, prompt: Sequence[int], free: Collection[int] | None = None) -> Placement:
        """Choose the slot for a prompt; at least its last token counts as missing. Changes nothing: see
        :meth:`apply`.

        Args:
            free: slots that may be chosen; the others are in use and can only be copied from. None = all.
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

    def evict_oldest(self) -> Placement:
        """Return a placement on the least recently used slot that reuses no tokens."""
        return Placement(min(self.slots, key=lambda slot: (slot.last_used, slot.index)).index, 0)

    def apply(self, placement: Placement) -> Slot:
        """Record a placement and return its slot; the caller changes the KV."""
        slot = self.slots[placement.slot]
        if placement.copy_from is not None:
            source = self.slots[placement.copy_from]
            slot.tokens, slot.history = list(source.tokens), list(source.history)
        slot.truncate(placement.keep)
        self._clock += 1
        slot.last_used = self._clock
        return slot

    def reset_recency(self) -> None:
        """Reset the order of use, after all slots were emptied."""
        self._clock = 0
        for slot in self.slots:
            slot.last_used = 0
