"""A call: answers that one client waits for, handed from the scheduler's thread to the client's event loop.

    scheduler's thread                        event loop
    on_step, done ──> events of the call ──> async for event in call.events()

The hand-over never blocks the scheduler: a lane does not wait for a slow client. What waits is bounded by the
tokens that the call may generate, which the context bounds.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from suffixsvc.errors import SuffixError
from suffixsvc_driver.decode.generation import StepRecord
from suffixsvc_driver.decode.requests import Outcome
from suffixsvc_driver.decode.scheduler import Ticket
from suffixsvc_driver.drafts.events import TokenLogprobs
from suffixsvc_driver.layers import Layer
from suffixsvc_openai.engine.attempts import Attempts
from suffixsvc_openai.engine.memory import MemorySession, NotStored
from suffixsvc_openai.engine.observer import Progress
from suffixsvc_openai.engine.plans import Plan


@dataclass(frozen=True, slots=True)
class Written:
    """Tokens of an answer.

    Attributes:
        index: of the answer.
        token_ids: the tokens.
        sources: DraftSource of each token.
        logprobs: of each token; empty unless the plan's sampling settings ask for them.
    """

    index: int
    token_ids: tuple[int, ...]
    sources: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptScored:
    """Log probabilities of the prompt of an answer, which precede its tokens.

    Attributes:
        index: of the answer.
        logprobs: of each token of the prompt but the first.
    """

    index: int
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an answer.

    Attributes:
        predicted: tokens of the plan's prediction that appeared in it.
    """

    index: int
    outcome: Outcome
    predicted: int = 0


#: of an answer: at most one PromptScored, any number of Written, one Ended
Event = PromptScored | Written | Ended


@dataclass(slots=True, eq=False)
class Job:
    """An answer on its way through the scheduler.

    Attributes:
        number: 0 until it is submitted.
        started: when it got a lane, on the clock ``time.monotonic``; None if it ended in the queue.
        ended: when it ended, on the same clock.
        not_stored: why its output is not stored; None if it is. Known after its end.
    """

    index: int
    plan: Plan
    number: int = 0
    progress: Progress = field(default_factory=Progress)
    session: MemorySession | None = None
    attempts: Attempts = field(default_factory=Attempts)
    layers: list[Layer] = field(default_factory=list)
    ticket: Ticket | None = None
    started: float | None = None
    ended: float = 0.0
    not_stored: NotStored | None = NotStored.ERROR


@dataclass(slots=True, eq=False, weakref_slot=True)
class Call:
    """The answers of one request. Made in the event loop that reads its events.

    Args:
        plans: of each answer.
        arrived: when its request was read, on the clock ``time.monotonic``.

    Attributes:
        ended: answers whose end was counted; the thread of sessions counts them.
    """

    plans: Sequence[Plan]
    arrived: float = field(default_factory=time.monotonic)
    ended: int = field(default=0, init=False)
    jobs: list[Job] = field(init=False)
    lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    cancelled: bool = field(default=False, init=False)  # guarded by the lock, as the tickets of the jobs are
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)
    _events: deque[Event] = field(default_factory=deque, init=False)
    _ready: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _woken: bool = field(default=False, init=False)
    _error: SuffixError | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.jobs = [Job(index, plan) for index, plan in enumerate(self.plans)]

    # -- the scheduler's thread

    def on_step(self, index: int, step: StepRecord) -> None:
        """Hand over the tokens of a step."""
        self.jobs[index].progress.add(step)
        self.put(Written(index, step.emitted, step.sources, step.logprobs))

    def on_prompt(self, index: int, logprobs: tuple[TokenLogprobs, ...]) -> None:
        """Hand over the log probabilities of a prompt."""
        self.put(PromptScored(index, logprobs))

    def put(self, event: Event) -> None:
        """Hand over an event. Any thread."""
        self._events.append(event)
        if not self._woken:  # one call per batch of events: each costs a system call
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed: nothing waits for the answer
                self._loop.call_soon_threadsafe(self._wake)

    def fail(self, error: SuffixError) -> None:
        """Let :meth:`events` end with an error, whatever was handed over. Any thread."""
        self._error = error
        with suppress(RuntimeError):  # as above
            self._loop.call_soon_threadsafe(self._wake)

    # -- the event loop

    def _wake(self) -> None:
        self._woken = False
        self._ready.set()

    async def begun(self) -> None:
        """Wait for the first event, which :meth:`events` yields at once then."""
        await self._ready.wait()

    async def events(self) -> AsyncIterator[Event]:
        """Yield what was handed over, until every answer has ended. Raises the error of :meth:`fail`."""
        left = len(self.jobs)
        while left:
            await self._ready.wait()
            self._ready.clear()
            while self._events or self._error is not None:
                if self._error is not None:
                    raise self._error
                event = self._events.popleft()
                left -= isinstance(event, Ended)
                yield event
