"""One generation on one slot: what goes into the next batch, and what of it stays.

What is in the slot's KV, always: every token but the newest one, and but those that have to be computed
again because a recurrent state could not be cut between them.

    prompt p0 .. pn-1          KV: p0 .. pn-2           next batch: [pn-1, d1 .. dk] at position n-1
    emitted t1 .. tj           KV: p0 .. pn-1, t1 .. tj-1       cut at n - 1 + j
      or, with a checkpoint    KV: p0 .. pn-2           next batch: [pn-1, t1 .. tj-1, tj, d1 ..]
                                                                     (again, silent)   (verified)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from suffixsvc.errors import ModelError
from suffixsvc.types import FloatArray
from suffixsvc_driver.chooser import Chooser
from suffixsvc_driver.targets import Batch, StopRule, Verification
from suffixsvc_driver.targets.llama_context import LlamaContext, Part
from suffixsvc_driver.targets.rollback import Rollback
from suffixsvc_driver.targets.slots import Slot

__all__ = ["Lane"]


class Lane:
    """The generation that runs on ``slot``. Not thread-safe."""

    def __init__(
        self, context: LlamaContext, rollback: Rollback, eog_ids: frozenset[int], slot: Slot
    ) -> None:
        self._context, self._rollback, self._eog_ids = context, rollback, eog_ids
        self.slot = slot
        self._last = -1
        self._again: list[int] = []
        self._written: list[int] = []

    @property
    def position(self) -> int:
        """Position of the newest token."""
        return len(self.slot.tokens) + len(self._again)

    @property
    def replay(self) -> int:
        """Tokens in front of the newest one that the next batch computes again."""
        return len(self._again)

    def begin(self, slot: Slot, last: int) -> None:
        """A generation starts behind what the slot holds and ``last``."""
        self.slot, self._last = slot, last
        self._again, self._written = [], []

    def plan(self, drafted: Sequence[int]) -> Part:
        """The batch that verifies ``drafted``; logits from the newest token on."""
        tokens = (*self._again, self._last, *drafted)
        return Part(self.slot.index, len(self.slot.tokens), tokens, len(self._again))

    def prepare(self, part: Part) -> None:
        """Before the batch is computed: see to it that its drafts can go again."""
        self._rollback.before(part.slot, len(part.tokens) > part.silent + 1)

    def undo(self, part: Part) -> None:
        """The batch could not be computed: back to before it, if need be by computing the text again.

        Raises:
            ModelError: that fails too. The slot is empty.
        """
        try:
            self._rollback.after(part.slot, part.start, 0)
        except ModelError:
            self._context.cut(part.slot, 0)
            tokens = tuple(self.slot.tokens)
            self.slot.truncate(0)
            self.fill(tokens)

    def fill(self, tokens: Sequence[int]) -> None:
        """Append tokens without a look at what the model thinks of them.

        Raises:
            ModelError: llama.cpp failed. The slot is empty.
        """
        size = self._context.settings.batch_size
        for at in range(0, len(tokens), size):
            piece = tuple(tokens[at : at + size])
            part = Part(self.slot.index, len(self.slot.tokens), piece, len(piece))
            try:
                self._context.decode_part(part)
            except ModelError:
                self._context.cut(part.slot, 0)
                self.slot.truncate(0)
                raise
            self.slot.extend(Batch(part.start, piece), len(piece))

    def judge(
        self,
        rows: Callable[[int], FloatArray],
        drafted: Sequence[int],
        chooser: Chooser,
        max_emit: int,
        stop: StopRule | None = None,
    ) -> Verification:
        """Which of the drafted tokens are the model's own choices, and the one behind them.

        Args:
            rows: logits behind the newest token (0) and behind each drafted one (1 ..).
            chooser: of this generation; it is told every token that is written.
        """
        emitted: list[int] = []
        accepted = 0
        stopped = False
        for i in range(len(drafted) + 1):
            token = chooser.choose(rows(i), self.position + i + 1)
            chooser.accept(token)
            emitted.append(token)
            self._written.append(token)
            agrees = i < len(drafted) and drafted[i] == token
            accepted += agrees
            stopped = stop is not None and stop(self._written)
            if stopped or not agrees or token in self._eog_ids or len(emitted) >= max_emit:
                break
        return Verification(tuple(emitted), accepted, stopped)

    def settle(self, part: Part, emitted: Sequence[int]) -> None:
        """The computed batch gave these tokens: keep what they were computed from, forget the rest."""
        keep = part.silent + len(emitted)
        if keep < len(part.tokens):
            held = self._rollback.after(part.slot, part.start, keep) - part.start
        else:
            held = keep
        # a batch of which nothing is left did not happen, as far as computing it all again goes
        if held:
            self.slot.extend(Batch(part.start, part.tokens), held)
        self._again = list(part.tokens[held:keep])
        self._last = emitted[-1]
