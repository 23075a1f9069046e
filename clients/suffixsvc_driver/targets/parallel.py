"""llama.cpp as the target of several generations at once: one context, one lane each, one batch for all.

All lanes share one KV memory, so that one batch serves tokens of any of them, and a prompt that begins as
another lane's text shares its cells. What is computed depends on where cells lie, and so on what the other
lanes did before: the same operations from an empty memory on give the same bits (``exactness_parallel``), one
of the generations alone gives the same tokens but where rounding decides between two that are nearly tied.

Recurrent states work too: llama.cpp then computes lanes whose drafts differ in length one after the other, so
that sharing a batch gains where lanes add as many tokens, plain steps above all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from suffixsvc.errors import InvalidConfigError, InvalidInputError, ModelError
from suffixsvc.types import FloatArray, TokenIds
from suffixsvc_driver.chooser import Chooser
from suffixsvc_driver.targets import LaneStep, Verification
from suffixsvc_driver.targets.branches import Branches
from suffixsvc_driver.targets.lane import Lane
from suffixsvc_driver.targets.llama_context import MAX_SEQUENCES, ContextSettings, Part
from suffixsvc_driver.targets.llama_model import LlamaModel, check_prompt
from suffixsvc_driver.targets.opened import OpenedModel
from suffixsvc_driver.targets.slots import SlotCache

__all__ = ["ParallelLlama"]


class ParallelLlama(OpenedModel):
    """A GGUF model that verifies the drafts of several generations together. Use it as a context manager. Not
    thread-safe.

    Args:
        model: a path to a GGUF file, or a loaded model (which then stays the caller's to close).
        settings: see :class:`ContextSettings`; ``slots`` lanes of ``context_size`` tokens, ``branches`` for
            each of them, ``max_width`` tokens verified at once of all lanes together.

    Raises:
        ModelNotFoundError, ModelCorruptError, ModelError: the file, or not enough memory.
        InvalidConfigError: not even a token of every lane fits into a batch, or too many sequences.
    """

    def __init__(self, model: str | Path | LlamaModel, settings: ContextSettings | None = None) -> None:
        settings = settings or ContextSettings(slots=4)
        _check(settings)
        slots = settings.slots
        super().__init__(model, settings, unified=True, lanes=slots)
        branches = self._branches
        whole = not self.rollback.cuts_anywhere
        self._cache = SlotCache(slots, whole=whole, copies=self._shares and not whole)
        self._lanes: list[Lane] = []
        for slot in self._cache.slots:
            first = slots + slot.index * branches
            leaves = Branches(self.context, range(first, first + branches))
            eog_ids, alone = self.model.eog_ids, slots == 1
            self._lanes.append(Lane(self.context, self.rollback, eog_ids, slot, leaves, in_order=alone))
        self._missing: dict[int, list[int]] = {}

    @property
    def lanes(self) -> int:
        return self.settings.slots

    @property
    def max_branches(self) -> int:
        return self._lanes[0].max_branches

    @property
    def empty(self) -> bool:
        """No lane holds anything."""
        return not any(slot.tokens for slot in self._cache.slots)

    def forget(self) -> None:
        """Empty every lane."""
        self._missing.clear()
        for lane in self._lanes:
            lane.release()
            self.context.cut(lane.slot.index, 0)
            lane.slot.truncate(0)
        self._cache.forget_use()

    def lane_for(self, prompt_ids: TokenIds, free: Sequence[int]) -> int:
        """See :class:`suffixsvc_driver.targets.ParallelTarget`."""
        prompt = check_prompt(prompt_ids, self.vocab_size, self.context_size)
        return self._cache.place(prompt, free).slot

    def begin(self, lane: int, prompt_ids: TokenIds) -> int:
        """See :class:`suffixsvc_driver.targets.ParallelTarget`."""
        prompt = check_prompt(prompt_ids, self.vocab_size, self.context_size)
        place = self._cache.place(prompt, (lane,))
        source = lane if place.copy_from is None else place.copy_from
        if not self.context.reaches(source, place.keep):
            place = replace(place, keep=0, copy_from=None)
            source = lane
        self._lanes[lane].release()
        slot = self._cache.carry_out(place)
        if source != lane:
            self.context.cut(lane, 0)
            self.context.share(source, lane, 0, place.keep)
        else:
            self.context.cut(lane, place.keep)
        self._lanes[lane].begin(slot, prompt[-1])
        self._missing[lane] = prompt[place.keep : -1]
        return place.keep

    def prefill(self, lane: int) -> bool:
        """Compute a batch of what is missing of the lane's prompt; whether all but its last token is there.

        Raises:
            ModelError: llama.cpp failed. The lane is empty.
        """
        # out of the book until it is computed: a lane of which that fails has to begin again
        missing = self._missing.pop(lane)
        size = self.settings.batch_size
        if missing:
            self._lanes[lane].fill(missing[:size])
        self._missing[lane] = missing[size:]
        return len(missing) <= size

    def verify_many(self, steps: Sequence[LaneStep]) -> list[Verification | Exception]:
        """See :class:`suffixsvc_driver.targets.ParallelTarget`.

        Raises:
            InvalidConfigError: settings without a chooser that need the text. Nothing changes.
            InvalidInputError: a lane twice, parents that make no tree, or a prompt that is not prefilled.
                Nothing changes.
            LimitExceededError: the batch is too wide, a lane full, or a tree has too many leaves. Nothing
                changes.
            ModelError: llama.cpp failed; every lane is as before the step.
        """
        choosers = [self._choosers.of(step.choices) for step in steps]
        parts, offsets = self._compute([(s.lane, s.drafted, s.parents) for s in steps])
        seen: list[Verification | Exception] = []
        # undoing a step may compute something, which overwrites the logits: not before every lane has chosen
        try:
            for step, chooser, part, offset in zip(steps, choosers, parts, offsets, strict=True):
                seen.append(self._judge(step, chooser, part, offset))
        except BaseException:
            for chooser, found in zip(choosers, seen, strict=False):  # of the lanes that have chosen
                if isinstance(found, Verification):
                    chooser.take_back(len(found.emitted))
            for part in parts:
                self._lanes[part.slot].undo(part)
            raise
        return [self._settle(part, found) for part, found in zip(parts, seen, strict=True)]

    def _judge(self, step: LaneStep, chooser: Chooser, part: Part, offset: int) -> Verification | Exception:
        def row(i: int) -> FloatArray:
            return self.context.logits(offset + part.silent + i)

        lane = self._lanes[step.lane]
        try:
            return lane.judge(row, step.drafted, chooser, step.max_emit, step.stop, part.parents)
        except Exception as err:  # whose it is hears of it; the others have nothing to do with it
            return err

    def _settle(self, part: Part, found: Verification | Exception) -> Verification | Exception:
        lane = self._lanes[part.slot]
        try:
            if isinstance(found, Exception):
                lane.undo(part)
                return found
            lane.settle(part, found.emitted)
        except ModelError as err:
            return err
        return replace(found, replay=lane.replay)

    def propose_many(
        self, steps: Sequence[tuple[int, tuple[int, ...], tuple[int, ...]]]
    ) -> list[list[FloatArray]]:
        """Compute the batch that :meth:`verify_many` would for (lane, drafted, parents), and leave it to the
        caller which tokens it gives (exactness checks). Returns copies of the logits behind each lane's
        newest token and each drafted one; :meth:`settle_many` must follow."""
        parts, offsets = self._compute(steps)
        return [
            [self.context.logits(offset + i).copy() for i in range(part.silent, len(part.tokens))]
            for part, offset in zip(parts, offsets, strict=True)
        ]

    def settle_many(
        self,
        steps: Sequence[tuple[int, tuple[int, ...], tuple[int, ...]]],
        emitted: Sequence[tuple[int, ...] | None],
    ) -> None:
        """The proposed batch gave these tokens; None: the lane is to be as before it."""
        for (index, drafted, parents), tokens in zip(steps, emitted, strict=True):
            lane = self._lanes[index]
            part = lane.plan(drafted, parents)
            if tokens is None:
                lane.undo(part)
            else:
                lane.settle(part, tokens)

    def _compute(
        self, steps: Sequence[tuple[int, tuple[int, ...], tuple[int, ...]]]
    ) -> tuple[list[Part], list[int]]:
        lanes = [lane for lane, _, _ in steps]
        unready = [lane for lane in lanes if self._missing.get(lane, [0])]
        if len(set(lanes)) < len(lanes) or unready:
            raise InvalidInputError(
                "a batch takes each lane once, its prompt prefilled", expected="other lanes", got=lanes
            )
        parts = [self._lanes[lane].plan(drafted, parents) for lane, drafted, parents in steps]
        if not parts:
            return [], []
        for part in parts:
            self._lanes[part.slot].prepare(part)
        try:
            if len(parts) == 1 and not parts[0].parents:
                self.context.decode_part(parts[0])
                return parts, [0]
            return parts, self.context.decode_parts(parts)
        except ModelError:
            for part in parts:
                self._lanes[part.slot].undo(part)
            raise


def _check(settings: ContextSettings) -> None:
    slots, width = settings.slots, settings.max_width
    if width < slots:
        raise InvalidConfigError(
            "a step takes a token of every lane at least", expected=f"max_width >= {slots}", got=width
        )
    if settings.batch_size < width + slots:
        raise InvalidConfigError(
            "what lanes compute again has to fit into a batch too",
            expected=f"batch_size >= max_width + slots = {width + slots}",
            got=settings.batch_size,
        )
    sequences = slots * (1 + settings.branches)
    if sequences > MAX_SEQUENCES:
        raise InvalidConfigError(
            "llama.cpp has not so many sequences",
            expected=f"slots * (1 + branches) <= {MAX_SEQUENCES}",
            got=sequences,
        )
