"""Sequences for the leaves of drafted trees, beside a slot's own. They share the slot's cells of the KV
cache, so the text up to the root exists once:

    before    slot     t0 .. tn-1                   branch   t0 .. tn-1
    batch     root tn in both, drafted tokens in the sequences of the leaves below them
    after     slot     t0 .. tn, the path taken     branch   t0 .. tn       (kept: the next tree needs less)
"""

from __future__ import annotations

from collections.abc import Sequence

from suffixsvc_driver.targets.llama_context import LlamaContext

__all__ = ["Branches"]


class Branches:
    """The leaves of one slot's trees at a time: leaf 0 is in the slot's own sequence, the next one in the
    first of ``ids``.

    Args:
        ids: sequences of a context with unified KV that nothing else uses.
    """

    def __init__(self, context: LlamaContext, ids: Sequence[int]) -> None:
        self._context = context
        self._ids = tuple(ids)
        self._slot = -1
        self._shared = [0] * len(self._ids)  # tokens of the slot that each holds
        self._joined = 0

    @property
    def most(self) -> int:
        """Leaves that a tree may have."""
        return 1 + len(self._ids)

    def sequences(self, slot: int) -> tuple[int, ...]:
        """Of leaf 0, 1, ... of a tree of this slot."""
        return (slot, *self._ids)

    def join(self, slot: int, start: int, leaves: int) -> None:
        """A tree of so many leaves is about to be computed behind the ``start`` tokens of ``slot``."""
        if slot != self._slot:
            self.release()
            self._slot = slot
        self._joined = leaves - 1
        if self._context.model.window:
            self._let_go_of_others(slot)
        for k in range(self._joined):
            if self._shared[k] < start:
                self._context.share(slot, self._ids[k], self._shared[k], start)
                self._shared[k] = start

    def _let_go_of_others(self, slot: int) -> None:
        """Layers with windows forget, and not what two sequences hold: llama.cpp couples only sequences that
        begin at the same position."""
        oldest = self._context.oldest(slot)
        for k in range(self._joined):
            if self._shared[k] and self._context.oldest(self._ids[k]) != oldest:
                self._context.cut(self._ids[k], 0)
                self._shared[k] = 0

    def settle(self, start: int, keep: int, leaf: int) -> None:
        """The tree was computed at ``start``: its root and ``keep`` - 1 tokens on the way to ``leaf``
        stay."""
        context, slot, root = self._context, self._slot, start + 1
        if leaf == 0:
            context.cut(slot, start + keep)
        else:
            context.cut(slot, root)
            if keep > 1:
                context.share(self._ids[leaf - 1], slot, root, start + keep)
        for k in range(self._joined):
            context.cut(self._ids[k], root)
            self._shared[k] = root

    def release(self) -> None:
        """Hold nothing: the slot is about to be cut, or to be used for another text."""
        for k, shared in enumerate(self._shared):
            if shared:
                self._context.cut(self._ids[k], 0)
                self._shared[k] = 0
