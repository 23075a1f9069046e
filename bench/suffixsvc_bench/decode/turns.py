"""Several answers to one job, a few tokens of each in turn.

A machine drifts within seconds: two answers that lie one after the other differ by ten per cent though
nothing differs but the time. Answers that take turns every few tokens drift together. Each has a clock that
runs only while it is its turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from suffixsvc_bench.decode.outcome import Outcome

__all__ = ["Answering", "Stopwatch", "in_turns", "timed"]

#: tokens that an answer writes before it is the next one's turn: few, so that what disturbs a machine for a
#: second disturbs all ways, however many there are
TURN_TOKENS: Final = 2

Step = TypeVar("Step")
Value = TypeVar("Value")
#: yields how many tokens each step wrote
Answering = Generator[int, None, Outcome]


class Stopwatch:
    """Seconds that passed in its `with` blocks."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._before = 0.0
        self._since: float | None = None

    def __call__(self) -> float:
        return self._before + (0.0 if self._since is None else self._clock() - self._since)

    def __enter__(self) -> None:
        self._since = self._clock()

    def __exit__(self, *_: object) -> None:
        self._before, self._since = self(), None


def timed(steps: Generator[Step, None, Value], watch: Stopwatch) -> Generator[Step, None, Value]:
    """The same steps, ``watch`` running only within them."""
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


def in_turns(answers: Sequence[Answering], turn_tokens: int = TURN_TOKENS) -> list[Outcome]:
    """What came out, in the same order. Always the answer goes on that is furthest behind, the first one of
    several, until it has written so many tokens more."""
    outcomes: dict[int, Outcome] = {}
    written = [0] * len(answers)
    try:
        while len(outcomes) < len(answers):
            behind = min(set(range(len(answers))) - outcomes.keys(), key=lambda i: (written[i], i))
            until = written[behind] + turn_tokens
            try:
                while written[behind] < until:
                    written[behind] += next(answers[behind])
            except StopIteration as finished:
                outcomes[behind] = finished.value
    finally:
        for answer in answers:
            with suppress(Exception):
                answer.close()
    return [outcomes[i] for i in range(len(answers))]
