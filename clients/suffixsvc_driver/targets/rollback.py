"""How a slot goes back to before the tokens that were not accepted.

Attention keeps something for each token and can simply be cut. A recurrent state has swallowed the tokens:
some architectures keep snapshots of the last ones in llama.cpp, for the others the state is saved before a
batch with drafts and put back behind it. Then the accepted tokens have to be computed once more; they go
in front of the next batch, without logits: what was verified is never verified again, for another width
of batch may round differently and disagree.

Whether a state can be cut is found out by trying: llama_memory_can_shift says nothing about it.
"""

from __future__ import annotations

import ctypes
from typing import Protocol

from suffixsvc.errors import ModelError
from suffixsvc_driver.targets.llama_context import LlamaContext, Outputs

__all__ = ["Checkpoints", "Cut", "Rollback", "Snapshots", "find_rollback"]


class Rollback(Protocol):
    """Rolls slots of a context back. One batch at a time: ``before``, the batch, then ``after``."""

    @property
    def replays(self) -> bool:
        """Whether accepted tokens have to be computed again after a draft that was accepted in part."""

    @property
    def cuts_anywhere(self) -> bool:
        """Whether a slot may be cut at any position of its text, as a shorter prompt wants."""

    def before(self, slot: int, drafts: bool) -> None:
        """A batch is about to be computed; ``drafts``: some of its tokens may have to go again."""

    def after(self, slot: int, start: int, keep: int) -> int:
        """A batch was computed at ``start``, of which only the first ``keep`` tokens stay: the position that
        the slot really holds now, at most ``start + keep``.

        Raises:
            ModelError: it cannot go back so far. The slot is as it was.
        """


class Cut:
    """Attention: each token's keys and values can go by themselves."""

    replays = False
    cuts_anywhere = True

    def __init__(self, context: LlamaContext) -> None:
        self._context = context

    def before(self, slot: int, drafts: bool) -> None:
        pass

    def after(self, slot: int, start: int, keep: int) -> int:
        self._context.cut(slot, start + keep)
        return start + keep


class Snapshots(Cut):
    """A recurrent state that llama.cpp keeps a snapshot of behind each token of the last batch, as many as
    ``context.snapshots``. The batch's first token has to stay: asked to go back before it, llama.cpp says
    yes and puts back a state of some earlier batch."""

    cuts_anywhere = False

    def after(self, slot: int, start: int, keep: int) -> int:
        if keep < 1:
            raise ModelError(
                "a state with snapshots cannot go back before its last batch",
                expected="at least one token that stays",
                got=keep,
            )
        return super().after(slot, start, keep)


class Checkpoints:
    """A recurrent state without snapshots: saved before a batch with drafts, put back where not all of them
    were accepted."""

    replays = True
    cuts_anywhere = False

    def __init__(self, context: LlamaContext) -> None:
        self._context = context
        self._saved: dict[int, ctypes.Array[ctypes.c_uint8]] = {}

    def before(self, slot: int, drafts: bool) -> None:
        self._saved.pop(slot, None)
        if drafts:
            self._saved[slot] = self._context.save_state(slot)

    def after(self, slot: int, start: int, keep: int) -> int:
        state = self._saved.pop(slot, None)
        # a slot that was empty has no state to put back; cutting all of it always works
        if state is not None and start > 0:
            self._context.load_state(slot, state)
        self._context.cut(slot, start)
        return start


def find_rollback(context: LlamaContext) -> Rollback:
    """What works on this model, found out on slot 0, which must be empty and is empty again afterwards."""
    context.decode((0, 0), 0, 0, Outputs.NONE)
    can_be_cut = context.try_cut(0, 1)
    context.cut(0, 0)
    if not can_be_cut:
        return Checkpoints(context)
    return Snapshots(context) if context.snapshots else Cut(context)
