"""Scheduler of requests that arrive at any time, for servers: bounded queue, fairness, cancellation.

    submit ──> queue ──> lane ──> outcome
      │ full      └────────┴── cancel: the lane is free within one step
      └──> QueueFullError

The lanes, their target and every callback belong to one thread. Other threads change only the queue and the
list of cancelled requests, under one lock, which no callback is called with.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import structlog

from suffixsvc.errors import ServiceUnavailableError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc_driver.decode.fair_queue import FairQueue
from suffixsvc_driver.decode.generation import Request
from suffixsvc_driver.decode.requests import Failure, Outcome, QueueFullError
from suffixsvc_driver.decode.running_batch import Running, RunningBatch
from suffixsvc_driver.policy.decaying_mean import DecayingMean
from suffixsvc_driver.settings.checks import as_integer

_log = structlog.get_logger(__name__)

#: weight of the mean time between two ends of requests, in requests
_ENDS: Final = 32.0


@dataclass(slots=True, eq=False)
class Ticket:
    """A submitted request.

    Attributes:
        request, namespace: as submitted.
        done: called once with the outcome, in the scheduler's thread.
        running: its lane, while it has one.
    """

    request: Request
    namespace: str
    done: Callable[[Outcome], None]
    running: Running | None = field(default=None, init=False)
    charged: int = field(default=0, init=False)  # tokens that are counted for its namespace
    ended: bool = field(default=False, init=False)


class Load(NamedTuple):
    """Numbers of requests on lanes and in the queue."""

    running: int
    waiting: int


class Scheduler(ClosedOnExit):
    """Runs requests in a thread of its own. Thread-safe; use it as a context manager.

    Args:
        batch: the lanes, which only the scheduler's thread uses.
        queue_size: largest number of requests that wait for a lane. One namespace may have as many of them as
            the queue has free places, so that it cannot fill the queue.
        clock: seconds, to measure the pace of the queue.

    Raises:
        InvalidConfigError: ``queue_size`` is not an integer >= 1.
    """

    def __init__(
        self, batch: RunningBatch, queue_size: int = 256, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._batch, self._queue_size = batch, as_integer("queue_size", queue_size)
        self._clock = clock
        self._changed = threading.Condition()  # guards all below
        self._queue: FairQueue[Ticket] = FairQueue()
        self._on_lanes: set[Ticket] = set()
        self._cancelled: list[Ticket] = []
        self._closed = False
        self._between_ends = DecayingMean(_ENDS)  # seconds, while requests wait: the pace of the queue
        self._last_end = 0.0
        self._thread = threading.Thread(target=self._run, name="suffixsvc-scheduler", daemon=True)
        self._thread.start()

    @property
    def load(self) -> Load:
        """The load now."""
        with self._changed:
            return Load(len(self._on_lanes), len(self._queue))

    def submit(self, request: Request, done: Callable[[Outcome], None], namespace: str = "") -> Ticket:
        """Queue a request.

        Args:
            request: its callbacks are called in the scheduler's thread, and delay all other requests.
            done: called once with its outcome, in the same thread.
            namespace: requests of different namespaces get equal shares of the lanes, in tokens.

        Raises:
            InvalidTokensError: an empty prompt, or ids outside the vocabulary.
            LimitExceededError: a prompt longer than the context.
            QueueFullError: too many requests wait.
            ServiceUnavailableError: the scheduler is closed.
        """
        self._batch.check(request)
        ticket = Ticket(request, namespace, done)
        with self._changed:
            if self._closed:
                raise ServiceUnavailableError("the scheduler is closed", remedy="Make a new one.")
            self._admit(namespace)
            self._queue.push(namespace, ticket)
            self._changed.notify()
        return ticket

    def _admit(self, namespace: str) -> None:
        waiting, own = len(self._queue), self._queue.waiting(namespace)
        if own < self._queue_size - waiting:
            return
        error = QueueFullError(
            "the queue is full"
            if waiting >= self._queue_size
            else f"namespace {namespace!r} fills the queue",
            expected=f"at most {self._queue_size} waiting requests, of one namespace at most the free places",
            got=f"{waiting} waiting, {own} of the namespace",
            remedy="Send the request again later.",
        )
        error.retry_seconds = self._between_ends.mean(0.0, 0.0) if self._between_ends.weight else 0.0
        raise error

    def cancel(self, ticket: Ticket) -> None:
        """End a request, within one step if it is on a lane.

        Its outcome is what it has generated, or a Failure (CancelledError) while its prompt is incomplete.
        Nothing happens if it has ended.
        """
        with self._changed:
            if not self._closed:  # otherwise all are cancelled
                self._cancelled.append(ticket)
                self._changed.notify()

    def close(self) -> None:
        """Cancel all requests and end the thread. Idempotent.

        Returns after the last outcome. Called by a callback of a request it returns at once, and the thread
        ends after its step.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # -- the scheduler's thread

    def _run(self) -> None:
        try:
            while self._wait():
                self._cancel()
                self._start()
                self._advance()
        finally:
            with self._changed:
                self._closed = True  # also after a defect: a request must not wait for a thread that ended
                self._cancelled = [*self._queue.drain(), *self._on_lanes]
            self._cancel()

    def _wait(self) -> bool:
        """Wait for something to do; return False when the scheduler is closed."""
        with self._changed:
            while not (self._closed or self._queue or self._cancelled or self._on_lanes):
                self._queue.forget_idle()
                self._changed.wait()
            return not self._closed

    def _cancel(self) -> None:
        """End the requests that were cancelled since the last step."""
        with self._changed:
            cancelled, self._cancelled = self._cancelled, []
            for ticket in cancelled:
                self._queue.remove(ticket.namespace, ticket)
        for ticket in cancelled:
            if ticket.running is not None:
                self._batch.cancel(ticket.running)
            else:
                self._end(ticket, Failure(CancelledError()))

    def _start(self) -> None:
        """Give the free lanes to waiting requests."""
        self._charge()
        while not self._batch.full:
            with self._changed:
                ticket = self._queue.pop()
                if ticket is None:
                    return
                # at once, or the same namespace would get all free lanes
                ticket.charged = len(ticket.request.prompt_ids)
                self._queue.charge(ticket.namespace, ticket.charged)
                self._on_lanes.add(ticket)
            try:
                ticket.running = self._batch.add(ticket.request, partial(self._end, ticket))
            except Exception as err:  # of this request only
                self._end(ticket, Failure(err))

    def _advance(self) -> None:
        try:
            self._batch.advance()
        except BaseException as err:  # a defect, or a callback that exits: those that wait are not lost
            _log.exception("a step failed", requests=len(self._on_lanes))
            self._batch.fail_all(err if isinstance(err, Exception) else RuntimeError(repr(err)))

    def _charge(self) -> None:
        """Count the tokens that the running requests were served since the last count."""
        with self._changed:
            for ticket in self._on_lanes:
                if ticket.running is not None:
                    served = ticket.running.served
                    self._queue.charge(ticket.namespace, served - ticket.charged)
                    ticket.charged = served

    def _record_end(self) -> None:
        """Measure the time since the last lane became free, if requests have waited for this one."""
        now = self._clock()
        if self._queue and self._last_end:
            self._between_ends.add(now - self._last_end)
        self._last_end = now if self._queue else 0.0

    def _end(self, ticket: Ticket, outcome: Outcome) -> None:
        if ticket.ended:
            return
        ticket.ended = True
        self._charge()
        ticket.running = None  # the owner may keep the ticket, but not the generation's memory
        with self._changed:
            if ticket in self._on_lanes:
                self._on_lanes.remove(ticket)
                self._record_end()
        try:
            ticket.done(outcome)
        except BaseException:  # of this request's owner
            _log.exception("the outcome of a request could not be processed", namespace=ticket.namespace)
