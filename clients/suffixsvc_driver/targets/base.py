"""Base class of llama.cpp targets: a model, a context on it, lanes that generate, and a prefix cache."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from suffixsvc.errors import InvalidConfigError, ModelError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.types import FloatArray, TokenIds
from suffixsvc_driver.drafts.events import StepResult
from suffixsvc_driver.sampling.sampler import Grammar, Sampler
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.sampling.structured import Structured
from suffixsvc_driver.targets import LaneStep, Shape
from suffixsvc_driver.targets.branches import Branches
from suffixsvc_driver.targets.lane import Lane
from suffixsvc_driver.targets.llama.attention import choose_flash_attention
from suffixsvc_driver.targets.llama.context import ContextSettings, LlamaContext, Part
from suffixsvc_driver.targets.llama.grammar import LlamaGrammar
from suffixsvc_driver.targets.llama.model import LlamaModel, check_ids
from suffixsvc_driver.targets.llama.structured_compiler import GrammarCompiler
from suffixsvc_driver.targets.rollback import detect_rollback
from suffixsvc_driver.targets.slots import Placement, Slot, SlotCache

#: compiled grammars in the cache; agents use the same few repeatedly
_GRAMMARS: Final = 8
#: last token of a generation that has not begun; llama.cpp refuses it
NO_TOKEN: Final = -1


class TargetBase(ClosedOnExit):
    """A model, a context on it, and its lanes. Use it as a context manager. Not thread-safe.

    Args:
        model: a path to a GGUF file, or a loaded model (which the caller closes).
        unified: all sequences share one KV memory, with or without branches.
        lanes: number of generations, each with ``settings.branches`` branches.

    Attributes:
        settings: with the decision on flash attention.
        compiler: of structured-output values; another thread may call it.
        vocab_size, context_size, max_width, max_branches, eog_ids, replays: see
            :class:`suffixsvc_driver.targets.TargetShape`.
    """

    def __init__(
        self, model: str | Path | LlamaModel, settings: ContextSettings, *, unified: bool, lanes: int
    ) -> None:
        self._owns_model = not isinstance(model, LlamaModel)
        self.model = model if isinstance(model, LlamaModel) else LlamaModel(model)
        self._grammars: dict[str, LlamaGrammar] = {}
        self.compiler = GrammarCompiler(self.model)
        with ExitStack() as opened:  # an error below frees everything
            if self._owns_model:
                opened.callback(self.model.close)
            self._open(settings, opened, unified=unified, lanes=lanes)
            opened.pop_all()

    def _open(self, settings: ContextSettings, opened: ExitStack, *, unified: bool, lanes: int) -> None:
        self.settings = settings = replace(
            settings, flash_attention=choose_flash_attention(self.model, settings, shared=unified)
        )
        # Neither shares KV cells: a recurrent state belongs to one path, and windowed layers recycle only
        # cells that a single sequence holds.
        shares = not self.model.recurrent and (settings.full_window or not self.model.window)
        branches = settings.branches if shares else 0
        shared = unified or branches > 0
        slots = settings.slots
        self.context = context = LlamaContext(self.model, settings, unified=shared, extra=lanes * branches)
        opened.callback(context.close)
        self.rollback = detect_rollback(context)
        whole = not self.rollback.cuts_anywhere
        self._cache = SlotCache(slots, whole=whole, copies=(shares and not whole) if unified else True)
        self._lanes: list[Lane] = []
        for slot in self._cache.slots[:lanes]:
            first = slots + slot.index * branches
            leaves = Branches(context, range(first, first + branches))
            self._lanes.append(Lane(context, self.rollback, self.model.eog_ids, slot, leaves))
        self.vocab_size, self.eog_ids = self.model.vocab_size, self.model.eog_ids
        self.context_size, self.max_width = context.slot_size, settings.max_width
        self.max_branches, self.replays = self._lanes[0].max_branches, self.rollback.replays

    @property
    def kv_use(self) -> tuple[int, int]:
        """Tokens in the KV, and how many fit. A prefix that sequences share counts in each of them.
        Thread-safe: the first number may be of a moment within a step."""
        return sum(len(slot.tokens) for slot in self._cache.slots), self.settings.slots * self.context_size

    def close(self) -> None:
        """Free the context, and the model if it was loaded here. Idempotent."""
        self.context.close()
        if self._owns_model:
            self.model.close()

    def sampler(self, sampling: Sampling, prompt_ids: TokenIds) -> Sampler:
        """Return the sampler of one generation after this prompt.

        Raises:
            InvalidTokensError: the prompt has ids outside the vocabulary.
            InvalidConfigError: a bias for a token outside the vocabulary.
            GrammarError: a grammar that is malformed or that this vocabulary cannot produce.
            MissingExtraError: a structured-output value without llguidance.
        """
        prompt = check_ids(prompt_ids, self.vocab_size)
        grammar = None if sampling.grammar is None else self._grammar(sampling.grammar)
        return Sampler(sampling, self.vocab_size, prompt, grammar)

    def _grammar(self, value: str | Structured) -> Grammar:
        """Return the grammar at its start, an independent copy."""
        if not isinstance(value, str):
            return self.compiler.compile(value)
        grammar = self._grammars.pop(value, None) or LlamaGrammar(self.model, value)
        self._grammars[value] = grammar
        if len(self._grammars) > _GRAMMARS:
            self._grammars.pop(next(iter(self._grammars)))
        return grammar.copy()

    def _sampler_of(self, choices: Sampling | Sampler) -> Sampler:
        if isinstance(choices, Sampler):
            return choices
        if choices.needs_text:
            raise InvalidConfigError(
                "penalties and grammars need the text of the generation",
                expected="a sampler, from sampler()",
                got="settings",
            )
        return self.sampler(choices, ())

    def forget(self) -> None:
        """Empty every slot."""
        for lane, own in zip(self._lanes, self._cache.slots, strict=False):
            lane.release()
            lane.begin(own, NO_TOKEN)
        for slot in self._cache.slots:
            self._empty(slot)
            slot.last_used, slot.principal = 0, ""

    def _empty(self, slot: Slot) -> None:
        self.context.cut(slot.index, 0)
        slot.truncate(0)

    def _place(
        self,
        lane: Lane,
        prompt: list[int],
        free: Collection[int] | None = None,
        principal: str = "",
        *,
        fresh: bool = False,
    ) -> int:
        """Start a generation on the best of the ``free`` slots; return the number of tokens whose KV was
        cached."""
        placement = self._cache.place(prompt, free, principal)
        if fresh or not self.context.reaches(placement.source.index, placement.keep):
            # the slot of the longest prefix keeps it for later prompts
            usable = self._cache.slots if free is None else [self._cache.slots[i] for i in free]
            placement = Placement(self._cache.oldest(usable), 0, principal=principal)
        lane.release()
        source, slot, keep = placement.source, placement.slot, placement.keep
        self._cache.apply(placement)
        if source is slot:
            self.context.cut(slot.index, keep)
        elif self.context.unified:
            self.context.cut(slot.index, 0)
            self.context.share(source.index, slot.index, 0, keep)
        else:
            self.context.copy(source.index, slot.index)
            self.context.cut(slot.index, keep)
        lane.begin(slot, prompt[-1])
        return keep

    def _compute(self, lanes: Sequence[Lane], parts: Sequence[Part]) -> list[int]:
        """Compute the lanes' parts in one batch; return the index of each part's first token in it."""
        if not parts:
            return []
        for lane, part in zip(lanes, parts, strict=True):
            lane.prepare(part)
        try:
            if len(parts) == 1 and not parts[0].parents:
                self.context.decode_part(parts[0])
                return [0]
            return self.context.decode_parts(parts)
        except ModelError:
            for lane, part in zip(lanes, parts, strict=True):
                lane.undo(part)
            raise

    def _verify(self, steps: Sequence[LaneStep]) -> list[StepResult | Exception]:
        """See :meth:`suffixsvc_driver.targets.ParallelTarget.verify_many`."""
        samplers = [self._sampler_of(step.choices) for step in steps]
        lanes = [self._lanes[step.lane] for step in steps]
        parts = [lane.plan(step.drafted, step.parents) for lane, step in zip(lanes, steps, strict=True)]
        offsets = self._compute(lanes, parts)
        seen: list[StepResult | Exception] = []
        # undoing a step may run a batch, which overwrites the logits: every lane samples first
        try:
            for lane, step, sampler, part, offset in zip(lanes, steps, samplers, parts, offsets, strict=True):
                try:
                    seen.append(lane.verify(step, sampler, part, offset))
                except Exception as err:  # an error of this lane must not affect the others
                    seen.append(err)
        except BaseException:
            for sampler, found in zip(samplers, seen, strict=False):  # of the lanes that have sampled
                if isinstance(found, StepResult):
                    sampler.rollback(len(found.emitted))
            for lane, part in zip(lanes, parts, strict=True):
                lane.undo(part)
            raise
        return [self._commit(lane, part, found) for lane, part, found in zip(lanes, parts, seen, strict=True)]

    def _commit(self, lane: Lane, part: Part, found: StepResult | Exception) -> StepResult | Exception:
        try:
            if isinstance(found, Exception):
                lane.undo(part)
                return found
            lane.commit(part, found.emitted)
        except ModelError as err:
            return err
        return found._replace(replay=lane.replay) if lane.replay else found

    def propose(self, steps: Sequence[Shape]) -> list[list[FloatArray]]:
        """Compute a batch without sampling (for exactness checks); :meth:`commit` must follow.

        Returns:
            Copies of the logits after each lane's newest token and each drafted one.
        """
        lanes = [self._lanes[index] for index, _, _ in steps]
        parts = [
            lane.plan(drafted, parents) for lane, (_, drafted, parents) in zip(lanes, steps, strict=True)
        ]
        offsets = self._compute(lanes, parts)
        return [
            [self.context.logits(offset + i).copy() for i in range(part.logits_from, len(part.tokens))]
            for part, offset in zip(parts, offsets, strict=True)
        ]

    def commit(self, steps: Sequence[Shape], emitted: Sequence[tuple[int, ...] | None]) -> None:
        """Commit the tokens that the caller sampled from the proposed batch; None: undo the lane's part."""
        for (index, drafted, parents), tokens in zip(steps, emitted, strict=True):
            lane = self._lanes[index]
            part = lane.plan(drafted, parents)
            if tokens is None:
                lane.undo(part)
            else:
                lane.commit(part, tokens)
