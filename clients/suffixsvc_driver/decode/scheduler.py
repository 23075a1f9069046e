"""Scheduler of requests that arrive at any time, for servers: bounded queue, fairness, cancellation.

    submit ──> queue ──> lane ──> outcome
      │ full      └────────┴── cancel: the lane is free within one step
      └──> QueueFullError

The lanes, their target and every callback belong to one thread. Other threads change only the queue and the
list of cancelled requests, under one lock, which no callback is called with.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import structlog

from suffixsvc.errors import LimitExceededError, ServiceUnavailableError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc_driver.decode.fair_queue import FairQueue, Share
from suffixsvc_driver.decode.generation import Request
from suffixsvc_driver.decode.requests import Failure, Outcome, QueueFullError
from suffixsvc_driver.decode.running_batch import Running, RunningBatch
from suffixsvc_driver.policy.decaying_mean import DecayingMean
from suffixsvc_driver.settings.checks import as_integer

_log = structlog.get_logger(__name__)

#: weight of the mean time between two ends of requests, in requests
_ENDS: Final = 32.0
#: share of callers that name none
_ALL: Final[Share] = ("",)


@dataclass(slots=True, eq=False)
class Ticket:
    """A submitted request.

    Attributes:
        request, share: as submitted.
        done: called once with the outcome, in the scheduler's thread.
        running: its lane, while it has one.
        started: when it got a lane, on the clock ``time.monotonic``; None before.
    """

    request: Request
    share: Share
    done: Callable[[Outcome], None]
    running: Running | None = field(default=None, init=False)
    started: float | None = field(default=None, init=False)
    charged: int = field(default=0, init=False)  # tokens that are counted for its share
    ended: bool = field(default=False, init=False)


class Load(NamedTuple):
    """Numbers of requests on lanes and in the queue."""

    running: int
    waiting: int


class Scheduler(ClosedOnExit):
    """Runs requests in a thread of its own. Thread-safe; use it as a context manager.

    Args:
        batch: the lanes, which only the scheduler's thread uses.
        queue_size: largest number of requests that wait for a lane. A share may have as many of them as the
            share above it has free places, at every level, so that none fills the queue.
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

    @property
    def ended(self) -> bool:
        """Whether its thread has ended: after :meth:`close`, or a defect."""
        return not self._thread.is_alive()

    def submit(self, request: Request, done: Callable[[Outcome], None], share: Share = _ALL) -> Ticket:
        """Queue a request; see :meth:`submit_all`."""
        [ticket] = self.submit_all([(request, done)], share)
        return ticket

    def submit_all(
        self,
        requests: Sequence[tuple[Request, Callable[[Outcome], None]]],
        share: Share = _ALL,
        whole: int = 0,
    ) -> list[Ticket]:
        """Queue requests, all of them or none.

        Args:
            requests: each with a function that is called once with its outcome. It is called in the
                scheduler's thread, as the request's own callbacks are, and delays all other requests.
            share: a path of names, such as (principal, namespace), of the same length in every call. At each
                level the names get equal shares of the lanes, in tokens.
            whole: levels from the widest that have one name only, which may have all places in the queue that
                the level above has.

        Raises:
            InvalidTokensError: an empty prompt, or ids outside the vocabulary.
            LimitExceededError: a prompt longer than the context, or more requests than :meth:`most`.
            QueueFullError: too many requests wait.
            ServiceUnavailableError: the scheduler is closed.
        """
        for request, _ in requests:
            self._batch.check(request)
        tickets = [Ticket(request, share, done) for request, done in requests]
        with self._changed:
            if self._closed:
                raise ServiceUnavailableError("the scheduler is closed", remedy="Make a new one.")
            self._admit(share, len(tickets), whole)
            for ticket in tickets:
                self._queue.push(share, ticket)
            self._changed.notify()
        return tickets

    def most(self, share: Share = _ALL, whole: int = 0) -> int:
        """Return the largest number of requests that :meth:`submit_all` takes at once, when all is idle."""
        return self._batch.lanes + self._places([0] * (len(share) + 1), whole)

    def _places(self, others: Sequence[int], whole: int) -> int:
        """Return the places in the queue for a share.

        Args:
            others: requests that wait beside the share, at each level from the widest: 0, those of other
                principals, those of the principal's other namespaces.
        """
        places = self._queue_size
        for level, each in enumerate(others[1:]):
            places -= each
            if level >= whole:  # of what the others left, the free ones are as many as its own
                places = (places + 1) // 2
        return places

    def _admit(self, share: Share, count: int, whole: int) -> None:
        """Raise unless so many requests of a share may wait; free lanes take the first of them at once."""
        most = self.most(share, whole)
        if count > most:
            raise LimitExceededError("too many requests at once", expected=f"at most {most}", got=count)
        free = self._batch.lanes - len(self._on_lanes)
        waiting = [self._queue.waiting(share[:level]) for level in range(len(share) + 1)]
        after = [max(0, own + count - free) for own in waiting]
        others = [0, *(above - own for above, own in itertools.pairwise(after))]
        if not after[0] or all(
            own <= self._places(others[: level + 1], whole) for level, own in enumerate(after)
        ):
            return
        error = QueueFullError(
            "the queue is full"
            if after[0] > self._queue_size
            else f"{'/'.join(share[whole:])!r} fills its part of the queue",
            expected=f"at most {self._queue_size} waiting requests, of one share at most the free places",
            got=f"{waiting[0]} waiting, {waiting[-1]} of the share, {count} more",
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
                self._queue.remove(ticket.share, ticket)
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
                self._on_lanes.add(ticket)  # first: whatever fails now, it is not lost
                # at once, or the same share would get all free lanes
                ticket.charged = len(ticket.request.prompt_ids)
                self._queue.charge(ticket.share, ticket.charged)
            ticket.started = time.monotonic()
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
        """Count the tokens of the running requests, with those of their prompts that are to be computed."""
        with self._changed:
            for ticket in self._on_lanes:
                if ticket.running is not None:
                    self._recharge(ticket, ticket.running.expected)

    def _recharge(self, ticket: Ticket, tokens: int) -> None:
        self._queue.charge(ticket.share, tokens - ticket.charged)
        ticket.charged = tokens

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
        try:
            self._settle(ticket)
        except Exception:  # a defect: the owner waits for its outcome nevertheless
            _log.exception("the tokens of a request could not be counted", share=ticket.share)
        try:
            ticket.done(outcome)
        except BaseException:  # of this request's owner
            _log.exception("the outcome of a request could not be processed", share=ticket.share)

    def _settle(self, ticket: Ticket) -> None:
        """Count the tokens of a request that has ended, and free its place."""
        running = ticket.running
        with self._changed:
            try:
                self._charge()
                if ticket in self._on_lanes:
                    # what it did not need is taken back
                    self._recharge(ticket, 0 if running is None else running.served)
                    self._record_end()
            finally:
                ticket.running = None  # the owner may keep the ticket, but not its memory
                self._on_lanes.discard(ticket)
