"""Slot cache: a small prefix cache that assigns prompts to KV sequences.

Agents of a pipeline share a system prompt and differ after it. A new prompt gets the slot with the longest
common prefix; if using that slot would destroy the tail that another agent still needs, the prefix is copied
to the least recently used slot, which is far cheaper than prefilling. A prompt without a common prefix gets
the least recently used slot.

Only prompts of one principal share KV: the time of a prefill would tell another principal that a prompt with
this prefix had been computed.

This module records tokens only; the caller changes the KV itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from suffixsvc_driver.drafts.chain import common_prefix
from suffixsvc_driver.targets import Batch

#: a tail after the common prefix of at most this length is cut, since it is cheap to recompute
CHEAP_TAIL: Final = 32


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence: the tokens in its KV, whose they are, and the batches that computed them."""

    index: int
    principal: str = ""
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
    """The slot for a prompt of ``principal``; it holds ``keep`` of its tokens, after copying from slot
    ``copy_from``."""

    slot: Slot
    keep: int
    copy_from: Slot | None = None
    principal: str = ""

    @property
    def source(self) -> Slot:
        """The slot that holds the kept tokens."""
        return self.copy_from or self.slot


class SlotCache:
    """A fixed number of slots; the least recently used one is replaced.

    Args:
        whole: a slot is reused only for prompts that continue all of its tokens, since it cannot be cut.
        copies: whether the KV of a slot can be copied to another.
    """

    def __init__(self, count: int, *, whole: bool = False, copies: bool = True) -> None:
        self.slots = [Slot(i) for i in range(count)]
        self.copies, self._whole = copies, whole
        self._clock = 0

    def place(
        self, prompt: Sequence[int], free: Collection[int] | None = None, principal: str = ""
    ) -> Placement:
        """Choose the slot for a prompt; at least its last token counts as missing. Changes nothing: see
        :meth:`apply`.

        Args:
            free: slots that may be chosen; the others are in use and can only be copied from. None = all.
            principal: the owner of the prompt; KV of other principals is not read.
        """
        usable = self.slots if free is None else [self.slots[i] for i in free]
        oldest = self.oldest(usable)
        readable = [s for s in (self.slots if self.copies else usable) if s.principal == principal]
        if not readable:
            return Placement(oldest, 0, principal=principal)
        shared = {slot.index: self._shared(slot, prompt) for slot in readable}
        best = max(readable, key=lambda slot: (shared[slot.index], slot in usable, slot.last_used))
        keep = shared[best.index]
        if keep == 0:
            return Placement(oldest, 0, principal=principal)
        long_tail = len(best.tokens) - keep > CHEAP_TAIL
        if best not in usable or (self.copies and long_tail and oldest is not best):
            return Placement(oldest, keep, best, principal)
        return Placement(best, keep, principal=principal)

    def _shared(self, slot: Slot, prompt: Sequence[int]) -> int:
        """Return the number of the prompt's tokens that the slot's KV can serve."""
        shared = min(len(prompt) - 1, common_prefix(slot.tokens, prompt))
        return 0 if self._whole and shared < len(slot.tokens) else shared

    def oldest(self, usable: Collection[Slot] | None = None) -> Slot:
        """Return an empty slot, else the least recently used one."""
        return min(
            self.slots if usable is None else usable,
            key=lambda slot: (bool(slot.tokens), slot.last_used, slot.index),
        )

    def apply(self, placement: Placement) -> None:
        """Record a placement; the caller changes the KV."""
        slot, source = placement.slot, placement.source
        if source is not slot:
            slot.tokens, slot.history = list(source.tokens), list(source.history)
        slot.truncate(placement.keep)
        slot.principal = placement.principal
        self.touch(slot)

    def touch(self, slot: Slot) -> None:
        """Record a use of a slot."""
        self._clock += 1
        slot.last_used = self._clock
