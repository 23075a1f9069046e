"""Target of one generation with llama.cpp: verification in one batch, rollback, a prefix cache of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from suffixsvc.errors import ModelError
from suffixsvc.types import FloatArray, TokenIds
from suffixsvc_driver.drafts.events import StepResult
from suffixsvc_driver.sampling.sampler import Sampler
from suffixsvc_driver.sampling.settings import GREEDY, Sampling, sample_token
from suffixsvc_driver.targets import Batch, LaneStep, Prefilled, StopRule
from suffixsvc_driver.targets.base import NO_TOKEN, TargetBase
from suffixsvc_driver.targets.llama.context import ContextSettings, Part, State
from suffixsvc_driver.targets.llama.model import LlamaModel, check_prompt
from suffixsvc_driver.targets.slots import Placement


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Serialised KV of a sequence.

    Attributes:
        token_ids: tokens in the KV.
        history: batches that computed them.
        state: llama.cpp's serialised state.
        model: name of the model that computed it.
    """

    token_ids: tuple[int, ...]
    history: tuple[Batch, ...]
    state: State
    model: str


class LlamaTarget(TargetBase):
    """A GGUF model that verifies drafts. Use it as a context manager. Not thread-safe.

    Args:
        model: a path to a GGUF file, or a loaded model (which the caller closes).
        settings: see :class:`ContextSettings`.

    Raises:
        ModelNotFoundError, ModelCorruptError, ModelError: an unusable file, or not enough memory.
    """

    def __init__(self, model: str | Path | LlamaModel, settings: ContextSettings | None = None) -> None:
        super().__init__(model, settings or ContextSettings(), unified=False, lanes=1)
        self._lane = self._lanes[0]

    @property
    def _model_name(self) -> str:
        used = self.model.experts_used
        return self.model.digest if used is None else f"{self.model.digest}, {used} experts"

    @property
    def position(self) -> int:
        """Position of the newest token, which is not in the KV yet."""
        return self._lane.position

    def begin(self, prompt_ids: TokenIds, *, principal: str = "", fresh: bool = False) -> Prefilled:
        """Make ``prompt_ids`` the current sequence: all but its last token in the KV.

        Args:
            principal: the owner of the prompt; only KV of the same principal is reused.
            fresh: reuse nothing (exactness checks). With unified KV (``branches``) the other slots are
                emptied too: where their cells lie would show in the bits.

        Raises:
            InvalidTokensError: an empty prompt, ids outside the vocabulary.
            LimitExceededError: a prompt longer than the context.
        """
        prompt = check_prompt(prompt_ids, self.vocab_size, self.context_size)
        if fresh and self.context.unified:
            self.forget()
        keep = self._place(self._lane, prompt, principal=principal, fresh=fresh)
        self._lane.fill(prompt[keep:-1])
        return Prefilled(keep, len(prompt) - 1 - keep, tuple(self._lane.slot.history))

    def snapshot(self) -> Snapshot:
        """Serialise the KV of the current sequence.

        Raises:
            ModelError: llama.cpp cannot save it.
        """
        slot = self._lane.slot
        state = self.context.save_state(slot.index, whole=True)
        return Snapshot(tuple(slot.tokens), tuple(slot.history), state, self._model_name)

    def restore(self, snapshot: Snapshot) -> None:
        """Load a snapshot of another target of the same model and settings into the least recently used slot,
        as a cached prefix of later prompts. :meth:`begin` must follow.

        Raises:
            ModelError: a snapshot of another model, and nothing changes; or llama.cpp refuses it, and the
                slot is empty.
        """
        if snapshot.model != self._model_name:
            raise ModelError(
                "the snapshot must be of this model", expected=self._model_name, got=snapshot.model
            )
        self._lane.release()
        self._lane.begin(self._lane.slot, NO_TOKEN)
        slot = self._cache.oldest()
        self._cache.apply(Placement(slot, 0))
        self.context.cut(slot.index, 0)
        self.context.load_state(slot.index, snapshot.state, whole=True)
        slot.tokens.extend(snapshot.token_ids)
        slot.history.extend(snapshot.history)

    def replay(self, history: Sequence[Batch]) -> None:
        """Compute batches again, from an empty slot (for exactness checks)."""
        self.rewind(0)
        for batch in history:
            self.rewind(batch.start)
            self._lane.repeat(batch)

    def rewind(self, keep: int) -> None:
        """Truncate the KV to ``keep`` tokens (for exactness checks)."""
        self._lane.release()
        slot = self._lane.slot
        self.context.cut(slot.index, keep)
        slot.truncate(keep)

    def compute(self, tokens: Sequence[int]) -> list[FloatArray]:
        """Append tokens in one batch without sampling (for exactness checks); return copies of the logits
        after each."""
        slot = self._lane.slot
        part = Part(slot.index, len(slot.tokens), tuple(tokens))
        self.context.decode_part(part)
        slot.extend(Batch(part.start, part.tokens), len(part.tokens))
        return [self.context.logits(i).copy() for i in range(len(tokens))]

    def probe(self, width: int) -> None:
        """Verify ``width`` tokens as a step would and roll them back, which is part of the cost (for cost
        curves). A token that cannot be rolled back stays."""
        lane = self._lane
        part = lane.plan([0] * (width - 1))
        self._compute([lane], [part])
        sample_token(self.context.logits(part.logits_from), GREEDY, lane.position)
        if self.rollback.cuts_anywhere or (self.rollback.replays and width > 1):
            self.rollback.after(part.slot, part.start, 0)
        else:
            lane.commit(part, (0,))

    def verify(
        self,
        drafted: Sequence[int],
        choices: Sampling | Sampler,
        max_emit: int,
        stop: StopRule | None = None,
        parents: Sequence[int] = (),
    ) -> StepResult:
        """One target step. See :class:`suffixsvc_driver.targets.Target`.

        Raises:
            LimitExceededError: the context is full, the batch is too wide or a tree has too many leaves.
                Nothing changes.
            InvalidInputError: ``parents`` are not a tree. Nothing changes.
            InvalidConfigError: settings without a sampler that need the text.
            ModelError: llama.cpp failed, or its logits are NaN. The sequence is unchanged.
            GrammarError: the grammar permits no token here. The sequence is unchanged; the same holds for an
                error of ``stop``.
        """
        found = self._verify([LaneStep(0, tuple(drafted), choices, max_emit, stop, tuple(parents))])[0]
        if isinstance(found, Exception):
            raise found
        return found
