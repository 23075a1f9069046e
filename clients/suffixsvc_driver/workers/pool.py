"""Several draft workers as one: whom a session drafts with, and who is left alone for a while.

    usable ──a session's conversation broke, or a check failed──> gone ──check, ever rarer──> usable
       └─────────it answers with a vocabulary that does not fit──> unfit ──checked rarely────> usable

A session stays with its worker, which holds the KV of its text. It moves when that worker is gone, turns it
away again and again, or cannot hold its text, and there is a better one. Without any usable worker its
drafts are empty at once. Checks, and goodbyes to workers that were left, run on one thread of the pool's.
"""

from __future__ import annotations

import enum
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

import structlog

from suffixsvc.errors import (
    InvalidConfigError,
    ServiceUnavailableError,
    SuffixError,
    VocabularyMismatchError,
)
from suffixsvc.interrupts import AtomicCondition
from suffixsvc_driver.vocabulary import Vocabulary
from suffixsvc_driver.workers.connecting import connect
from suffixsvc_driver.workers.interface import WorkerDescription
from suffixsvc_driver.workers.pool_session import PoolSession
from suffixsvc_driver.workers.session import WorkerSession
from suffixsvc_driver.workers.single import CONNECT_SECONDS, SingleWorker

__all__ = ["WorkerPool", "WorkerState", "WorkerStatus"]

_log = structlog.get_logger(__name__)
_THREAD: Final = "draft-workers"
_CHECK_SECONDS: Final = 2.0
#: at the start, for the others to answer once one has
_OTHERS_SECONDS: Final = 0.5
#: a worker that was usable for so long has shown that it is there
_PROVEN_SECONDS: Final = 60.0
_JOIN_SECONDS: Final = 10.0


class WorkerState(enum.StrEnum):
    """What the pool thinks of a worker."""

    #: not asked yet
    NEW = "new"
    USABLE = "usable"
    #: it did not answer, or stopped answering
    GONE = "gone"
    #: it answers, but its vocabulary is not the target's
    UNFIT = "unfit"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker of a pool at this moment.

    Attributes:
        sessions: that draft with it.
        departures: how often it was found gone or unfit.
        reason: it is not usable; empty while it is.
    """

    address: str
    state: WorkerState
    model: str
    sessions: int
    departures: int
    reason: str


@dataclass(slots=True, eq=False)
class Member:
    """A worker and what is known of it. Changed under the pool's lock only."""

    worker: SingleWorker
    state: WorkerState = WorkerState.NEW
    description: WorkerDescription | None = None
    sessions: int = 0
    departures: int = 0
    error: SuffixError | None = None
    check_at: float = 0.0
    usable_since: float = 0.0
    backoff: float = 0.0
    told: set[WorkerState] = field(default_factory=set)


