"""Target of several concurrent generations with llama.cpp: one context, one lane each, one batch for all.

All lanes share one KV memory, so that one batch has tokens of all lanes, and a prompt shares the cells of
another lane's equal prefix. The KV of an ended generation stays on its lane, until its owner moves it to main
memory (:meth:`ParallelLlama.park`) or another prompt begins there
(:mod:`~suffixsvc_driver.targets.prefix_store`). Results depend on the order of cells, and so on earlier
operations of other lanes: the same operations from an empty memory on give the same bits
(``exactness_parallel``); one of the generations alone gives the same tokens, except where rounding decides a
near-tie.

Recurrent states are supported: llama.cpp computes lanes with drafts of different lengths one after the other,
so that a shared batch is faster only if lanes add equally many tokens, as in plain steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import structlog

from suffixsvc.errors import InvalidInputError, ModelError
from suffixsvc.types import TokenIds
from suffixsvc_driver.drafts.events import StepResult, TokenLogprobs
from suffixsvc_driver.settings.checks import require
from suffixsvc_driver.targets import LaneStep
from suffixsvc_driver.targets.base import TargetBase
from suffixsvc_driver.targets.llama.context import MAX_SEQUENCES, ContextSettings
from suffixsvc_driver.targets.llama.model import LlamaModel, check_prompt
from suffixsvc_driver.targets.prefix_store import PrefixStore, StoredPrefix
from suffixsvc_driver.targets.slots import CHEAP_TAIL, Placement, Slot

_log = structlog.get_logger(__name__)

#: tokens that a restored text must save: a text of 4,096 takes as long as three to compute on two cores. All
#: prompts of a principal begin with the few tokens of the chat template
_LEAST_GAIN: Final = 8


class ParallelLlama(TargetBase):
    """A GGUF model that verifies the drafts of several generations together. Use it as a context manager. Not
    thread-safe.

    Args:
        model: a path to a GGUF file, or a loaded model (which the caller closes).
        settings: see :class:`ContextSettings`; ``slots`` lanes of ``context_size`` tokens, ``branches`` for
            each of them, ``max_width`` verified tokens of all lanes together, ``prefix_tokens`` of ended
            generations in main memory.

    Raises:
        ModelNotFoundError, ModelCorruptError, ModelError: an unusable file, or not enough memory.
        InvalidConfigError: a batch cannot hold one token of every lane, or there are too many sequences.
    """

    def __init__(self, model: str | Path | LlamaModel, settings: ContextSettings | None = None) -> None:
        settings = settings or ContextSettings(slots=4)
        _check(settings)
        super().__init__(model, settings, unified=True, lanes=settings.slots)
        self._missing: dict[int, list[int]] = {}
        # a recurrent state can only be continued where it ends, and takes as much memory as a long text
        self._stored = PrefixStore(0 if self.model.recurrent else self.settings.prefix_tokens)

    @property
    def lanes(self) -> int:
        """Number of concurrent generations."""
        return self.settings.slots

    @property
    def shares_prefixes(self) -> bool:
        """See :class:`suffixsvc_driver.targets.ParallelTarget`."""
        return self._cache.copies

    def forget(self) -> None:
        """Empty every lane and the stored prefixes."""
        self._missing.clear()
        self._stored.clear()
        super().forget()

    def check(self, prompt_ids: TokenIds) -> None:
        """See :class:`suffixsvc_driver.targets.ParallelTarget`."""
        check_prompt(prompt_ids, self.vocab_size, self.context_size)

    def lane_for(self, prompt_ids: TokenIds, free: Sequence[int], principal: str = "") -> int:
        """See :class:`suffixsvc_driver.targets.ParallelTarget`."""
        prompt = check_prompt(prompt_ids, self.vocab_size, self.context_size)
        placement = self._cache.place(prompt, free, principal)
        source = placement.source
        # what the prompt does not continue is stored, if it fits
        return source.index if source.index in free and self._fits(source) else placement.slot.index

    def missing(self, lane: int, prompt_ids: Sequence[int], principal: str = "") -> int:
        """See :class:`suffixsvc_driver.targets.ParallelTarget`."""
        placement, length, _ = self._prefix(lane, prompt_ids, principal)
        return len(prompt_ids) - 1 - max(placement.keep, length)

    def _prefix(
        self, lane: int, prompt: Sequence[int], principal: str
    ) -> tuple[Placement, int, StoredPrefix | None]:
        """Return the best prefix of a prompt in the KV cache; and if a stored one is so much longer that
        restoring it pays, its length and itself, else 0 and None."""
        placement = self._cache.place(prompt, (lane,), principal)
        length, stored = self._stored.longest(prompt, principal)
        return (placement, length, stored) if length > placement.keep + _LEAST_GAIN else (placement, 0, None)

    def begin(self, lane: int, prompt_ids: TokenIds, principal: str = "", *, fresh: bool = False) -> int:
        """See :class:`suffixsvc_driver.targets.ParallelTarget`."""
        prompt = check_prompt(prompt_ids, self.vocab_size, self.context_size)
        own = self._lanes[lane]
        placement, _, stored = self._prefix(lane, prompt, principal)
        stored = None if fresh else stored
        stays = 0 if fresh or stored or placement.source is not own.slot else placement.keep
        own.release()
        if len(own.slot.tokens) - stays > (CHEAP_TAIL if stays else 0):
            self._store(own.slot)
        if stored is not None:
            self._restore(own.slot, stored)
        keep = self._place(own, prompt, (lane,), principal, fresh=fresh)
        self._missing[lane] = prompt[keep:-1]
        return keep

    def park(self, lanes: Iterable[int]) -> None:
        """See :class:`suffixsvc_driver.targets.ParallelTarget`."""
        for lane in lanes:
            own = self._lanes[lane]
            if own.slot.tokens and self._store(own.slot):
                own.release()
                self._empty(own.slot)

    def _fits(self, slot: Slot) -> bool:
        """Whether the slot's text may be stored."""
        return len(slot.tokens) <= self._stored.capacity

    def _store(self, slot: Slot) -> bool:
        """Store the KV of a slot in main memory; return whether its text is stored now."""
        tokens = tuple(slot.tokens)
        if not self._fits(slot):
            return False
        if self._stored.covers(slot.principal, tokens):
            return True
        try:
            state = self.context.save_state(slot.index, whole=True)
        except (ModelError, MemoryError) as err:
            _log.warning("the KV of a text could not be stored", tokens=len(tokens), reason=str(err))
            return False
        window = self.model.window  # the state of layers with one is that of its tokens
        shortest = len(tokens) if 0 < window < len(tokens) or self.context.oldest(slot.index) > 0 else 0
        self._stored.add(StoredPrefix(slot.principal, tokens, state, shortest))
        return True

    def _restore(self, slot: Slot, stored: StoredPrefix) -> None:
        """Load a stored prefix into a slot; the slot is empty if llama.cpp refuses it."""
        self._stored.use(stored)
        self._empty(slot)
        try:
            self.context.load_state(slot.index, stored.state, whole=True)
        except ModelError as err:
            _log.warning("stored KV could not be restored", tokens=len(stored.token_ids), reason=str(err))
            self._stored.drop(stored)
            self.context.cut(slot.index, 0)
            return
        slot.principal = stored.principal
        slot.tokens.extend(stored.token_ids)

    def prefill(self, lane: int) -> int:
        """See :class:`suffixsvc_driver.targets.ParallelTarget`.

        Raises:
            ModelError: llama.cpp failed. The lane is empty.
        """
        # removed until it is computed: after a failure the lane has to begin again
        missing = self._missing.pop(lane)
        size = self.settings.batch_size
        if missing:
            self._lanes[lane].fill(missing[:size])
            self._cache.touch(self._lanes[lane].slot)
        self._missing[lane] = missing[size:]
        return len(self._missing[lane])

    def score(self, lane: int, count: int) -> tuple[int, list[TokenLogprobs]]:
        """See :class:`suffixsvc_driver.targets.ParallelTarget`.

        Raises:
            ModelError: llama.cpp failed. The lane is empty.
        """
        missing = self._missing.pop(lane)
        size = self.max_width
        found = self._lanes[lane].score(missing[:size], missing[size : size + 1], count) if missing else []
        self._cache.touch(self._lanes[lane].slot)
        self._missing[lane] = missing[size:]
        return len(self._missing[lane]), found

    def verify_many(self, steps: Sequence[LaneStep]) -> list[StepResult | Exception]:
        """See :class:`suffixsvc_driver.targets.ParallelTarget`.

        Raises:
            InvalidConfigError: settings without a sampler that need the text. Nothing changes.
            InvalidInputError: a lane twice, parents that are not a tree, or a prompt that is not prefilled.
                Nothing changes.
            LimitExceededError: the batch is too wide, a lane is full, or a tree has too many leaves. Nothing
                changes.
            ModelError: llama.cpp failed; every lane is unchanged.
        """
        lanes = [step.lane for step in steps]
        if len(set(lanes)) < len(lanes) or any(self._missing.get(lane, [0]) for lane in lanes):
            raise InvalidInputError("a batch must have each lane once, with its prompt prefilled", got=lanes)
        for lane in lanes:
            self._cache.touch(self._lanes[lane].slot)
        return self._verify(steps)


def _check(settings: ContextSettings) -> None:
    slots, width = settings.slots, settings.max_width
    sequences = slots * (1 + settings.branches)
    require(width >= slots, f"max_width must be >= slots = {slots}: a step has a token of every lane", width)
    require(
        settings.batch_size >= width + slots,
        f"batch_size must be >= max_width + slots = {width + slots}, for replayed tokens",
        settings.batch_size,
    )
    require(
        sequences <= MAX_SEQUENCES,
        f"slots * (1 + branches) must be <= {MAX_SEQUENCES}, the sequences of llama.cpp",
        sequences,
    )
