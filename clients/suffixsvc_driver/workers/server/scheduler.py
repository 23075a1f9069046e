"""Scheduler of a draft worker: one thread for the model, a short queue, and "busy" for further requests.

A late draft is useless, so a request either starts within a bound or is refused as busy at once, without side
effects. Started requests share the model, batch by batch:

    submit() ──> waiting (few, and not for long) ──> lanes: drafting, one batch of the width that pays
        └─busy                                   └─> prefilling: long contexts, in chunks between batches

A long context - a new prompt - is computed in chunks, so that it does not delay the drafts of others; no
client waits for its draft. A request may contain its client's timeout: it is completed by then, with the
tokens drafted so far. The prefill is always completed, or the session would never catch up.

An unexpected error of the engine fails the requests of that batch or prefill: it is logged and counted, the
KV that no other request uses is computed again, and the thread goes on. Every admitted request is completed,
even if the log cannot be written or the thread ends.
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
from suffixsvc.runtime.signal_guard import AtomicCondition
from suffixsvc_driver.workers.server.engine import DraftEngine, DraftRequest, Job
from suffixsvc_driver.workers.server.ticket import Ticket

_log = structlog.get_logger(__name__)
#: a longer prefill is computed in chunks, between batches of drafting
_SHORT_PREFILL: Final = 64
_CHUNK: Final = 16
#: batches of drafting between two chunks of prefill
_BATCHES_PER_CHUNK: Final = 6
#: how long a request may wait for its start: the time of this many tokens, and at least this many seconds
_BUSY_AFTER_TOKENS: Final = 2.0
_BUSY_AFTER_SECONDS: Final = 0.005
#: pause after a failure that no request explains, and that may recur at once
_FAILURE_PAUSE_SECONDS: Final = 0.1


class Scheduler:
    """Runs an engine on a thread of its own. All other methods are thread-safe.

    Args:
        engine: used by the scheduler only, from :meth:`start` to :meth:`stop`. Its unexpected errors become
            ModelErrors of the requests concerned.
        queue: requests that may wait; further ones are refused as busy at once.
        busy_after_seconds: how long a request may wait for its start unless it has a limit of its own; None =
            the time of two tokens, at least 5 ms.

    Attributes:
        failures: number of unexpected errors, of requests and of the thread's own work.

    Raises:
        InvalidConfigError: a queue below 1, a time that is negative or not finite.
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
            raise InvalidConfigError("queue must be >= 1", got=queue)
        if busy_after_seconds is not None and not 0.0 <= busy_after_seconds < math.inf:
            raise InvalidConfigError(
                "busy_after_seconds must be a finite number >= 0", got=busy_after_seconds
            )
        self._engine = engine
        self._queue = queue
        default = max(_BUSY_AFTER_SECONDS, _BUSY_AFTER_TOKENS * engine.seconds_per_token)
        self.busy_after_seconds = default if busy_after_seconds is None else busy_after_seconds
        self._clock = clock
        self._changed = AtomicCondition()
        # guarded by the condition's lock
        self._waiting: deque[Ticket] = deque()
        self._sessions_to_remove: deque[str] = deque()
        self._draining = False
        self._stopping = False
        self._batch_ends = 0.0
        self._lanes_used = 0
        self._slots_used = 0
        self._work_left = 0.0
        # used by the scheduler's thread only
        self._lanes: list[Ticket] = []
        self._prefilling: deque[Ticket] = deque()
        self._finished: list[Ticket] = []
        self._admitted: set[Ticket] = set()  # taken from the queue and not completed yet
        self._batches_since_chunk = 0
        self.failures = 0
        self._thread = threading.Thread(target=self._run, name="draft-model", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, drain_seconds: float = 0.0) -> None:
        """Refuse further requests and end the thread; requests that still run after ``drain_seconds`` fail
        with ServiceUnavailableError."""
        with self._changed:
            self._draining = True
            self._changed.wait_for(
                lambda: self._stopping or not (self._waiting or self._slots_used), timeout=drain_seconds
            )
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        self._fail_all()  # if the thread never ran

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` was called: requests are refused."""
        with self._changed:
            return self._draining

    # -- called by the threads of requests

    def submit(
        self, request: DraftRequest, timeout_seconds: float = 0.0, wait_seconds: float = 0.0
    ) -> Ticket:
        """Queue a request, or refuse it as busy if it would have to wait too long.

        Args:
            timeout_seconds: how long the client waits for the reply; 0 = without a limit.
            wait_seconds: how long the request may wait for its start; 0 = ``busy_after_seconds``.
        """
        now = self._clock()
        ticket = Ticket(request, now, timeout_seconds, wait_seconds or self.busy_after_seconds)
        with self._changed:
            if self._draining:
                ticket.error = ServiceUnavailableError("the worker is stopping")
                ticket.complete()
            elif len(self._waiting) >= self._queue or self._starts_in(now) > ticket.wait_seconds:
                self._refuse(ticket)
            else:
                self._waiting.append(ticket)
                self._changed.notify_all()
        return ticket

    def wait(self, ticket: Ticket) -> None:
        """Wait until the ticket is completed; refuse it as busy if it does not start within its bound."""
        if not ticket.started.wait(ticket.wait_seconds):
            with self._changed:
                if ticket in self._waiting:
                    self._waiting.remove(ticket)
                    self._refuse(ticket)
        ticket.done.wait()

    def cancel(self, *tickets: Ticket) -> None:
        """Cancel requests whose client has disconnected."""
        for ticket in tickets:
            ticket.cancelled = True

    def forget(self, session_id: str) -> None:
        """Schedule the removal of a session."""
        with self._changed:
            self._sessions_to_remove.append(session_id)
            self._changed.notify_all()

    def _starts_in(self, now: float) -> float:
        """Expected seconds until one more request would start."""
        engine = self._engine
        this_batch = max(0.0, self._batch_ends - now)
        lanes_free = engine.costs.lanes - self._lanes_used
        if len(self._waiting) < min(lanes_free, engine.slots - self._slots_used):
            return this_batch
        queued = sum(engine.request_seconds(ticket.request) for ticket in self._waiting)
        return this_batch + (self._work_left + queued) / max(1, engine.costs.lanes)

    def _refuse(self, ticket: Ticket) -> None:
        ticket.busy = True
        ticket.complete()

    # -- the scheduler's thread

    def _run(self) -> None:
        running = True
        try:
            while running:
                try:
                    running = self._complete_and_admit()
                    if running:
                        self._compute()
                except Exception as err:  # not of one request: all running ones may be affected
                    self._fail(list(self._admitted), err)
                    with self._changed:
                        self._changed.wait(_FAILURE_PAUSE_SECONDS)
        finally:
            self._fail_all()

    @contextmanager
    def _fail_on_error(self, *tickets: Ticket) -> Iterator[None]:
        """Fail these requests on any error of the block, and nothing else."""
        try:
            yield
        except Exception as err:  # a bug in one request must end neither the others nor the thread
            self._fail(tickets, err)

    def _fail(self, tickets: Sequence[Ticket], err: Exception) -> None:
        self.failures += 1
        self._lanes = [ticket for ticket in self._lanes if ticket not in tickets]
        self._prefilling = deque(ticket for ticket in self._prefilling if ticket not in tickets)
        self._engine.clear(self._used_sequences())  # the failure may have left anything in the KV
        self._finish_all(tickets, ModelError("the draft model failed", got=repr(err)[:80]))
        # last, and guarded: standard error may be a closed pipe
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

    def _complete_and_admit(self) -> bool:
        """Complete finished requests, start waiting ones, wait if there is neither. Return False to stop."""
        with self._changed:
            # the load is updated first: a client that queries again at once must find its lane free
            self._update_load()
            self._complete_finished()
            self._changed.notify_all()  # stop() waits for the end of the work
            self._changed.wait_for(self._has_work)
            if self._stopping:
                return False
            to_remove, self._sessions_to_remove = self._sessions_to_remove, deque()
            starting: list[Ticket] = []
            while self._waiting and self._has_room(len(starting)):
                starting.append(self._waiting.popleft())
            self._admitted.update(starting)
            self._lanes_used += len(starting)
            self._slots_used += len(starting)
        for session_id in to_remove:
            with self._fail_on_error():
                self._engine.forget(session_id, self._used_sequences())
        for ticket in starting:
            with self._fail_on_error(ticket):
                self._start(ticket)
        jobs = [ticket.job for ticket in self._lanes]
        chunk = _CHUNK if self._chunk_is_due() else 0
        with self._changed:
            self._update_load()
            self._batch_ends = self._clock() + self._engine.batch_seconds(jobs, chunk)
            self._complete_finished()  # those that could not be started
        return True

    def _has_work(self) -> bool:
        queues = (self._waiting, self._lanes, self._prefilling, self._sessions_to_remove)
        return self._stopping or any(queues)

    def _update_load(self) -> None:
        self._lanes_used = len(self._lanes)
        self._slots_used = len(self._lanes) + len(self._prefilling)
        self._work_left = sum(self._engine.job_seconds(ticket.job) for ticket in self._lanes)
        self._batch_ends = 0.0

    def _complete_finished(self) -> None:
        for ticket in self._finished:
            ticket.complete()
        self._admitted.difference_update(self._finished)
        self._finished.clear()

    def _has_room(self, more: int) -> bool:
        lanes = len(self._lanes) + more
        return lanes < self._engine.costs.lanes and lanes + len(self._prefilling) < self._engine.slots

    def _used_sequences(self) -> list[int]:
        return [ticket.job.sequence.index for ticket in (*self._lanes, *self._prefilling)]

    def _start(self, ticket: Ticket) -> None:
        ticket.started_at = self._clock()
        if ticket.cancelled:
            self._finish(ticket, None)
            return
        # one sequence is reserved for requests with a short prefill
        may_prefill = len(self._prefilling) < max(1, self._engine.slots - 1)
        limit = None if may_prefill else _SHORT_PREFILL
        try:
            job = self._engine.begin(ticket.request, self._used_sequences(), limit)
        except SuffixError as err:
            self._finish(ticket, err)
            return
        if job is None:
            ticket.busy = True
            self._finish(ticket, None)
            return
        ticket.job = job
        (self._lanes if job.to_prefill <= _SHORT_PREFILL else self._prefilling).append(ticket)
        ticket.started.set()

    def _chunk_is_due(self) -> bool:
        due = not self._lanes or self._batches_since_chunk >= _BATCHES_PER_CHUNK
        return bool(self._prefilling) and due

    def _compute(self) -> None:
        """Compute a chunk of prefill if it is due, and one batch of drafting."""
        if self._chunk_is_due():
            self._prefill_chunk()
        width = self._engine.costs.width_for(max(1, len(self._lanes)))
        next_token = self._clock() + self._engine.costs.step_seconds(width)
        drafting: list[tuple[Ticket, Job]] = []
        for ticket in list(self._lanes):
            job = ticket.job
            with self._fail_on_error(ticket):
                while job.to_prefill and not job.done:
                    self._engine.prefill(job)
            if ticket in self._finished:
                continue
            if ticket.deadline is not None:
                if next_token + self._engine.costs.prefill_seconds(len(job.suggested)) > ticket.deadline:
                    job.suggested = []  # without them, a few tokens may still be in time
                if next_token > ticket.deadline:
                    job.left = 0  # its client will not wait for another token
            if not job.done and not ticket.cancelled:
                drafting.append((ticket, job))
        # the oldest requests first: the admission of later ones has accounted for the wait
        batch = drafting[:width]
        with self._fail_on_error(*(ticket for ticket, _ in batch)):
            self._engine.step([job for _, job in batch])
        self._batches_since_chunk += bool(drafting)
        self._lanes = [ticket for ticket in self._lanes if not self._finish_if_over(ticket)]

    def _prefill_chunk(self) -> None:
        self._batches_since_chunk = 0
        ticket = self._prefilling.popleft()  # round-robin
        if ticket.cancelled:
            self._finish(ticket, None)
            return
        with self._fail_on_error(ticket):
            self._engine.prefill(ticket.job, _CHUNK)
        if ticket in self._finished or self._finish_if_over(ticket):
            return
        (self._prefilling if ticket.job.to_prefill else self._lanes).append(ticket)

    def _finish_if_over(self, ticket: Ticket) -> bool:
        """Finish a request whose job is done or that was cancelled; return whether it is."""
        job = ticket.job
        if not job.done and not ticket.cancelled:
            return False
        ticket.draft = job.draft
        self._finish(ticket, job.error)
        return True

    def _finish(self, ticket: Ticket, error: SuffixError | None) -> None:
        """Set the results of a request; it is completed once the load is updated."""
        ticket.error = error
        ticket.seconds = self._clock() - ticket.started_at
        self._finished.append(ticket)
        ticket.length = self._engine.length(ticket.request.session_id)

    def _fail_all(self) -> None:
        """Complete every request that is left, with an error."""
        with self._changed:
            self._draining = self._stopping = True
            stopping = ServiceUnavailableError("the worker is stopping")
            self._finish_all([*self._admitted, *self._waiting], stopping)
            self._complete_finished()
            self._lanes.clear()
            self._prefilling.clear()
            self._waiting.clear()
            self._slots_used = 0
            self._changed.notify_all()  # stop() may be waiting for the end of the work
