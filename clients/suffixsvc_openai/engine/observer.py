"""Observer of the engine's answers, and the progress of each answer, which it can read meanwhile."""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass, field

from suffixsvc_driver.decode.generation import StepRecord
from suffixsvc_driver.decode.requests import Outcome
from suffixsvc_driver.decode.running_batch import BatchRecord
from suffixsvc_driver.decode.scheduler import Ticket
from suffixsvc_openai.engine.plans import Plan


@dataclass(slots=True, eq=False)
class Progress:
    """Tokens and steps of an answer so far.

    The scheduler's thread appends, without a lock and in this order; other threads read what is there.

    Attributes:
        steps: every step.
        token_ids: the tokens.
        sources: DraftSource of each token.
        times: of each step, when it was handed over, on the clock ``time.monotonic``.
        ticket: None before the answer is in the queue.
    """

    steps: list[StepRecord] = field(default_factory=list)
    token_ids: array[int] = field(default_factory=lambda: array("i"))
    sources: bytearray = field(default_factory=bytearray)
    times: array[float] = field(default_factory=lambda: array("d"))
    ticket: Ticket | None = None

    def add(self, step: StepRecord) -> None:
        """Append a step."""
        self.steps.append(step)
        self.token_ids.extend(step.emitted)
        self.sources.extend(step.sources)
        self.times.append(time.monotonic())


class Observer:
    """Receives the events of answers; this one ignores them. Its methods must not block."""

    def begun(self, number: int, plan: Plan, progress: Progress) -> None:
        """An answer was submitted. A thread of the engine.

        Args:
            number: of the answer, unique in the engine.
            plan: what was asked for.
            progress: its tokens and steps, from now on.
        """

    def refused(self, number: int) -> None:
        """An answer that had begun found the queue full. A thread of the engine."""

    def ended(self, number: int, outcome: Outcome) -> None:
        """An answer that had begun has ended. A thread of the engine."""

    def batch(self, record: BatchRecord) -> None:
        """A step was computed. The scheduler's thread: all lanes wait."""
