"""Target of several concurrent generations with llama.cpp: one context, one lane each, one batch for all.

All lanes share one KV memory, so that one batch has tokens of all lanes, and a prompt shares the cells of
another lane's equal prefix. The KV of ended generations stays as long as there are sequences (``prefixes``)
and cells for it; the least recently used is dropped first. A later prompt continues on its sequence, or
shares its cells. Results depend on the order of cells, and so on earlier operations of other lanes: the same
operations from an empty memory on give the same bits (``exactness_parallel``); one of the generations alone
gives the same tokens, except where rounding decides a near-tie.

Recurrent states are supported: llama.cpp computes lanes with drafts of different lengths one after the other,
so that a shared batch is faster only if lanes add equally many tokens, as in plain steps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from suffixsvc.errors import InvalidInputError
from suffixsvc.types import TokenIds
from suffixsvc_driver.drafts.events import StepResult, TokenLogprobs
from suffixsvc_driver.settings.checks import require
from suffixsvc_driver.targets import LaneStep
from suffixsvc_driver.targets.base import TargetBase
from suffixsvc_driver.targets.llama.context import MAX_SEQUENCES, ContextSettings
from suffixsvc_driver.targets.llama.model import LlamaModel, check_prompt


class ParallelLlama(TargetBase):
    """A GGUF model that verifies the drafts of several generations together. Use it as a context manager. Not
    thread-safe.

    Args:
        model: a path to a GGUF file, or a loaded model (which the caller closes).
        settings: see :class:`ContextSettings`; ``slots`` lanes of ``context_size`` tokens, ``branches`` for
            each of them, ``max_width`` verified tokens of all lanes together, ``prefixes`` of ended
            generations beside the lanes.

    Raises:
        ModelNotFoundError, ModelCorruptError, ModelError: an unusable file, or not enough memory.
        InvalidConfigError: a batch cannot hold one token of every lane, or there are too many sequences.
    """

    def __init__(self, model: str | Path | LlamaModel, settings: ContextSettings | None = None) -> None:
        settings = settings or ContextSettings(slots=4)
        _check(settings)
        super().__init__(model, settings, unified=True, lanes=settings.slots)
        self._missing: dict[int, list[int]] = {}
        self.context.make_room = self._drop_prefix

    @property
    def lanes(self) -> int:
        """Number of concurrent generations."""
        return self.settings.slots

    @property
    def shares_prefixes(self) -> bool:
        """See :class:`suffixsvc_driver.targets.ParallelTarget`."""
        return self._cache.copies

    def forget(self) -> None:
        """Empty every lane."""
        self._missing.clear()
        super().forget()

    def check(self, prompt_ids: TokenIds) -> None:
        """See :class:`suffixsvc_driver.targets.ParallelTarget`."""
        check_prompt(prompt_ids, self.vocab_size, self.context_size)

    def lane_for(self, prompt_ids: TokenIds, free: Sequence[int], principal: str = "") -> int:
        """See :class:`suffixsvc_driver.targets.ParallelTarget`."""
        prompt = check_prompt(prompt_ids, self.vocab_size, self.context_size)
        slot = self._cache.place(
            prompt, self._without(set(range(self.lanes)).difference(free)), principal
        ).slot
        return next((lane for lane in free if self._lanes[lane].slot is slot), free[0])

    def missing(self, lane: int, prompt_ids: Sequence[int], principal: str = "") -> int:
        """See :class:`suffixsvc_driver.targets.ParallelTarget`."""
        return len(prompt_ids) - 1 - self._cache.place(prompt_ids, self._usable(lane), principal).keep

    def begin(self, lane: int, prompt_ids: TokenIds, principal: str = "", *, fresh: bool = False) -> int:
        """See :class:`suffixsvc_driver.targets.ParallelTarget`."""
        prompt = check_prompt(prompt_ids, self.vocab_size, self.context_size)
        keep = self._place(self._lanes[lane], prompt, self._usable(lane), principal, fresh=fresh)
        self._missing[lane] = prompt[keep:-1]
        return keep

    def _usable(self, lane: int) -> list[int]:
        """Slots for a prompt on a lane: its own, and those of no lane."""
        return self._without({other for other in range(self.lanes) if other != lane})

    def _without(self, lanes: Collection[int]) -> list[int]:
        """Slots of none of these lanes."""
        used = {self._lanes[lane].slot.index for lane in lanes}
        return [slot.index for slot in self._cache.slots if slot.index not in used]

    def _drop_prefix(self) -> bool:
        """Free the cells of the least recently used sequence of no lane; False if there is none."""
        unused = [self._cache.slots[i] for i in self._without(range(self.lanes))]
        held = [slot for slot in unused if slot.tokens]
        if held:
            dropped = self._cache.oldest(held)
            self.context.cut(dropped.index, 0)
            dropped.truncate(0)
        return bool(held)

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
    sequences = slots * (1 + settings.branches) + settings.prefixes
    require(width >= slots, f"max_width must be >= slots = {slots}: a step has a token of every lane", width)
    require(
        settings.batch_size >= width + slots,
        f"batch_size must be >= max_width + slots = {width + slots}, for replayed tokens",
        settings.batch_size,
    )
    require(
        sequences <= MAX_SEQUENCES,
        f"slots * (1 + branches) + prefixes must be <= {MAX_SEQUENCES}, the sequences of llama.cpp",
        sequences,
    )
