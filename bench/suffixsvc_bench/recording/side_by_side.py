"""Many answers of a model at once, greedily: every step computes one token of each.

    slots of the KV:   0 .. BEGINNINGS-1   beginnings of prompts (system messages), least recently used goes
                       BEGINNINGS ..       answers under way: a beginning copied, the rest of the prompt

On one core a step of 32 tokens takes about as long as 7 or 8 steps of one, so answers come four times as fast
as one after the other. Drafting, which fills a step with tokens of one answer, could only equal that if it
foresaw every token. Where many answers are wanted and none of them soon, this is the way.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from suffixsvc_driver.events import FinishReason
from suffixsvc_driver.sampling import GREEDY, choose
from suffixsvc_driver.targets.llama_context import ContextSettings, LlamaContext, Outputs
from suffixsvc_driver.targets.llama_model import LlamaModel

from suffixsvc.errors import LimitExceededError
from suffixsvc_bench.recorded_call import RecordedCall, text_of
from suffixsvc_bench.workloads import Task

__all__ = ["BEGINNINGS", "SideBySide", "settings_for"]

BEGINNINGS: Final = 32
#: what a prompt and its answer may take together
CONTEXT: Final = 1536


def settings_for(threads: int, width: int) -> ContextSettings:
    """Of a context in which ``width`` answers are under way at once."""
    return ContextSettings(context_size=CONTEXT, slots=BEGINNINGS + width, threads=threads, max_width=width)


@dataclass(slots=True)
class _Answer:
    """An answer under way. In its slot's KV: prompt and ``written``, all but the newest token."""

    task: Task
    slot: int
    prompt: str
    prompt_ids: list[int]
    written: list[int] = field(default_factory=list)

    @property
    def newest(self) -> int:
        return self.written[-1] if self.written else self.prompt_ids[-1]

    @property
    def position(self) -> int:
        """Of the newest token."""
        return len(self.prompt_ids) + len(self.written) - 1


class SideBySide:
    """A model that answers several tasks at once. Use it as a context manager. Not thread-safe.

    Args:
        model: a GGUF file.
        settings: see :func:`settings_for`; all slots but the first ``BEGINNINGS`` hold answers.
        on_step: called after every step; what it raises goes through.

    Raises:
        ModelNotFoundError, ModelCorruptError, ModelError: the file, or not enough memory.
    """

    def __init__(
        self, model: Path, settings: ContextSettings, on_step: Callable[[], None] = lambda: None
    ) -> None:
        self.model = LlamaModel(model)
        try:
            self._context = LlamaContext(self.model, settings)
        except BaseException:
            self.model.close()
            raise
        self._free = list(range(BEGINNINGS, settings.slots))
        #: system message -> its slot, the least recently used first
        self._beginnings: dict[str, int] = {}
        self._on_step = on_step

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.close()
        self.model.close()

    def answers(self, tasks: Iterator[Task]) -> Iterator[tuple[Task, RecordedCall]]:
        """The answers, in the order in which they end. Takes a task whenever there is room for it.

        Raises:
            LimitExceededError: a prompt leaves no room for an answer.
            ModelError: llama.cpp failed.
        """
        # by slot, without gaps while there are tasks: llama.cpp computes a run of adjacent slots at once
        under_way: list[_Answer] = []
        while True:
            while self._free and (task := next(tasks, None)) is not None:
                bisect.insort(under_way, self._begin(task), key=lambda answer: answer.slot)
            if not under_way:
                return
            self._step(under_way)
            for answer in list(under_way):
                finish = self._finish(answer)
                if finish is not None:
                    under_way.remove(answer)
                    heapq.heappush(self._free, answer.slot)
                    yield answer.task, self._recorded(answer, finish)

    def _begin(self, task: Task) -> _Answer:
        prompt = self.model.chat(task.messages)
        ids = self.model.tokenize(prompt)
        if len(ids) >= self._context.slot_size:
            raise LimitExceededError(
                f"the prompt of task {task.id} is too long",
                expected=f"less than {self._context.slot_size} tokens",
                got=len(ids),
            )
        slot = heapq.heappop(self._free)
        common = self._copy_beginning(task, ids, slot)
        self._prefill(ids[:-1], common, slot)
        return _Answer(task, slot, prompt, ids)

    def _copy_beginning(self, task: Task, ids: list[int], slot: int) -> int:
        """Returns how many tokens of the prompt ``slot`` holds now: those of the system message."""
        system = self.model.tokenize(self.model.chat(task.messages[:1], add_assistant=False))
        if ids[: len(system)] != system or len(system) == len(ids):
            self._context.cut(slot, 0)
            return 0
        name = task.messages[0]["content"]
        source = self._beginnings.pop(name, None)
        if source is None:
            source = len(self._beginnings)
            if source == BEGINNINGS:
                source = self._beginnings.pop(next(iter(self._beginnings)))
            self._context.cut(source, 0)
            self._prefill(system, 0, source)
        self._beginnings[name] = source
        self._context.copy(source, slot)
        return len(system)

    def _prefill(self, ids: list[int], start: int, slot: int) -> None:
        size = self._context.settings.batch_size
        for at in range(start, len(ids), size):
            self._context.decode(ids[at : at + size], at, slot, Outputs.NONE)
            self._on_step()

    def _step(self, under_way: list[_Answer]) -> None:
        self._context.decode_each(
            [answer.newest for answer in under_way],
            [answer.position for answer in under_way],
            [answer.slot for answer in under_way],
        )
        for i, answer in enumerate(under_way):
            answer.written.append(choose(self._context.logits(i), GREEDY, answer.position + 1))
        self._on_step()

    def _finish(self, answer: _Answer) -> FinishReason | None:
        if answer.newest in self.model.eog_ids:
            return FinishReason.STOP
        if len(answer.written) >= answer.task.max_tokens:
            return FinishReason.LENGTH
        return FinishReason.CONTEXT if answer.position >= self._context.slot_size else None

    def _recorded(self, answer: _Answer, finish: FinishReason) -> RecordedCall:
        return RecordedCall(
            session=answer.task.id,
            agent=answer.task.kind,
            turn=0,
            prompt=answer.prompt,
            response=text_of(self.model, answer.written, self.model.eog_ids),
            prompt_ids=answer.prompt_ids,
            token_ids=answer.written,
            finish=str(finish),
        )
