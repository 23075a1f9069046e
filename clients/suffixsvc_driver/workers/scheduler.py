"""Who computes when: one thread for the model, a short queue in front of it, and "busy" for the rest.

A draft that comes late is worth nothing, so a request either starts within a bound or is told at once that
the worker is busy, with nothing done. What has started shares the model, batch by batch:

    submit() ──> waiting (few, and not for long) ──> lanes: drafting, one batch for as many as pays
        └─busy                                   └─> readers: long contexts, a chunk at a time in between

A long context - a new prompt - is read in chunks, so that it does not keep the others from drafting; nobody
waits for its draft. Each request may say how long its driver waits: it is answered by then, with what was
drafted so far. The context is read to its end in any case, or the session would never catch up.

What the engine raises unexpectedly fails the requests of that very batch or read: it is logged and counted,
the KV that no other request works on is read again, and the thread goes on. Every admitted request is
answered, also where the log cannot be written or the thread ends.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import structlog

from suffixsvc.errors import InvalidConfigError, ModelError, ServiceUnavailableError, SuffixError
from suffixsvc.interrupts import AtomicCondition
from suffixsvc.types import Draft
from suffixsvc_driver.workers.engine import DraftEngine, DraftRequest, Job

__all__ = ["Scheduler", "Ticket"]

_log = structlog.get_logger(__name__)
#: a context with more tokens to read than this is read in chunks, beside the drafting ones
_SHORT_READ: Final = 64
_CHUNK: Final = 16
#: batches of drafting between two chunks of reading
_DRAFTS_PER_CHUNK: Final = 6
#: how long a request may wait for its start: so many tokens of the model, and at least so many seconds
_BUSY_AFTER_TOKENS: Final = 2.0
_BUSY_AFTER_SECONDS: Final = 0.005
#: an answer needs a moment to reach its driver
_MARGIN_SECONDS: Final = 0.001
#: pause after a failure that no request explains: it may come again at once
_FAILED_PAUSE_SECONDS: Final = 0.1


class Ticket:
    """A request on its way through the scheduler.

    Attributes, valid once :meth:`wait` has returned:
        busy: nothing was done.
        error: why there is no draft.
        draft, length: the answer, and the context tokens now held for the session.
        seconds: from its start to its end.
    """

    def __init__(
        self, request: DraftRequest, arrived: float, timeout_seconds: float, wait_seconds: float
    ) -> None:
        self.request = request
        self.wait_seconds = wait_seconds
        self.deadline = arrived + timeout_seconds - _MARGIN_SECONDS if timeout_seconds > 0 else None
        self.busy = False
        self.error: SuffixError | None = None
        self.draft = Draft.empty()
        self.length = 0
        self.seconds = 0.0
        self.cancelled = False
        self.job: Job | None = None
        self.started_at = 0.0
        self.started = threading.Event()
        self.done = threading.Event()


class Scheduler:
    """Runs an engine on a thread of its own. Everything else is thread-safe.

    Args:
        engine: the scheduler's alone from :meth:`start` to :meth:`stop`. What it raises unexpectedly is a
            ModelError of the requests concerned.
        queue: requests that may wait at a time; one more is told "busy" at once.
        busy_after_seconds: how long one may wait for its start unless it says so itself; by default two
            tokens of the model, and 5 ms at least.

    Attributes:
        failures: unexpected exceptions so far, of requests and of the thread's own work.

    Raises:
        InvalidConfigError: a queue below 1, a time that is negative or no number.
    """

    def __init__(
        self,
        engine: DraftEngine,
        *,
        queue: int = 8,
        busy_after_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if queue < 1:
            raise InvalidConfigError("the worker's queue makes no sense", expected=">= 1", got=queue)
        if busy_after_seconds is not None and not 0.0 <= busy_after_seconds < math.inf:
            raise InvalidConfigError(
                "busy_after_seconds makes no sense", expected="a finite number >= 0", got=busy_after_seconds
            )
        self._engine = engine
        self._queue = queue
        own = max(_BUSY_AFTER_SECONDS, _BUSY_AFTER_TOKENS * engine.seconds_per_token)
        self.busy_after_seconds = own if busy_after_seconds is None else busy_after_seconds
        self._clock = clock
        self._changed = AtomicCondition()
        # under the condition's lock
        self._waiting: deque[Ticket] = deque()
        self._forgetting: deque[str] = deque()
        self._draining = False
        self._stopping = False
        self._batch_ends = 0.0
        self._lanes_used = 0
        self._slots_used = 0
        self._work_left = 0.0
        # the thread's own
        self._lanes: list[Ticket] = []
        self._readers: deque[Ticket] = deque()
        self._finished: list[Ticket] = []
        self._admitted: set[Ticket] = set()  # taken from the queue and not answered yet
        self._drafts_since_chunk = 0
        self.failures = 0
        self._thread = threading.Thread(target=self._run, name="draft-model", daemon=True)

    def start(self) -> None:
        """Compute from now on."""
        self._thread.start()

    def stop(self, drain_seconds: float = 0.0) -> None:
        """Take nothing more, and end the thread; what is still under way after ``drain_seconds`` is answered
        with ServiceUnavailableError."""
        with self._changed:
            self._draining = True
            self._changed.wait_for(self._is_idle, timeout=drain_seconds)
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        self._give_up()  # where it never ran

    @property
    def stopped(self) -> bool:
        """Nothing is taken any more: :meth:`stop` was called."""
        with self._changed:
            return self._draining

    def _is_idle(self) -> bool:
        return self._stopping or not (self._waiting or self._slots_used)

    # -- for the threads that ask

    def submit(
        self, request: DraftRequest, timeout_seconds: float = 0.0, wait_seconds: float = 0.0
    ) -> Ticket:
        """Queue a request, or tell it at once that it would have to wait too long.

        Args:
            timeout_seconds: how long the driver waits for the answer; 0 = as long as it takes.
            wait_seconds: how long the request may wait for its start; 0 = ``busy_after_seconds``.
        """
        now = self._clock()
        ticket = Ticket(request, now, timeout_seconds, wait_seconds or self.busy_after_seconds)
        with self._changed:
            if self._draining:
                ticket.error = ServiceUnavailableError("the worker is stopping")
                ticket.done.set()
                ticket.started.set()
            elif len(self._waiting) >= self._queue or self._starts_in(now) > ticket.wait_seconds:
                self._refuse(ticket)
            else:
                self._waiting.append(ticket)
                self._changed.notify_all()
        return ticket

    def wait(self, ticket: Ticket) -> None:
        """Until the ticket is answered. One that does not start within the bound is told "busy" then."""
        if not ticket.started.wait(ticket.wait_seconds):
            with self._changed:
                if ticket in self._waiting:
                    self._waiting.remove(ticket)
                    self._refuse(ticket)
        ticket.done.wait()

    def cancel(self, ticket: Ticket) -> None:
        """Nobody waits for it any more."""
        ticket.cancelled = True

    def forget(self, session_id: str) -> None:
        """Drop a session, soon."""
        with self._changed:
            self._forgetting.append(session_id)
            self._changed.notify_all()

    def _starts_in(self, now: float) -> float:
        """Seconds until one more request would start, by what batches have taken so far."""
        engine = self._engine
        ahead = len(self._waiting)
        this_batch = max(0.0, self._batch_ends - now)
        lanes_free = engine.costs.lanes - self._lanes_used
        if ahead < min(lanes_free, engine.slots - self._slots_used):
            return this_batch
        queued = sum(self._cost(ticket.request) for ticket in self._waiting)
        return this_batch + (self._work_left + queued) / max(1, engine.costs.lanes)

    def _cost(self, request: DraftRequest) -> float:
        costs = self._engine.costs
        wanted = min(request.max_draft_tokens, self._engine.context_size)
        looked_at = min(len(request.suggested), self._engine.most_checked(wanted))
        return costs.read_seconds(len(request.new_token_ids) + looked_at) + costs.step_seconds(1) * wanted

    def _refuse(self, ticket: Ticket) -> None:
        ticket.busy = True
        ticket.done.set()
        ticket.started.set()

    # -- the model's thread

    def _run(self) -> None:
        going = True
        try:
            while going:
                try:
                    going = self._answer_and_admit()
                    if going:
                        self._compute()
                except Exception as err:  # of no request: all that are under way may be concerned
                    self._fail(list(self._admitted), err)
                    with self._changed:
                        self._changed.wait(_FAILED_PAUSE_SECONDS)
        finally:
            self._give_up()

    @contextmanager
    def _failing(self, *tickets: Ticket) -> Iterator[None]:
        """What is raised in here fails these requests, and nothing else."""
        try:
            yield
        except Exception as err:  # a bug in one request must end neither the others nor the thread
            self._fail(tickets, err)

    def _fail(self, tickets: Sequence[Ticket], err: Exception) -> None:
        self.failures += 1
        self._lanes = [ticket for ticket in self._lanes if ticket not in tickets]
        self._readers = deque(ticket for ticket in self._readers if ticket not in tickets)
        self._engine.clear(self._taken())  # the failure may have left anything in the KV
        self._finish_all(tickets, ModelError("the draft model failed", got=repr(err)[:80]))
        # last, and guarded: standard error may be a pipe that is closed
        with suppress(Exception):
            _log.warning(
                "the draft model failed unexpectedly; the worker goes on",
                sessions=[ticket.request.session_id for ticket in tickets],
                failures=self.failures,
                error=repr(err)[:300],
                exc_info=err if self.failures == 1 else None,
            )

    def _finish_all(self, tickets: Iterable[Ticket], error: SuffixError) -> None:
        for ticket in tickets:
            if ticket not in self._finished:
                with suppress(Exception):  # of the session's length: then 0 is sent
                    self._finish(ticket, error)

    def _answer_and_admit(self) -> bool:
        """Answer what is done, start what can be, wait where there is neither. False: stop."""
        with self._changed:
            # answered only once it no longer counts: whoever asks again at once meets a free lane
            self._note_load()
            self._answer_finished()
            self._changed.notify_all()  # who waits for the end of the work
            while not (self._stopping or self._waiting or self._lanes or self._readers or self._forgetting):
                self._changed.wait()
            if self._stopping:
                return False
            forgetting, self._forgetting = self._forgetting, deque()
            starting: list[Ticket] = []
            while self._waiting and self._has_room(len(starting)):
                starting.append(self._waiting.popleft())
            self._admitted.update(starting)
            self._lanes_used += len(starting)
            self._slots_used += len(starting)
        for session_id in forgetting:
            with self._failing():
                self._engine.forget(session_id, self._taken())
        for ticket in starting:
            with self._failing(ticket):
                self._start(ticket)
        with self._changed:
            self._note_load()
            self._batch_ends = self._clock() + self._expected()
            self._answer_finished()  # what could not be started
        return True

    def _note_load(self) -> None:
        self._lanes_used = len(self._lanes)
        self._slots_used = len(self._lanes) + len(self._readers)
        self._work_left = sum(self._left(ticket) for ticket in self._lanes)
        self._batch_ends = 0.0

    def _answer_finished(self) -> None:
        for ticket in self._finished:
            ticket.done.set()
            ticket.started.set()
        self._admitted.difference_update(self._finished)
        self._finished.clear()

    def _has_room(self, more: int) -> bool:
        lanes = len(self._lanes) + more
        return lanes < self._engine.costs.lanes and lanes + len(self._readers) < self._engine.slots

    def _taken(self) -> list[int]:
        jobs = (ticket.job for ticket in (*self._lanes, *self._readers))
        return [job.sequence.index for job in jobs if job is not None]

    def _start(self, ticket: Ticket) -> None:
        ticket.started_at = self._clock()
        if ticket.cancelled:
            self._finish(ticket, None)
            return
        # one sequence is left for those that have little to read
        may_read = len(self._readers) < max(1, self._engine.slots - 1)
        try:
            ticket.job = self._engine.begin(ticket.request, self._taken(), None if may_read else _SHORT_READ)
        except SuffixError as err:
            self._finish(ticket, err)
            return
        if ticket.job is None:
            ticket.busy = True
            self._finish(ticket, None)
            return
        (self._lanes if ticket.job.to_read <= _SHORT_READ else self._readers).append(ticket)
        ticket.started.set()

    def _expected(self) -> float:
        """Seconds the next batches will take."""
        costs = self._engine.costs
        jobs = [ticket.job for ticket in self._lanes if ticket.job is not None]
        reading = sum(job.to_read + len(job.suggested) for job in jobs)
        seconds = costs.step_seconds(costs.width_for(len(jobs))) if jobs else 0.0
        return seconds + costs.read_seconds(reading + (_CHUNK if self._chunk_is_due() else 0))

    def _left(self, ticket: Ticket) -> float:
        costs, job = self._engine.costs, ticket.job
        if job is None:
            return 0.0
        return costs.read_seconds(job.to_read + len(job.suggested)) + costs.step_seconds(1) * job.left

    def _chunk_is_due(self) -> bool:
        return bool(self._readers) and (not self._lanes or self._drafts_since_chunk >= _DRAFTS_PER_CHUNK)

    def _compute(self) -> None:
        """A chunk of reading where it is due, and one batch of drafting."""
        if self._chunk_is_due():
            self._read_chunk()
        width = self._engine.costs.width_for(max(1, len(self._lanes)))
        next_token = self._clock() + self._engine.costs.step_seconds(width)
        drafting: list[tuple[Ticket, Job]] = []
        for ticket in list(self._lanes):
            job = ticket.job
            if job is None:
                continue
            with self._failing(ticket):
                while job.to_read and not job.done:
                    self._engine.read(job)
            if ticket in self._finished:
                continue
            if ticket.deadline is not None:
                if next_token + self._engine.costs.read_seconds(len(job.suggested)) > ticket.deadline:
                    job.suggested = []  # a token at a time, some may still come
                if next_token > ticket.deadline:
                    job.left = 0  # its driver will not wait for another token
            if not job.done and not ticket.cancelled:
                drafting.append((ticket, job))
        # the oldest first: those behind were told that they would have to wait
        batch = drafting[:width]
        with self._failing(*(ticket for ticket, _ in batch)):
            self._engine.step([job for _, job in batch])
        self._drafts_since_chunk += bool(drafting)
        self._lanes = [ticket for ticket in self._lanes if not self._is_over(ticket)]

    def _read_chunk(self) -> None:
        self._drafts_since_chunk = 0
        ticket = self._readers.popleft()  # in turn
        job = ticket.job
        if job is None or ticket.cancelled:
            self._finish(ticket, None)
            return
        with self._failing(ticket):
            self._engine.read(job, _CHUNK)
        if ticket in self._finished or self._is_over(ticket):
            return
        (self._readers if job.to_read else self._lanes).append(ticket)

    def _is_over(self, ticket: Ticket) -> bool:
        """Its job is done, or nobody waits for it."""
        job = ticket.job
        if job is not None and not job.done and not ticket.cancelled:
            return False
        if job is not None:
            ticket.draft = job.draft
        self._finish(ticket, job.error if job is not None else None)
        return True

    def _finish(self, ticket: Ticket, error: SuffixError | None) -> None:
        """To be answered as soon as the load is noted."""
        ticket.error = error
        ticket.seconds = self._clock() - ticket.started_at
        self._finished.append(ticket)
        ticket.length = self._engine.length(ticket.request.session_id)

    def _give_up(self) -> None:
        """Answer every request that is left."""
        with self._changed:
            self._draining = self._stopping = True
            stopping = ServiceUnavailableError("the worker is stopping")
            self._finish_all([*self._admitted, *self._waiting], stopping)
            self._answer_finished()
            self._lanes.clear()
            self._readers.clear()
            self._waiting.clear()
            self._slots_used = 0
            self._changed.notify_all()  # stop() may be waiting for the end of the work
