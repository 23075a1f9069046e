"""Target of several concurrent generations with llama.cpp: one context, one lane each, one batch for all.

All lanes share one KV memory, so that one batch has tokens of all lanes, and a prompt shares the cells of
another lane's equal prefix. Results depend on the order of cells, and so on earlier operations of other
lanes: the same operations from an empty memory on give the same bits (``exactness_parallel``); one of the
generations alone gives the same tokens, except where rounding decides a near-tie.

Recurrent states are supported: llama.cpp computes lanes with drafts of different lengths one after the other,
so that a shared batch is faster only if lanes add equally many tokens, as in plain steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from suffixsvc.errors import InvalidConfigError, InvalidInputError, ModelError
from suffixsvc.types import FloatArray, TokenIds
from suffixsvc_driver.sampling.sampler import Sampler
from suffixsvc_driver.targets import LaneStep, Verification
from suffixsvc_driver.targets.base import TargetBase
from suffixsvc_driver.targets.branches import Branches
from suffixsvc_driver.targets.lane import Lane
from suffixsvc_driver.targets.llama.context import MAX_SEQUENCES, ContextSettings, Part
from suffixsvc_driver.targets.llama.model import LlamaModel, check_prompt
from suffixsvc_driver.targets.slots import SlotCache

__all__ = ["ParallelLlama"]


class ParallelLlama(TargetBase):
    """A GGUF model that verifies the drafts of several generations together. Use it as a context manager. Not
    thread-safe.

    Args:
        model: a path to a GGUF file, or a loaded model (which the caller closes).
        settings: see :class:`ContextSettings`; ``slots`` lanes of ``context_size`` tokens, ``branches`` for
            each of them, ``max_width`` verified tokens of all lanes together.

    Raises:
        ModelNotFoundError, ModelCorruptError, ModelError: an unusable file, or not enough memory.
        InvalidConfigError: a batch cannot hold one token of every lane, or there are too many sequences.
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
        """Number of concurrent generations."""
        return self.settings.slots

    @property
    def max_branches(self) -> int:
        """Largest number of leaves of a drafted tree; 1: chains only."""
        return self._lanes[0].max_branches

    @property
    def empty(self) -> bool:
        """Whether no lane holds a token."""
        return not any(slot.tokens for slot in self._cache.slots)

    def forget(self) -> None:
        """Empty every lane."""
        self._missing.clear()
        for lane in self._lanes:
            lane.release()
            self.context.cut(lane.slot.index, 0)
            lane.slot.truncate(0)
        self._cache.reset_recency()

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
        slot = self._cache.apply(place)
        if source != lane:
            self.context.cut(lane, 0)
            self.context.share(source, lane, 0, place.keep)
        else:
            self.context.cut(lane, place.keep)
        self._lanes[lane].begin(slot, prompt[-1])
        self._missing[lane] = prompt[place.keep : -1]
        return place.keep

    def prefill(self, lane: int) -> bool:
        """Compute one batch of the lane's missing prompt tokens; return whether only the last is missing.

        Raises:
            ModelError: llama.cpp failed. The lane is empty.
        """
        # removed until it is computed: after a failure the lane has to begin again
        missing = self._missing.pop(lane)
        size = self.settings.batch_size
        if missing:
            self._lanes[lane].fill(missing[:size])
        self._missing[lane] = missing[size:]
        return len(missing) <= size

    def verify_many(self, steps: Sequence[LaneStep]) -> list[Verification | Exception]:
        """See :class:`suffixsvc_driver.targets.ParallelTarget`.

        Raises:
            InvalidConfigError: settings without a sampler that need the text. Nothing changes.
            InvalidInputError: a lane twice, parents that are not a tree, or a prompt that is not prefilled.
                Nothing changes.
            LimitExceededError: the batch is too wide, a lane is full, or a tree has too many leaves. Nothing
                changes.
            ModelError: llama.cpp failed; every lane is unchanged.
        """
        samplers = [self._samplers.of(step.choices) for step in steps]
        parts, offsets = self._compute([(s.lane, s.drafted, s.parents) for s in steps])
        seen: list[Verification | Exception] = []
        # undoing a step may run a batch, which overwrites the logits: every lane samples first
        try:
            for step, sampler, part, offset in zip(steps, samplers, parts, offsets, strict=True):
                seen.append(self._verify_lane(step, sampler, part, offset))
        except BaseException:
            for sampler, found in zip(samplers, seen, strict=False):  # of the lanes that have sampled
                if isinstance(found, Verification):
                    sampler.rollback(len(found.emitted))
            for part in parts:
                self._lanes[part.slot].undo(part)
            raise
        return [self._commit_lane(part, found) for part, found in zip(parts, seen, strict=True)]

    def _verify_lane(
        self, step: LaneStep, sampler: Sampler, part: Part, offset: int
    ) -> Verification | Exception:
        def row(i: int) -> FloatArray:
            return self.context.logits(offset + part.logits_from + i)

        lane = self._lanes[step.lane]
        try:
            return lane.verify(row, step.drafted, sampler, step.max_emit, step.stop, part.parents)
        except Exception as err:  # an error of this lane must not affect the others
            return err

    def _commit_lane(self, part: Part, found: Verification | Exception) -> Verification | Exception:
        lane = self._lanes[part.slot]
        try:
            if isinstance(found, Exception):
                lane.undo(part)
                return found
            lane.commit(part, found.emitted)
        except ModelError as err:
            return err
        return replace(found, replay=lane.replay)

    def propose_many(
        self, steps: Sequence[tuple[int, tuple[int, ...], tuple[int, ...]]]
    ) -> list[list[FloatArray]]:
        """Compute the batch of :meth:`verify_many` for (lane, drafted, parents) without sampling (for
        exactness checks). Return copies of the logits after each lane's newest token and each drafted one;
        :meth:`commit_many` must follow."""
        parts, offsets = self._compute(steps)
        return [
            [self.context.logits(offset + i).copy() for i in range(part.logits_from, len(part.tokens))]
            for part, offset in zip(parts, offsets, strict=True)
        ]

    def commit_many(
        self,
        steps: Sequence[tuple[int, tuple[int, ...], tuple[int, ...]]],
        emitted: Sequence[tuple[int, ...] | None],
    ) -> None:
        """Commit the tokens that the caller sampled from the proposed batch; None: undo the lane's part."""
        for (index, drafted, parents), tokens in zip(steps, emitted, strict=True):
            lane = self._lanes[index]
            part = lane.plan(drafted, parents)
            if tokens is None:
                lane.undo(part)
            else:
                lane.commit(part, tokens)

    def _compute(
        self, steps: Sequence[tuple[int, tuple[int, ...], tuple[int, ...]]]
    ) -> tuple[list[Part], list[int]]:
        lanes = [lane for lane, _, _ in steps]
        unready = [lane for lane in lanes if self._missing.get(lane, [0])]
        if len(set(lanes)) < len(lanes) or unready:
            raise InvalidInputError("a batch must have each lane once, with its prompt prefilled", got=lanes)
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
            f"max_width must be >= slots = {slots}: a step has a token of every lane", got=width
        )
    if settings.batch_size < width + slots:
        raise InvalidConfigError(
            f"batch_size must be >= max_width + slots = {width + slots}, for replayed tokens",
            got=settings.batch_size,
        )
    sequences = slots * (1 + settings.branches)
    if sequences > MAX_SEQUENCES:
        raise InvalidConfigError(
            f"slots * (1 + branches) must be <= {MAX_SEQUENCES}, the sequences of llama.cpp",
            got=sequences,
        )
