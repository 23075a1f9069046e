"""KV sequences for the leaves of drafted trees, beside a slot's own.

They share the slot's cells of the KV cache, so the text up to the root is stored once:

    before    slot     t0 .. tn-1                     branch   t0 .. tn-1
    batch     root tn in both, drafted tokens in the sequences of the leaves below them
    after     slot     t0 .. tn, the accepted path    branch   t0 .. tn     (reused by the next tree)
"""

from __future__ import annotations

from collections.abc import Sequence

from suffixsvc_driver.targets.llama.context import LlamaContext


class Branches:
    """Sequences of the leaves of one slot's tree: leaf 0 is in the slot's own sequence, the next one in the
    first of ``ids``.

    Args:
        ids: sequences of a context with unified KV, reserved for this object.
    """

    def __init__(self, context: LlamaContext, ids: Sequence[int]) -> None:
        self._context = context
        self._ids = tuple(ids)
        #: largest number of leaves of a tree
        self.max_leaves = 1 + len(self._ids)
        self._slot = -1
        self._shared = [0] * len(self._ids)  # number of the slot's tokens that each holds
        self._joined = 0

    def sequences(self, slot: int) -> tuple[int, ...]:
        """Return the sequences of leaf 0, 1, ... of a tree of this slot."""
        return (slot, *self._ids)

    def join(self, slot: int, start: int, leaves: int) -> None:
        """Share the first ``start`` tokens of ``slot`` with the sequences of a tree of ``leaves`` leaves."""
        if slot != self._slot:
            self.release()
            self._slot = slot
        self._joined = leaves - 1
        if self._context.model.window:
            self._drop_diverged(slot)
        for k in range(self._joined):
            if self._shared[k] < start:
                self._context.share(slot, self._ids[k], self._shared[k], start)
                self._shared[k] = start

    def _drop_diverged(self, slot: int) -> None:
        """Drop branches that begin at another position: windowed layers evict tokens, and llama.cpp couples
        only sequences that begin at the same position."""
        oldest = self._context.oldest(slot)
        for k in range(self._joined):
            if self._shared[k] and self._context.oldest(self._ids[k]) != oldest:
                self._context.cut(self._ids[k], 0)
                self._shared[k] = 0

    def commit(self, root: int, keep: int, leaf: int) -> None:
        """Keep the root, at position ``root``, and the first ``keep`` tokens of the path to ``leaf``."""
        context, slot, end = self._context, self._slot, root + 1
        if leaf == 0:
            context.cut(slot, end + keep)
        else:
            context.cut(slot, end)
            if keep:
                context.share(self._ids[leaf - 1], slot, end, end + keep)
        for k in range(self._joined):
            context.cut(self._ids[k], end)
            self._shared[k] = end

    def release(self) -> None:
        """Drop all shared cells, before the slot is cut or used for another text."""
        for k, shared in enumerate(self._shared):
            if shared:
                self._context.cut(self._ids[k], 0)
                self._shared[k] = 0
