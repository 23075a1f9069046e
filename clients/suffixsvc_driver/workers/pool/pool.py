"""Worker pool: assigns sessions to workers, checks their health, and excludes unusable ones for a while.

    usable ──a session's channel broke, or a check failed──> gone ──check with backoff──> usable
       └──────────its vocabulary does not match───────────> unfit ──check, rarely───────> usable

A session stays with its worker, which holds the KV of its text. It moves if that worker is gone, refuses its
queries repeatedly, or cannot hold its text, and there is a better one. Without a usable worker its drafts are
empty at once. One background thread checks the workers and closes sessions that were replaced.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from suffixsvc.errors import (
    AccessError,
    InvalidConfigError,
    ServiceUnavailableError,
    SuffixError,
    VocabularyMismatchError,
)
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.runtime.signal_guard import AtomicCondition
from suffixsvc.transport.identity import ClientIdentity
from suffixsvc_driver.workers.client.interface import WorkerDescription
from suffixsvc_driver.workers.client.session import WorkerSession
from suffixsvc_driver.workers.client.single import CONNECT_SECONDS
from suffixsvc_driver.workers.pool.connecting import connect
from suffixsvc_driver.workers.pool.entry import PoolEntry, WorkerState
from suffixsvc_driver.workers.pool.pool_session import PoolSession
from suffixsvc_models.vocabulary import Vocabulary

__all__ = ["WorkerPool", "WorkerState", "WorkerStatus"]

_log = structlog.get_logger(__name__)
_THREAD: Final = "draft-workers"
_CHECK_SECONDS: Final = 2.0
#: how long the first check waits for further workers once one is usable
_OTHERS_SECONDS: Final = 0.5
#: the backoff of a worker that was usable for this long is reset
_STABLE_SECONDS: Final = 60.0
_JOIN_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Status of one worker of a pool.

    Attributes:
        sessions: number of sessions that draft with it.
        departures: how often it became gone or unfit.
        reason: why it is not usable; empty while it is.
    """

    address: str
    state: WorkerState
    model: str
    sessions: int
    departures: int
    reason: str


