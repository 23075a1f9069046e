"""Live sessions by id. A session outlives the stream that opened it; retries are idempotent.

One lock guards the tables and is held for look-ups only; each entry has a seat at the core's desk, whose turn
is held while its engine session works, so that two streams that use one session take turns.

    opening ──> live ──close──> recently closed (answers a repeated close with the same output id)
                 │└───idle────> expired: its output is incomplete, until its client resumes or discards it
                 └─the store fails──> stays live for its client to try again, then lost (unkept.py)
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, NoReturn

import structlog
import xxhash

from suffixsvc.config import Limits
from suffixsvc.core import WIRE_SOURCES, Desk, Seat
from suffixsvc.errors import (
    AppendGap,
    InvalidInputError,
    LimitExceededError,
    ServiceUnavailableError,
    SessionClosedError,
    SuffixError,
)
from suffixsvc.index import step_together
from suffixsvc.service import converters
from suffixsvc.service.converters import AppendArgs, OpenArgs, StepArgs
from suffixsvc.service.entries import Closed, Entry, Identity, not_live
from suffixsvc.service.left_outputs import LeftOutputs
from suffixsvc.service.unkept import GRACE_SECONDS, UnkeptSessions
from suffixsvc.types import FloatArray, OutputId, TokenArray
from suffixsvc.v1 import suffix_cache_pb2 as pb

if TYPE_CHECKING:
    from suffixsvc.engine import Session, SuffixCache
    from suffixsvc.index.session import Plan

__all__ = ["SessionRegistry"]

log = structlog.get_logger(__name__)

#: closed sessions whose result is remembered for a repeated close
RECENTLY_CLOSED = 4096
#: closes that wait for the disk side by side when the service drains: group commit takes them together
DRAIN_WORKERS = 32

_NOT_ANSWERED = RuntimeError("a step was not answered")
_by_id = itemgetter(0)


class SessionRegistry:
    """The sessions of one service. Thread-safe."""

    def __init__(self, cache: SuffixCache, limits: Limits) -> None:
        self._cache = cache
        self._limits = limits
        self._left = LeftOutputs(cache)
        self._lock = threading.Lock()
        #: answers plain steps without Python; knows the seats of the live sessions
        self.desk = Desk(limits.max_draft_tokens, WIRE_SOURCES)
        self._entries: dict[str, Entry] = {}
        self._recent: OrderedDict[str, Closed] = OrderedDict()
        self._draining = False
        #: live sessions whose close failed
        self.unkept = UnkeptSessions(min(GRACE_SECONDS, limits.session_idle_seconds))

    def __len__(self) -> int:
        return len(self._entries)

    def ids(self) -> list[str]:
        with self._lock:
            return list(self._entries)

    # ------------------------------------------------------------------------------------------- opening

    def open(self, args: OpenArgs) -> tuple[str, int]:
        """Session id and length. A live session of the same id, namespace and prompt is answered as it is."""
        session_id = args.session_id or str(uuid.uuid4())
        identity = (args.namespace, xxhash.xxh3_64_hexdigest(args.prompt.tobytes()))
        while True:
            try:
                entry = self._entry_to_open(session_id, identity)
            except LimitExceededError:
                if self._release(self.unkept.oldest()) == 0:
                    raise
                continue
            with entry.lock:
                session = entry.session or self._open_engine_session(entry, args)
                if session is None:
                    continue  # another open of this id failed while we waited for its lock: a fresh entry
                entry.touched = time.monotonic()
                return session_id, session.length

    def _entry_to_open(self, session_id: str, identity: Identity) -> Entry:
        with self._lock:
            self._refuse_while_draining()
            entry = self._entries.get(session_id)
            if entry is None:
                if len(self._entries) >= self._limits.max_sessions:
                    raise LimitExceededError(
                        "too many live sessions",
                        expected=f"at most {self._limits.max_sessions}",
                        got=len(self._entries) + 1,
                        remedy="Close sessions that are done, or serve with a larger --max-sessions.",
                    )
                entry = self._entries[session_id] = Entry(session_id, identity)
            elif entry.identity != identity:
                raise InvalidInputError(
                    f"session id {session_id} is in use with another namespace or prompt",
                    expected="an unused id, or the same namespace and prompt",
                    got=f"namespace {identity[0]}",
                )
            return entry

    def _open_engine_session(self, entry: Entry, args: OpenArgs) -> Session | None:
        """Open under the entry's lock; None when the entry has left the table meanwhile."""
        if self._entries.get(entry.session_id) is not entry:
            return None
        try:
            namespace = self._cache.namespace(args.namespace, args.tokenizer)
            output = args.output if len(args.output) else None
            entry.session = namespace.open_session(args.prompt, output, args.labels, args.reads)
        except BaseException:
            with self._lock:
                del self._entries[entry.session_id]
            raise
        if args.verify_cost is not None:
            entry.cost = args.verify_cost
        entry.session.sit(entry.seat, entry.cost)
        self.desk.add(entry.session_id, entry.seat)
        with self._lock:
            before = self._recent.pop(entry.session_id, None)  # the id names this session from now on
            if before is not None and before.identity == entry.identity:
                entry.before = before.left
        return entry.session

    # ------------------------------------------------------------------------------------- a session's life

    def step(self, request: pb.StepRequest) -> pb.StepReply:
        [answer] = self.step_together([request])
        if isinstance(answer, Exception):
            raise answer
        return pb.StepBatchReply.FromString(answer).items[0].reply

    def step_together(self, requests: Sequence[pb.StepRequest]) -> list[bytes | Exception]:
        """Steps of several sessions, side by side on all cores.

        Returns:
            For each its answer, a serialised StepBatchReply of one item, or the error that only this one has.
        """
        answers: list[bytes | Exception] = [_NOT_ANSWERED] * len(requests)
        asked: list[tuple[str, int, StepArgs]] = []
        seen: set[str] = set()
        for place, request in enumerate(requests):
            session_id = request.session_id
            try:
                if session_id in seen:
                    _refuse_second_item(session_id)
                seen.add(session_id)
                asked.append((session_id, place, converters.step_args(request, self._limits)))
            except Exception as error:  # a defect, too, is this one's only
                answers[place] = error
        # Whoever holds several entries takes them in the order of their ids, so that two batches never wait
        # for each other.
        asked.sort(key=_by_id)
        held: list[Seat] = []
        try:
            self._step_locked(asked, answers, held)
        finally:
            for seat in held:
                seat.release()
        return answers

    def _step_locked(
        self,
        asked: Sequence[tuple[str, int, StepArgs]],
        answers: list[bytes | Exception],
        held: list[Seat],
    ) -> None:
        """Answer what is asked, in place. The seats whose turns are taken are added to ``held``."""
        now = time.monotonic()
        steps: list[tuple[Session, Plan]] = []
        stepping: list[tuple[int, Entry, StepArgs, float | FloatArray]] = []
        for session_id, place, args in asked:
            entry = self._entries.get(session_id)  # one look at a dict needs no lock
            try:
                if entry is not None:
                    entry.lock.acquire()
                    held.append(entry.lock)
                session = None if entry is None else entry.session
                if entry is None or session is None:
                    answers[place] = self._missing(session_id)
                    continue
                entry.touched = now
                seq, cost = args.seq, entry.cost if args.verify_cost is None else args.verify_cost
                again = entry.repeated_step(seq)
                if again is not None:
                    answers[place] = again
                    continue
                plan = session.plan(
                    args.token_bytes,
                    args.at,
                    args.max_draft_tokens,
                    cost,
                    args.tree,
                    args.verified,
                    session_id,
                    seq,
                )
            except Exception as error:  # a defect, too, is this one's only
                answers[place] = error
                continue
            steps.append((session, plan))
            stepping.append((place, entry, args, cost))
        answered = step_together(steps)
        for (place, entry, args, cost), (session, _), answer in zip(stepping, steps, answered, strict=True):
            answers[place] = answer
            if isinstance(answer, bytes):
                if args.verify_cost is not None:
                    entry.cost = cost
                    entry.seat.set_cost(session.whole_curve(cost))
                entry.answered(args.seq, answer)

    def append_context(self, args: AppendArgs) -> pb.AppendContextReply:
        with self._use(args.session_id) as (entry, session):
            if (again := entry.repeated_append(args.seq)) is not None:
                return again
            _append_context_at(session, args.tokens, args.at)
            reply = pb.AppendContextReply(session_id=args.session_id, seq=args.seq, length=session.length)
            entry.answered(args.seq, None, reply)
            return reply

    def close(self, session_id: str, *, commit: bool, incomplete: bool, wait: bool) -> OutputId | None:
        """End a session; a repeated close answers the same. Where the store fails the session stays open for
        a while, to be closed again (see :class:`UnkeptSessions`).

        What an expired or drained session left as incomplete goes once its client has resumed and closed it,
        or discards it; also where the service was restarted in between. It goes after its replacement is
        durable, so such a close waits whatever ``wait`` is.
        """
        closed = self._closed(session_id)
        if closed is not None and not closed.expired:
            return closed.output_id
        if not commit and self._discard_left(session_id, closed):
            return None
        try:
            with self._use(session_id, touch=False) as (entry, session):
                left = self._left.contained_in(session, entry.session_id)
                entry.resumed = tuple(each.output_id for each in left)
                try:
                    output_id = session.close(
                        commit, incomplete=incomplete, wait=wait or bool(left), session_id=session_id
                    )
                except Exception:
                    self.unkept.note(entry, session.length)
                    raise
                self._retire(entry, Closed(entry.identity, output_id, expired=False))
                if output_id is not None or not commit:
                    self._left.forget(left, output_id)
                return output_id
        except SessionClosedError:
            closed = self._closed(session_id)  # by another call, while this one waited for the entry's lock
            if closed is None:
                raise
            return closed.output_id
        finally:
            self._release(self.unkept.surplus())

    def _closed(self, session_id: str) -> Closed | None:
        """How the last session of this id ended; None while the id names a live one, or was never seen."""
        with self._lock:
            return None if session_id in self._entries else self._recent.get(session_id)

    @contextmanager
    def _use(self, session_id: str, *, touch: bool = True) -> Iterator[tuple[Entry, Session]]:
        """The live session of this id, locked for the caller.

        Args:
            touch: it is used, and lives on. A close is no use: one that fails and is repeated must not renew
                the session's grace (unkept.py).
        """
        with self._lock:
            entry = self._entries.get(session_id)
        if entry is None:
            raise self._missing(session_id)
        with entry.lock:
            if entry.session is None:
                raise self._missing(session_id)
            if touch:
                entry.touched = time.monotonic()
            yield entry, entry.session

    def _missing(self, session_id: str) -> SuffixError:
        with self._lock:
            self._refuse_while_draining()
        return not_live(session_id, self._closed(session_id))

    # ------------------------------------------------------------------------------------------ their end

    def expire(self, now: float | None = None) -> int:
        """End sessions idle for longer than the limit; how many outputs were committed as incomplete. A
        session that the store does not take is tried again when its grace is over, and then released."""
        before = (time.monotonic() if now is None else now) - self._limits.session_idle_seconds
        due = self.unkept.due()
        committed = sum(self._commit_incomplete(entry, self.unkept.is_unkept) for entry in due)
        self._release(due)
        with self._lock:
            idle = [entry for entry in self._entries.values() if entry.session and entry.touched <= before]
        for entry in idle:
            if not self.unkept.is_unkept(entry):  # it has its grace
                committed += self._commit_incomplete(entry, lambda entry: entry.touched <= before)
        self._release(self.unkept.surplus())
        return committed

    def drain(self) -> int:
        """Refuse new sessions from now on and end the live ones; how many outputs were committed as
        incomplete. Sessions that the store does not take are released."""
        with self._lock:
            self._draining = True
            live = list(self._entries.values())
        with ThreadPoolExecutor(DRAIN_WORKERS, thread_name_prefix="drain") as pool:
            committed = sum(pool.map(self._commit_incomplete, live))
            self._release(live)
        return committed

    def _commit_incomplete(self, entry: Entry, still: Callable[[Entry], bool] | None = None) -> bool:
        """End a session; whether its output was committed.

        Args:
            still: why it is ended, asked again with its lock held.
        """
        with entry.lock:
            if entry.session is None or (still is not None and not still(entry)):
                return False
            session = entry.session
            try:
                wrote = session.has_output
                replaced = self._left.contained_in(session, entry.session_id)
                entry.resumed = tuple(each.output_id for each in replaced)
                output_id = session.close(commit=True, incomplete=True, session_id=entry.session_id)
            except Exception as error:  # the file system's own, too: no session may end the task
                log.warning("session not committed", session=entry.session_id, error=str(error))
                self.unkept.note(entry, session.length)
                return False
            left = (entry.resumed or entry.before) if output_id is None else (output_id,)
            refused = wrote and output_id is None
            self._retire(entry, Closed(entry.identity, output_id, expired=True, left=left, refused=refused))
            if output_id is not None:
                self._left.forget(replaced, output_id)
            return output_id is not None

    def _release(self, entries: Sequence[Entry]) -> int:
        """End sessions whose close failed, without their output; how many. No entry's lock is held."""
        return sum(self._release_one(entry) for entry in entries)

    def _release_one(self, entry: Entry) -> bool:
        with entry.lock:
            session = entry.session
            if session is None or not self.unkept.is_unkept(entry):
                return False
            try:
                session.close(commit=False)
            except Exception:  # it goes all the same
                log.exception("a session could not be discarded", session=entry.session_id)
            log.error(
                "a session is released without its output: it could not be stored",
                session=entry.session_id,
                namespace=entry.identity[0],
                tokens=session.length,
            )
            self._retire(entry, Closed(entry.identity, None, expired=True, left=entry.resumed, lost=True))
            return True

    def _discard_left(self, session_id: str, closed: Closed | None) -> bool:
        """Take back what the last session of this id left; whether there was anything. A live one is not
        touched."""
        with self._lock:
            if session_id in self._entries:
                return False
        if not self._left.discard(session_id, closed):
            return False
        with self._lock:
            if session_id not in self._entries:
                identity = ("", "") if closed is None else closed.identity
                self._remember(session_id, Closed(identity, None, expired=False))
        return True

    def _retire(self, entry: Entry, closed: Closed) -> None:
        """Take a closed entry out of the tables, under its own lock."""
        entry.session = None
        entry.seat.leave()
        self.unkept.forget(entry, lost=closed.lost)
        self.desk.remove(entry.session_id)
        with self._lock:
            self._entries.pop(entry.session_id, None)
            self._remember(entry.session_id, closed)

    def _remember(self, session_id: str, closed: Closed) -> None:
        """How it ended. The lock is held."""
        self._recent[session_id] = closed
        while len(self._recent) > RECENTLY_CLOSED:
            self._recent.popitem(last=False)

    def _refuse_while_draining(self) -> None:
        if self._draining:
            raise ServiceUnavailableError(
                "the service is shutting down",
                remedy="Connect again when it is back; sessions can be resumed.",
            )


def _append_context_at(session: Session, tokens: TokenArray, at: int | None) -> None:
    """Append context that may overlap what is there: the engine checks the overlap, the rest is new."""
    have = session.length
    if at is not None and at > have:
        raise AppendGap(expected=have, got=at)
    known = 0 if at is None else min(have - at, len(tokens))
    if known:
        session.step(tokens[:known], max_draft_tokens=0, at=at)
    if known < len(tokens):
        session.append_context(tokens[known:])


def _refuse_second_item(session_id: str) -> NoReturn:
    raise InvalidInputError(
        "a session stands twice in one batch", expected="at most one item per session", got=session_id
    )