class WorkerPool:
    """See :class:`~suffixsvc_driver.workers.interface.DraftWorker`.

    Args:
        addresses: as :func:`~suffixsvc_driver.workers.connecting.connect` takes them.
        recheck_seconds: a worker that is gone is asked again after the first, then ever later up to the
            second.
        check_every_seconds: a usable one is asked who it is this often, so that one that died or changed
            while nobody used it is known.

    Raises:
        InvalidConfigError: no address, a malformed one, or one twice.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        recheck_seconds: tuple[float, float] = (0.5, 30.0),
        check_every_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not addresses or len(set(addresses)) != len(addresses):
            raise InvalidConfigError(
                "a pool needs draft workers", expected="addresses, each of them once", got=list(addresses)
            )
        if not 0.0 < recheck_seconds[0] <= recheck_seconds[1] or not check_every_seconds > 0.0:
            raise InvalidConfigError(
                "the times between checks make no sense",
                expected="0 < first <= last, and more than 0",
                got=(recheck_seconds, check_every_seconds),
            )
        self._members = [Member(connect(address)) for address in addresses]
        self._recheck, self._check_every = recheck_seconds, check_every_seconds
        self._clock = clock
        self._changed = AtomicCondition()
        self._first_check = threading.Lock()
        self._target: Vocabulary | None = None
        self._retired: deque[WorkerSession] = deque()
        self._closed = False
        self._checking: list[threading.Thread] = []
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def describe(self, timeout_seconds: float = CONNECT_SECONDS) -> WorkerDescription:
        """What the worker is that a new session would get; before any was checked, the first that answers.

        Raises:
            ServiceUnavailableError: there is none.
        """
        with self._changed:
            best = self._best()
            if best is not None and best.description is not None:
                return best.description
        reasons = []
        for member in self._members:
            try:
                return member.worker.describe(timeout_seconds)
            except SuffixError as err:
                reasons.append(f"{member.worker.address}: {err.message}")
        raise self._nobody(reasons)

    def check_vocabulary(
        self, target: Vocabulary, timeout_seconds: float = CONNECT_SECONDS
    ) -> WorkerDescription:
        """Ask every worker at the same time; those that do not answer or do not fit are left out, and asked
        again from time to time. Later calls for the same target answer what is known.

        Raises:
            VocabularyMismatchError: some answered, and none of them fits.
            ServiceUnavailableError: nobody answers.
        """
        with self._first_check:  # agents that begin side by side share a pool
            with self._changed:
                first_time = self._target is None
                if not first_time and self._target != target:
                    raise InvalidConfigError(
                        "a pool drafts for one target vocabulary",
                        expected=self._target.fingerprint if self._target else "",
                        got=target.fingerprint,
                        remedy="Make a pool for each target.",
                    )
                self._target = target
            if first_time:
                self._check_all(timeout_seconds)
            return self._found()

    def _found(self) -> WorkerDescription:
        """What the first check has found; checks go on from now on."""
        with self._changed:
            best = self._best() or self._known()
            if best is not None and best.description is not None:
                known = [member.description for member in self._members if member.description is not None]
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._watch, name=_THREAD, daemon=True)
                    self._thread.start()
                # a session may come to any of them
                return replace(best.description, checks=min(each.checks for each in known))
            self._target = None  # the next call asks again
            errors = {member.worker.address: member.error for member in self._members}
        for error in errors.values():
            if isinstance(error, VocabularyMismatchError):
                raise error.with_traceback(None)
        raise self._nobody([f"{address}: {error}" for address, error in errors.items()])

    def open_session(self, *, p_min: float = 0.4, top_k: int = 10, wait_seconds: float = 0.0) -> PoolSession:
        return PoolSession(self, p_min=p_min, top_k=top_k, wait_seconds=wait_seconds)

    def status(self) -> list[WorkerStatus]:
        """Every worker at this moment, in the order given."""
        with self._changed:
            return [
                WorkerStatus(
                    member.worker.address,
                    member.state,
                    member.description.model if member.description is not None else "",
                    member.sessions,
                    member.departures,
                    str(member.error or ""),
                )
                for member in self._members
            ]

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for member in self._members:
            member.worker.close()  # a check that waits for one ends with this
        for thread in (*self._checking, *([self._thread] if self._thread is not None else [])):
            thread.join(_JOIN_SECONDS)
        for session in self._take_retired():
            session.close()

    # -- for sessions

    def choose(self, context_length: int, leaving: Member | None = None) -> Member | None:
        """The usable worker with the fewest sessions, the fastest of these; none that could not hold the
        text. It counts one session more from now on.

        Args:
            leaving: the one to be left for a better one; it counts one less if there is one.
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
        """A session is not used any more; it is closed on the pool's thread."""
        with self._changed:
            self._retired.append(session)
            self._changed.notify_all()

    def speed(self) -> float:
        """Seconds a token takes a worker that a session may get; 0 where nobody knows."""
        with self._changed:
            best = self._best() or self._known()
            return best.description.seconds_per_token if best is not None and best.description else 0.0

    def release(self, member: Member) -> None:
        """A session does not draft with this worker any more."""
        with self._changed:
            member.sessions -= 1

    def report(self, member: Member, error: SuffixError | None) -> None:
        """A session's conversation with a worker broke."""
        with self._changed:
            if member.state is WorkerState.USABLE:
                self._depart(member, error or ServiceUnavailableError("it stopped answering"))
                self._changed.notify_all()

    # -- checking

    def _best(self, context_length: int = 0, leaving: Member | None = None) -> Member | None:
        def holds(member: Member) -> bool:
            size = member.description.context_size if member.description is not None else 0
            return size == 0 or context_length < size

        fit = [
            member
            for member in self._members
            if member.state is WorkerState.USABLE and member is not leaving and holds(member)
        ]
        return min(
            fit,
            key=lambda m: (m.sessions, m.description.seconds_per_token if m.description else 0.0),
            default=None,
        )

    def _known(self) -> Member | None:
        """One that was usable once."""
        return next((member for member in self._members if member.description is not None), None)

    def _check_all(self, timeout_seconds: float) -> None:
        """Ask everybody at once. Once one is usable the others have a little time left; who takes longer is
        waited for by nobody."""
        with self._changed:
            if self._closed:
                return
            self._checking = [
                threading.Thread(
                    target=self._check, args=(member, timeout_seconds), name=_THREAD, daemon=True
                )
                for member in self._members
            ]
            for thread in self._checking:
                thread.start()
            self._changed.wait_for(lambda: self._best() is not None or self._all_answered())
            self._changed.wait_for(self._all_answered, timeout=_OTHERS_SECONDS)

    def _all_answered(self) -> bool:
        """Nobody is worth waiting for."""
        return self._closed or all(member.state is not WorkerState.NEW for member in self._members)

    def _check(self, member: Member, timeout_seconds: float) -> None:
        target = self._target
        if target is None:
            return
        try:
            description = member.worker.check_vocabulary(target, timeout_seconds)
        except Exception as failure:  # a mistake in a check must not leave anybody waiting for it
            err = failure if isinstance(failure, SuffixError) else SuffixError(repr(failure))
            with self._changed:
                if not self._closed:
                    self._depart(member, err)
                    self._changed.notify_all()
            return
        with self._changed:
            now = self._clock()
            if member.state is not WorkerState.USABLE:
                member.usable_since = now
                if member.departures:
                    self._tell(member, WorkerState.USABLE, "a draft worker is back")
            member.state, member.description, member.error = WorkerState.USABLE, description, None
            member.check_at = now + self._check_every
            self._changed.notify_all()

    def _depart(self, member: Member, error: SuffixError) -> None:
        """It is not used until a check says otherwise. Under the lock."""
        state = WorkerState.UNFIT if isinstance(error, VocabularyMismatchError) else WorkerState.GONE
        now = self._clock()
        if member.state is not state:
            member.departures += 1
        if member.state is WorkerState.USABLE and now - member.usable_since > _PROVEN_SECONDS:
            member.backoff = 0.0  # one that comes and goes is asked ever later instead
        member.state, member.error = state, error
        first, last = self._recheck
        member.backoff = last if state is WorkerState.UNFIT else min(last, max(first, 2 * member.backoff))
        member.check_at = now + member.backoff
        self._tell(member, state, "a draft worker is left out")

    def _tell(self, member: Member, state: WorkerState, what: str) -> None:
        """Each kind of news of a worker is logged once; departures are counted."""
        if state not in member.told:
            member.told.add(state)
            _log.warning(what, address=member.worker.address, state=str(state), reason=str(member.error))

    def _watch(self) -> None:
        while True:
            try:
                if not self._look_once():
                    return
            except Exception:  # without this thread no worker that departed would ever be used again
                _log.exception("looking after draft workers failed; it is tried again")
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, timeout=_CHECK_SECONDS)

    def _look_once(self) -> bool:
        """Close what is not used any more, check who is due. False: the pool is closed."""
        with self._changed:
            if self._closed:
                return False
            now = self._clock()
            answered = [member for member in self._members if member.state is not WorkerState.NEW]
            due = min(answered, key=lambda member: member.check_at)
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

    def _nobody(self, reasons: Sequence[str]) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            "no draft worker can be used",
            expected=f"one of {len(self._members)}",
            got="; ".join(reasons),
            remedy="Start one: suffixsvc draft-worker --model X.gguf --listen ADDRESS",
        )