class WorkerPool(ClosedOnExit):
    """See :class:`~suffixsvc_driver.workers.client.interface.DraftWorker`.

    Args:
        addresses: as :func:`~suffixsvc_driver.workers.pool.connecting.connect` takes them.
        recheck_seconds: backoff of checks of a worker that is gone: first value, then doubling up to the
            second.
        check_every_seconds: interval of checks of a usable worker, which detect that an idle one died or
            restarted with another model.
        identity: token and certificates for workers of ours; None: those that the environment names.

    Raises:
        InvalidConfigError: no address, a malformed one, or one twice; or an invalid identity.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        identity: ClientIdentity | None = None,
        recheck_seconds: tuple[float, float] = (0.5, 30.0),
        check_every_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not addresses or len(set(addresses)) != len(addresses):
            raise InvalidConfigError(
                "addresses must be at least one, without duplicates", got=list(addresses)
            )
        if not 0.0 < recheck_seconds[0] <= recheck_seconds[1] or not check_every_seconds > 0.0:
            raise InvalidConfigError(
                "recheck_seconds must be 0 < first <= last, and check_every_seconds > 0",
                got=(recheck_seconds, check_every_seconds),
            )
        self._entries = [PoolEntry(connect(address, identity)) for address in addresses]
        self._recheck, self._check_every = recheck_seconds, check_every_seconds
        self._clock = clock
        self._changed = AtomicCondition()
        self._first_check = threading.Lock()
        self._target: Vocabulary | None = None
        self._retired: deque[WorkerSession] = deque()
        self._closed = False
        self._checking: list[threading.Thread] = []
        self._thread: threading.Thread | None = None

    def check_vocabulary(
        self, target: Vocabulary, timeout_seconds: float = CONNECT_SECONDS
    ) -> WorkerDescription:
        """Check all workers concurrently; unreachable and unfit ones are excluded and checked again from time
        to time. Later calls for the same target return the known result.

        Raises:
            VocabularyMismatchError: some workers replied, and none of them fits.
            UnauthenticatedError: some replied, and none of them knows the client.
            ServiceUnavailableError: no worker replied.
            InvalidConfigError: another target than before.
        """
        with self._first_check:  # concurrent agents share a pool
            with self._changed:
                first_time = self._target is None
                if not first_time and self._target != target:
                    raise InvalidConfigError(
                        "a pool drafts for one target vocabulary",
                        expected=self._target.fingerprint if self._target else "",
                        got=target.fingerprint,
                        remedy="Create one pool per target.",
                    )
                self._target = target
            if first_time:
                self._check_all(timeout_seconds)
            return self._found()

    def _found(self) -> WorkerDescription:
        """The result of the first check; starts the background thread."""
        with self._changed:
            best = self._description()
            if best is not None:
                known = [entry.description for entry in self._entries if entry.description is not None]
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._watch, name=_THREAD, daemon=True)
                    self._thread.start()
                # a session may move to any of them
                return replace(best, checks=min(each.checks for each in known))
            self._target = None  # the next call checks again
            errors = {entry.worker.address: entry.error for entry in self._entries}
        for kind in (VocabularyMismatchError, AccessError):
            for error in errors.values():
                if isinstance(error, kind):
                    raise error.with_traceback(None)
        raise ServiceUnavailableError(
            "no draft worker is usable",
            expected=f"one of {len(self._entries)}",
            got="; ".join(f"{address}: {error}" for address, error in errors.items()),
            remedy="Start one: suffixsvc draft-worker --model X.gguf --listen ADDRESS",
        )

    @property
    def up(self) -> bool:
        """See the protocol."""
        with self._changed:
            return self._best() is not None

    def open_session(self, **options: Any) -> PoolSession:
        """See the protocol."""
        return PoolSession(self, options)

    def status(self) -> list[WorkerStatus]:
        """Return the status of every worker, in the order of the addresses."""
        with self._changed:
            return [
                WorkerStatus(
                    entry.worker.address,
                    entry.state,
                    entry.description.model if entry.description is not None else "",
                    entry.sessions,
                    entry.departures,
                    str(entry.error or ""),
                )
                for entry in self._entries
            ]

    def close(self) -> None:
        """See the protocol."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for entry in self._entries:
            entry.worker.close()  # also ends a check that waits for it
        for thread in (*self._checking, *([self._thread] if self._thread is not None else [])):
            thread.join(_JOIN_SECONDS)
        for session in self._take_retired():
            session.close()

    # -- for sessions

    def choose(self, context_length: int, leaving: PoolEntry | None = None) -> PoolEntry | None:
        """Return the usable worker with the fewest sessions that can hold the text, the fastest of these, and
        raise its session count; None if there is none.

        Args:
            leaving: the session's current worker; its count is lowered if another one is returned.
        """
        with self._changed:
            chosen = self._best(context_length, leaving)
            if chosen is None or self._closed:
                return None
            chosen.sessions += 1
            if leaving is not None:
                leaving.sessions -= 1
            return chosen

    def retire(self, session: WorkerSession) -> None:
        """Close a session on the pool's thread."""
        with self._changed:
            self._retired.append(session)
            self._changed.notify_all()

    def speed(self) -> float:
        """Return the seconds per token of a worker that a session may get; 0 if unknown."""
        with self._changed:
            best = self._description()
            return best.seconds_per_token if best is not None else 0.0

    def release(self, entry: PoolEntry) -> None:
        """Lower a worker's session count."""
        with self._changed:
            entry.sessions -= 1

    def report(self, entry: PoolEntry, error: SuffixError | None) -> None:
        """Record that a session's channel to a worker failed."""
        with self._changed:
            if entry.state is WorkerState.USABLE:
                self._exclude(entry, error or ServiceUnavailableError("it stopped replying"))
                self._changed.notify_all()

    # -- checking

    def _best(self, context_length: int = 0, leaving: PoolEntry | None = None) -> PoolEntry | None:
        def holds(entry: PoolEntry) -> bool:
            size = entry.description.context_size if entry.description is not None else 0
            return size == 0 or context_length < size

        fit = [
            entry
            for entry in self._entries
            if entry.state is WorkerState.USABLE and entry is not leaving and holds(entry)
        ]
        return min(
            fit,
            key=lambda m: (m.sessions, m.description.seconds_per_token if m.description else 0.0),
            default=None,
        )

    def _description(self) -> WorkerDescription | None:
        """That of the best worker, or of the first one that was usable once."""
        best = self._best() or next((entry for entry in self._entries if entry.description), None)
        return best.description if best is not None else None

    def _check_all(self, timeout_seconds: float) -> None:
        """Check all workers concurrently. Once one is usable, wait only :data:`_OTHERS_SECONDS` longer."""
        with self._changed:
            if self._closed:
                return
            self._checking = [
                threading.Thread(target=self._check, args=(entry, timeout_seconds), name=_THREAD, daemon=True)
                for entry in self._entries
            ]
            for thread in self._checking:
                thread.start()
            self._changed.wait_for(lambda: self._best() is not None or self._all_checked())
            self._changed.wait_for(self._all_checked, timeout=_OTHERS_SECONDS)

    def _all_checked(self) -> bool:
        return self._closed or all(entry.state is not WorkerState.NEW for entry in self._entries)

    def _check(self, entry: PoolEntry, timeout_seconds: float) -> None:
        target = self._target
        if target is None:
            return
        try:
            description = entry.worker.check_vocabulary(target, timeout_seconds)
        except Exception as failure:  # a bug in a check must not leave callers waiting for it
            err = failure if isinstance(failure, SuffixError) else SuffixError(repr(failure))
            with self._changed:
                if not self._closed:
                    self._exclude(entry, err)
                    self._changed.notify_all()
            return
        with self._changed:
            now = self._clock()
            if entry.state is not WorkerState.USABLE:
                entry.usable_since = now
                if entry.departures:
                    self._log_once(entry, WorkerState.USABLE, "a draft worker is usable again")
            entry.state, entry.description, entry.error = WorkerState.USABLE, description, None
            entry.check_at = now + self._check_every
            self._changed.notify_all()

    def _exclude(self, entry: PoolEntry, error: SuffixError) -> None:
        """Exclude a worker until a check succeeds. Call it with the lock held."""
        state = WorkerState.UNFIT if isinstance(error, VocabularyMismatchError) else WorkerState.GONE
        now = self._clock()
        if entry.state is not state:
            entry.departures += 1
        if entry.state is WorkerState.USABLE and now - entry.usable_since > _STABLE_SECONDS:
            entry.backoff = 0.0  # an unstable one keeps its backoff
        entry.state, entry.error = state, error
        first, last = self._recheck
        entry.backoff = last if state is WorkerState.UNFIT else min(last, max(first, 2 * entry.backoff))
        entry.check_at = now + entry.backoff
        self._log_once(entry, state, "a draft worker is excluded")

    def _log_once(self, entry: PoolEntry, state: WorkerState, event: str) -> None:
        """Log the first change of a worker to each state; departures are counted."""
        if state not in entry.logged_states:
            entry.logged_states.add(state)
            _log.warning(event, address=entry.worker.address, state=str(state), reason=str(entry.error))

    def _watch(self) -> None:
        while True:
            try:
                if not self._watch_once():
                    return
            except Exception:  # without this thread no excluded worker would ever be used again
                _log.exception("checking draft workers failed; it is tried again")
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, timeout=_CHECK_SECONDS)

    def _watch_once(self) -> bool:
        """Close retired sessions and check the worker that is due, or wait. Return False if closed."""
        with self._changed:
            if self._closed:
                return False
            now = self._clock()
            checked = [entry for entry in self._entries if entry.state is not WorkerState.NEW]
            due = min(checked, key=lambda entry: entry.check_at)
            if not self._retired and due.check_at > now:
                self._changed.wait(due.check_at - now)
                return True
        for session in self._take_retired():
            session.close()
        if due.check_at <= now:
            self._check(due, _CHECK_SECONDS)
        return True

    def _take_retired(self) -> list[WorkerSession]:
        with self._changed:
            retired = list(self._retired)
            self._retired.clear()
            return retired
