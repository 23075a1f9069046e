"""Sessions of the service: opening, steps, context, closing, expiry, draining.

A session outlives the stream that opened it, and every request on it can be retried.

    opening ──> live ──close──> recently closed (answers a repeated close with the same output id)
                 │└───idle────> expired: its output is incomplete, until its client resumes or discards it
                 └─the store fails──> stays live for its client to try again, then lost (failed_closes.py)
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import structlog
import xxhash

from suffixsvc.access.caller import Caller, SessionName
from suffixsvc.access.principals import Right
from suffixsvc.config import Limits
from suffixsvc.errors import AppendGap, LimitExceededError, SessionClosedError, StoreError
from suffixsvc.service.messages.converters import (
    Cost,
    OpeningArguments,
    checked_session_id,
    opening_arguments,
    position,
)
from suffixsvc.service.sessions import incomplete_outputs
from suffixsvc.service.sessions.entries import ClosedSession, Needs, SessionEntry
from suffixsvc.service.sessions.failed_closes import GRACE_SECONDS, FailedCloses
from suffixsvc.service.sessions.probes import Probes
from suffixsvc.service.sessions.step_batch import SessionSteps
from suffixsvc.service.sessions.table import SessionTable
from suffixsvc.types import IncompleteOutput, OutputId, TokenArray
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.wire import unpack_tokens

if TYPE_CHECKING:
    from suffixsvc.engine import Session, SuffixCache

log = structlog.get_logger(__name__)

#: of sessions whose client sends no cost
DEFAULT_VERIFY_COST = 0.02

#: closes that wait for the disk concurrently while the service drains: group commit writes them together
DRAIN_WORKERS = 32


class SessionRegistry:
    """The sessions of one service over one engine. Thread-safe."""

    def __init__(self, cache: SuffixCache, limits: Limits) -> None:
        self._cache = cache
        self._limits = limits
        self.table = SessionTable(limits)
        self.steps = SessionSteps(self.table, limits)
        self.probes = Probes()
        #: live sessions whose close failed
        self.failed_closes = FailedCloses(min(GRACE_SECONDS, limits.session_idle_seconds))

    # ------------------------------------------------------------------------------------------- opening

    def open(self, request: pb.OpenSessionRequest, caller: Caller) -> pb.OpenSessionReply:
        """Open a session, or find the live one of the same id, namespace and prompt.

        Raises:
            InvalidInputError: a field is malformed.
            PermissionDeniedError: the caller may not read a namespace, or not write to that of the session.
            LimitExceededError: the session limit is reached, and no failed close can be released.
            What the engine's ``Namespace.open_session`` raises.
        """
        session_id = checked_session_id(request.session_id) if request.session_id else str(uuid.uuid4())
        arguments, cost = opening_arguments(request, self._limits)
        needs = _needs(request)
        for right, path in needs:
            caller.require(right, path)
        name = caller.session(session_id)
        identity = (request.namespace, xxhash.xxh3_64_hexdigest(arguments[0].tobytes()))
        while True:
            try:
                entry = self.table.get_or_create(name, caller, identity, needs)
            except LimitExceededError:
                # a principal at a limit of its own gets no room by this, and others would lose outputs
                if not self.table.is_full or self._release(self.failed_closes.oldest()) == 0:
                    raise
                continue
            with entry.lock:
                session = entry.session or self._open_engine_session(entry, request, arguments, cost)
                if session is None:
                    continue  # another open of this id failed while this one waited: a new entry is needed
                entry.slot.last_active = time.monotonic()
                return pb.OpenSessionReply(
                    session_id=session_id,
                    length=session.length,
                    follow_denied=bool(request.follower_id) and not self._may_follow(request, caller),
                    no_store=not session.visible,
                )

    def _open_engine_session(
        self,
        entry: SessionEntry,
        request: pb.OpenSessionRequest,
        arguments: OpeningArguments,
        cost: Cost,
    ) -> Session | None:
        """Open under the entry's lock; None if the entry was removed from the table in the meantime."""
        if self.table.get(entry.name) is not entry:
            return None
        try:
            entry.require_rights()  # again: sessions in the table are ended when rights are taken away
            namespace = self._cache.namespace(
                request.namespace, request.tokenizer, bind=False, creator=entry.caller.creator
            )
            session = namespace.open_session(
                *arguments,
                private=request.private,
                principal=entry.caller.principal,
                session_id=entry.name.stored,
                sees_all=entry.caller.sees_all,
            )
        except BaseException:
            self.table.remove_unopened(entry)
            raise
        # before the session, which live text is read from as soon as it is there
        if request.follower_id and self._may_follow(request, entry.caller):
            session.stop_learning()
            entry.follower = entry.caller.scope + request.follower_id
        entry.session = session
        cost = DEFAULT_VERIFY_COST if cost is None else cost
        # a caller that may copy all that the session drafts from need not probe for it
        copies = self._may_follow(request, entry.caller)
        entry.session.attach(entry.slot, cost, None if copies else self.probes.meter_of(entry.caller))
        self.table.opened(entry)
        self._cache.feed.written.notify()  # a resumed session has text before its first step
        return entry.session

    def _may_follow(self, request: pb.OpenSessionRequest, caller: Caller) -> bool:
        """Whether the follower of a request can have what its session drafts from, all or published runs."""
        publishes = self._cache.feed.publishes
        return all(
            caller.sees_all(path) or (publishes(path) and caller.may(Right.READ, path))
            for path in (request.namespace, *request.reads)
        )

    def append_context(self, request: pb.AppendContextRequest, caller: Caller) -> pb.AppendContextReply:
        """Append tokens that the model did not write.

        Raises:
            InvalidInputError, AppendGap, AppendConflict, StepSequenceError, LimitExceededError, and what
            :meth:`SessionTable.locked` raises.
        """
        session_id = checked_session_id(request.session_id)
        tokens, at = unpack_tokens(request.token_ids), position(request)
        with self.table.locked(caller.session(session_id)) as (entry, session):
            if (stored := entry.repeated_append(request.seq)) is not None:
                return stored
            _append_context_at(session, tokens, at)
            reply = pb.AppendContextReply(session_id=session_id, seq=request.seq, length=session.length)
            entry.record_append(request.seq, reply)
            return reply

    # -------------------------------------------------------------------------------------------- closing

    def close(self, name: SessionName, *, commit: bool, incomplete: bool, wait: bool) -> OutputId | None:
        """End a session; a repeated close returns the same output id.

        Incomplete outputs of an expired or drained session of this id are forgotten after the session that
        resumed it is closed or discarded, also where the service was restarted in between. The replacement
        must be durable first, so such a close waits even if ``wait`` is False.

        Raises:
            StoreError: the session stays open for a grace period, and can be closed again (failed_closes.py).
            What :meth:`SessionTable.locked` raises.
        """
        closed = self.table.closed(name)
        if closed is not None and not closed.expired:
            return closed.output_id
        if not commit and self._discard_incomplete(name, closed):
            return None
        try:
            with self.table.locked(name, touch=False) as (entry, session):
                return self._close(entry, session, commit=commit, incomplete=incomplete, wait=wait)
        except SessionClosedError:
            closed = self.table.closed(name)  # by another call, which held the entry's lock
            if closed is None:
                raise
            return closed.output_id
        finally:
            self._release(self.failed_closes.excess())

    def _discard_incomplete(self, name: SessionName, closed: ClosedSession | None) -> bool:
        """Forget incomplete outputs of the last session of this name, unless it is live; whether any."""
        if self.table.get(name) is not None or not incomplete_outputs.discard(self._cache, name, closed):
            return False
        self.table.discarded(name, closed)
        return True

    def expire(self, now: float | None = None) -> int:
        """End sessions that are idle longer than the limit; how many outputs were committed as incomplete.

        A session with a failed close is committed once more when its grace period is over, then released.
        """
        idle_since = (time.monotonic() if now is None else now) - self._limits.session_idle_seconds
        due = self.failed_closes.due()
        committed = sum(self._commit_incomplete(entry, self.failed_closes.contains) for entry in due)
        self._release(due)
        idle = [each for each in self.table.entries() if each.session and each.slot.last_active <= idle_since]
        for entry in idle:
            if not self.failed_closes.contains(entry):  # in its grace period
                committed += self._commit_incomplete(
                    entry, lambda entry: entry.slot.last_active <= idle_since
                )
        self._release(self.failed_closes.excess())
        return committed

    def end_revoked(self) -> int:
        """End sessions whose callers have lost a right that they need; returns how many.

        What such a session wrote is committed as incomplete if its caller may still write, else discarded.
        """
        revoked = [entry for entry in self.table.entries() if entry.is_revoked]
        for entry in revoked:
            if entry.caller.may(Right.WRITE, entry.identity[0]):
                self._commit_incomplete(entry, lambda entry: entry.is_revoked)
            else:
                self._discard_revoked(entry)
        return len(revoked)

    def _discard_revoked(self, entry: SessionEntry) -> None:
        with entry.lock:
            if entry.session is None or not entry.is_revoked:
                return
            try:
                self._close(entry, entry.session, incomplete=True, commit=False, expired=True)
            except Exception as error:  # one session must not end the task
                log.warning("session not discarded", session=entry.name.id, error=str(error))

    def drain(self) -> int:
        """Refuse new sessions and end the live ones; the number of outputs committed as incomplete.

        Sessions that the store cannot write are released.
        """
        self.table.draining = True  # first: a session opened after the list is made would not be ended
        live = self.table.entries()
        with ThreadPoolExecutor(DRAIN_WORKERS, thread_name_prefix="drain") as pool:
            committed = sum(pool.map(self._commit_incomplete, live))
            self._release(live)
        return committed

    def _commit_incomplete(
        self, entry: SessionEntry, condition: Callable[[SessionEntry], bool] | None = None
    ) -> bool:
        """End a session and commit its output as incomplete; whether there was one.

        Args:
            condition: checked again with the entry's lock held; if False, the session is left as it is.
        """
        with entry.lock:
            if entry.session is None or (condition is not None and not condition(entry)):
                return False
            try:
                return self._close(entry, entry.session, incomplete=True, expired=True) is not None
            except Exception as error:  # any exception, an OSError too: one session must not end the task
                log.warning("session not committed", session=entry.name.id, error=str(error))
                self.failed_closes.record(entry, entry.session.length)
                return False

    def _close(
        self,
        entry: SessionEntry,
        session: Session,
        *,
        incomplete: bool,
        commit: bool = True,
        wait: bool = True,
        expired: bool = False,
    ) -> OutputId | None:
        """Close a session with its entry's lock held, then forget the incomplete outputs that it replaces."""
        identity = entry.identity
        shared = session.has_output and session.visible  # before a close, which ends that
        replaced = self._replaced(entry, session)
        entry.resumed_outputs = tuple(each.output_id for each in replaced)
        try:
            output_id = session.close(commit, incomplete=incomplete, wait=wait or bool(replaced))
        except Exception:
            self.failed_closes.record(entry, session.length)
            raise
        left: tuple[OutputId, ...] = ()
        if expired:
            left = (entry.resumed_outputs or entry.previous_outputs) if output_id is None else (output_id,)
        refused = expired and shared and output_id is None
        self._end(entry, ClosedSession(identity, output_id, expired, left, refused=refused))
        if output_id is not None or not commit:
            incomplete_outputs.forget(self._cache, replaced, output_id)
        return output_id

    def _replaced(self, entry: SessionEntry, session: Session) -> list[IncompleteOutput]:
        """The incomplete outputs that a session replaces; none, if it stores nothing and the log fails."""
        try:
            return incomplete_outputs.contained_in(self._cache, session, entry.name)
        except StoreError as error:
            if session.visible:
                raise
            log.warning("incomplete outputs are not looked for", session=entry.name.id, error=str(error))
            return []

    def _release(self, entries: Sequence[SessionEntry]) -> int:
        """End sessions with a failed close, without their output; how many. No entry's lock is held."""
        return sum(self._release_one(entry) for entry in entries)

    def _release_one(self, entry: SessionEntry) -> bool:
        with entry.lock:
            session = entry.session
            if session is None or not self.failed_closes.contains(entry):
                return False
            try:
                session.close(commit=False)
            except Exception:  # the session is released all the same
                log.exception("a session could not be discarded", session=entry.name.id)
            log.error(
                "a session is released without its output: it could not be stored",
                session=entry.name.id,
                namespace=entry.identity[0],
                tokens=session.length,
            )
            self._end(entry, ClosedSession(entry.identity, None, True, entry.resumed_outputs, lost=True))
            return True

    def _end(self, entry: SessionEntry, closed: ClosedSession) -> None:
        """Remove a closed session from all tables, with its entry's lock held."""
        self.failed_closes.remove(entry, lost=closed.lost)
        self.table.ended(entry, closed)
        self._cache.feed.written.notify()


def _append_context_at(session: Session, tokens: TokenArray, at: int | None) -> None:
    """Append context that may overlap the session's text: the engine checks the overlap, the rest is new."""
    length = session.length
    if at is not None and at > length:
        raise AppendGap(expected=length, got=at)
    known = 0 if at is None else min(length - at, len(tokens))
    if known:
        session.step(tokens[:known], max_draft_tokens=0, at=at)
    if known < len(tokens):
        session.append_context(tokens[known:])


def _needs(request: pb.OpenSessionRequest) -> Needs:
    """The rights that a session needs. One that stores nothing and shows others nothing needs no WRITE."""
    reads = tuple((Right.READ, path) for path in (request.namespace, *request.reads))
    return reads if request.private else (*reads, (Right.WRITE, request.namespace))
