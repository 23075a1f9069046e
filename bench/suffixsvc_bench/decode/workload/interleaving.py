"""Interleaved answers to one job: a few tokens of each at a time, each with its own stopwatch.

A machine's speed drifts within seconds: consecutive answers differ by ten per cent for no other reason.
Interleaved answers see the same drift.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from suffixsvc_bench.speculation.paired import Outcome

#: tokens that an answer writes before the next one continues; few, so that a disturbance of a second hits
#: all answers alike
SLICE_TOKENS: Final = 2

Step = TypeVar("Step")
Value = TypeVar("Value")
#: yields the number of tokens of each step
AnswerSteps = Generator[int, None, Outcome]


class Stopwatch:
    """Seconds spent in its `with` blocks."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._before = 0.0
        self._since: float | None = None

    def __call__(self) -> float:
        """Seconds so far."""
        return self._before + (0.0 if self._since is None else self._clock() - self._since)

    def __enter__(self) -> None:
        self._since = self._clock()

    def __exit__(self, *_: object) -> None:
        self._before, self._since = self(), None


def timed(steps: Generator[Step, None, Value], watch: Stopwatch) -> Generator[Step, None, Value]:
    """Yield the same steps while ``watch`` runs only within them."""
    try:
        while True:
            with watch:
                try:
                    step = next(steps)
                except StopIteration as finished:
                    value: Value = finished.value
                    return value
            yield step
    finally:
        steps.close()


def interleave(answers: Sequence[AnswerSteps], slice_tokens: int = SLICE_TOKENS) -> list[Outcome]:
    """Run the answers to their ends; return the outcomes in the same order.

    The answer with the fewest tokens continues, the first one of several, until it has written
    ``slice_tokens`` more.
    """
    outcomes: dict[int, Outcome] = {}
    written = [0] * len(answers)
    try:
        while len(outcomes) < len(answers):
            last = min(set(range(len(answers))) - outcomes.keys(), key=lambda i: (written[i], i))
            until = written[last] + slice_tokens
            try:
                while written[last] < until:
                    written[last] += next(answers[last])
            except StopIteration as finished:
                outcomes[last] = finished.value
    finally:
        for answer in answers:
            with suppress(Exception):
                answer.close()
    return [outcomes[i] for i in range(len(answers))]
