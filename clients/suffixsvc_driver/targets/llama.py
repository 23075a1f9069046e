"""llama.cpp as the driver's target: verification in one batch, roll-back, prompts kept between calls.

What is in the KV of the current slot, always: every token but the newest one.

    prompt p0 .. pn-1          KV: p0 .. pn-2           next batch: [pn-1, d1 .. dk] at position n-1
    emitted t1 .. tj           KV: p0 .. pn-1, t1 .. tj-1       cut at n - 1 + j
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from suffixsvc.errors import InvalidTokensError, LimitExceededError, ModelError
from suffixsvc.types import FloatArray, TokenIds
from suffixsvc_driver.sampling import GREEDY, Sampling, choose
from suffixsvc_driver.targets import Batch, Prefilled, StopRule, Verification
from suffixsvc_driver.targets.llama_context import ContextSettings, LlamaContext, Outputs
from suffixsvc_driver.targets.llama_model import LlamaModel, check_ids
from suffixsvc_driver.targets.slots import SlotCache

__all__ = ["LlamaTarget"]


class LlamaTarget:
    """A GGUF model that verifies drafts. Use it as a context manager. Not thread-safe.

    Args:
        model: a path to a GGUF file, or a loaded model (which then stays the caller's to close).
        settings: see :class:`ContextSettings`.

    Raises:
        ModelNotFoundError, ModelCorruptError, ModelError: the file, or not enough memory.
    """

    def __init__(self, model: str | Path | LlamaModel, settings: ContextSettings | None = None) -> None:
        self._owns_model = not isinstance(model, LlamaModel)
        self.model = model if isinstance(model, LlamaModel) else LlamaModel(model)
        self.settings = settings or ContextSettings()
        self.context = LlamaContext(self.model, self.settings)
        self._cache = SlotCache(self.settings.slots)
        self._slot = self._cache.slots[0]
        self._last = -1
        self._written: list[int] = []

    def __enter__(self) -> LlamaTarget:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free context and, if it was loaded here, model. Idempotent."""
        self.context.close()
        if self._owns_model:
            self.model.close()

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def context_size(self) -> int:
        return self.context.slot_size

    @property
    def max_width(self) -> int:
        return self.settings.max_width

    @property
    def eog_ids(self) -> frozenset[int]:
        return self.model.eog_ids

    @property
    def position(self) -> int:
        """Position of the newest token, which is not in the KV yet."""
        return len(self._slot.tokens)

    def begin(self, prompt_ids: TokenIds, *, fresh: bool = False) -> Prefilled:
        """Make ``prompt_ids`` the current sequence: all but its last token in the KV.

        Args:
            fresh: reuse nothing (exactness checks).

        Raises:
            InvalidTokensError: an empty prompt, ids outside the vocabulary.
            LimitExceededError: a prompt longer than the context.
        """
        prompt = check_ids(prompt_ids, self.vocab_size)
        if not prompt:
            raise InvalidTokensError("an empty prompt", expected="at least one token", got=0)
        if len(prompt) > self.context_size:
            raise LimitExceededError(
                "the prompt is longer than the target's context",
                expected=f"at most {self.context_size} tokens",
                got=len(prompt),
                remedy="Shorten the prompt or give the target a larger context.",
            )
        placement = self._cache.place(prompt)
        keep = 0 if fresh else placement.keep
        slot = self._cache.carry_out(placement)
        if placement.copy_from is not None and not fresh:
            self.context.copy(placement.copy_from, slot.index)
        slot.truncate(keep)
        self.context.cut(slot.index, keep)
        self._slot, self._last, self._written = slot, prompt[-1], []
        for at in range(keep, len(prompt) - 1, self.settings.batch_size):
            piece = tuple(prompt[at : min(at + self.settings.batch_size, len(prompt) - 1)])
            self._compute(piece, Outputs.NONE)
            slot.extend(Batch(at, piece), len(piece))
        return Prefilled(keep, len(prompt) - 1 - keep, tuple(slot.history))

    def replay(self, history: Sequence[Batch]) -> None:
        """Compute batches again as they were, from an empty slot (exactness checks)."""
        self.rewind(0)
        for batch in history:
            self.rewind(batch.start)
            self._compute(batch.token_ids, Outputs.NONE)
            self._slot.extend(batch, len(batch.token_ids))

    def rewind(self, keep: int) -> None:
        """Go back to ``keep`` tokens in the KV (exactness checks)."""
        self.context.cut(self._slot.index, keep)
        self._slot.truncate(keep)

    def compute(self, tokens: Sequence[int]) -> list[FloatArray]:
        """Append tokens in one batch whatever the model thinks of them (exactness checks).
        Returns copies of the logits behind each."""
        start = self.position
        self._compute(tokens, Outputs.ALL)
        self._slot.extend(Batch(start, tuple(tokens)), len(tokens))
        return [self.context.logits(i).copy() for i in range(len(tokens))]

    def probe(self, width: int) -> None:
        """Verify ``width`` tokens as a step would and forget them again (cost curves)."""
        start = self.position
        self._compute((self._last,) * width, Outputs.ALL)
        choose(self.context.logits(0), GREEDY, start)
        self.context.cut(self._slot.index, start)

    def verify(
        self, drafted: Sequence[int], sampling: Sampling, max_emit: int, stop: StopRule | None = None
    ) -> Verification:
        """One target step. See :class:`suffixsvc_driver.targets.Target`.

        Raises:
            LimitExceededError: the context is full or the batch too wide. Nothing changes.
            ModelError: llama.cpp failed; the sequence is as before the step.
        """
        tokens = (self._last, *drafted)
        start = self.position
        self._compute(tokens, Outputs.ALL)
        emitted: list[int] = []
        accepted = 0
        stopped = False
        for i in range(len(tokens)):
            token = choose(self.context.logits(i), sampling, start + i + 1)
            emitted.append(token)
            self._written.append(token)
            agrees = i < len(drafted) and drafted[i] == token
            accepted += agrees
            stopped = stop is not None and stop(self._written)
            if stopped or not agrees or token in self.model.eog_ids or len(emitted) >= max_emit:
                break
        keep = len(emitted)
        if keep < len(tokens):
            self.context.cut(self._slot.index, start + keep)
        self._slot.extend(Batch(start, tokens), keep)
        self._last = emitted[-1]
        return Verification(tuple(emitted), accepted, stopped)

    def _compute(self, tokens: Sequence[int], outputs: Outputs) -> None:
        start = self.position
        try:
            self.context.decode(tokens, start, self._slot.index, outputs)
        except ModelError:
            self.context.cut(self._slot.index, start)
            raise
