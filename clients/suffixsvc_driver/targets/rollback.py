"""Rollback of a slot to the state before rejected tokens.

An attention KV cache has entries per token and can be truncated. A recurrent state cannot: for some
architectures llama.cpp keeps snapshots of the last tokens, for the others the state is saved before a batch
with drafts and restored after it. The accepted tokens are then replayed at the start of the next batch,
without logits: they are never verified again, since a batch of another width may round differently.

Whether a state can be cut is determined by trying: llama_memory_can_shift does not report it.
"""

from __future__ import annotations

import enum

from suffixsvc.errors import ModelError
from suffixsvc_driver.targets.llama.context import LlamaContext, State


class RollbackMethod(enum.StrEnum):
    """Rollback method of a context's slots."""

    #: of attention KV caches: truncation at any token
    TRUNCATE = "truncate"
    #: of recurrent states with snapshots after each of the last batch's tokens, up to ``context.snapshots``.
    #: The batch's first token has to be kept: llama.cpp reports success for a rollback before it, but
    #: restores the state of some earlier batch
    SNAPSHOT = "snapshot"
    #: of recurrent states without snapshots: saved before a batch with drafts, restored if not all of them
    #: were accepted
    CHECKPOINT = "checkpoint"


class Rollback:
    """Rollback of a context's slots. One batch at a time: ``before``, the batch, then ``after``.

    Attributes:
        replays: accepted tokens have to be computed again after a draft that was accepted in part.
        cuts_anywhere: a slot may be cut at any position of its text, as for a shorter prompt.
    """

    def __init__(self, context: LlamaContext, method: RollbackMethod) -> None:
        self.method = method
        self.replays = method is RollbackMethod.CHECKPOINT
        self.cuts_anywhere = method is RollbackMethod.TRUNCATE
        self._context = context
        self._saved: dict[int, State] = {}

    def before(self, slot: int, drafts: bool) -> None:
        """Prepare for a batch; ``drafts``: some of its tokens may have to be rolled back."""
        self._saved.pop(slot, None)
        if drafts and self.replays:
            self._saved[slot] = self._context.save_state(slot)

    def after(self, slot: int, start: int, keep: int) -> int:
        """Roll a batch at ``start`` back to its first ``keep`` tokens, or none of them with checkpoints.

        Returns:
            The position up to which the slot holds tokens, at most ``start + keep``.

        Raises:
            ModelError: the state cannot be rolled back so far. The slot is unchanged.
        """
        if self.method is RollbackMethod.SNAPSHOT and keep < 1:
            raise ModelError("keep must be >= 1: snapshots cover only the last batch", got=keep)
        if self.replays:
            keep, state = 0, self._saved.pop(slot, None)
            # an empty slot has no state to restore; cutting all of it always works
            if state is not None and start > 0:
                self._context.load_state(slot, state)
        self._context.cut(slot, start + keep)
        return start + keep


def detect_rollback(context: LlamaContext) -> Rollback:
    """Detect the rollback method of a model by a trial on slot 0, which must be empty and is left empty."""
    context.decode((0, 0), 0, 0, logits=False)
    can_be_cut = context.try_cut(0, 1)
    context.cut(0, 0)
    if not can_be_cut:
        return Rollback(context, RollbackMethod.CHECKPOINT)
    return Rollback(context, RollbackMethod.SNAPSHOT if context.snapshots else RollbackMethod.TRUNCATE)
