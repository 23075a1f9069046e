"""Live text of a session in the index, and its commit to the log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import structlog

from suffixsvc import core
from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.errors import LimitExceededError, UnknownNamespaceError
from suffixsvc.index.namespace import NamespaceIndex
from suffixsvc.selection import Selection
from suffixsvc.types import Labels, NewOutput, OutputId

log = structlog.get_logger(__name__)

#: called before the future is done, by the store's thread or a follower's: id of the committed output whose
#: text is the live one; None: the live text does not belong to the log
OnCommitted = Callable[[OutputId | None], None]
#: the id of an output once it is durable; None: a follower's service kept nothing of it
CommittedIds = Future[list[OutputId]] | Future[list[OutputId | None]]
#: submits an output to the store; the last argument is the memory of its live text in bytes.
#: LimitExceededError: it does not fit; UnknownNamespaceError: the namespace was deleted
Commit = Callable[[NewOutput, OnCommitted, int], CommittedIds]


def _nothing() -> None:
    """Nothing is learned."""


@dataclass(frozen=True, slots=True)
class TextOrigin:
    """Where the text of a session comes from.

    Attributes:
        session_id, labels, principal: as stored with its output.
        stop_learning: ends what drafting learns from it.
    """

    session_id: str = ""
    labels: Labels = field(default_factory=dict)
    principal: str = ""
    stop_learning: Callable[[], None] = _nothing


class PendingCommit:
    """State of one session's text between the index and the log.

    It can outlive the session: it refers only to the session's native half.

    ::

        live ── begin ──> in flight ──> committed: the text belongs to the log
          │       │           └ failed: live again if the session waited, retracted otherwise
          │       └ rejected by a limit: live; its namespace was deleted: retracted
          └ release ──> retracted

    Calls of :meth:`begin`, :meth:`wait` and :meth:`release` are serialised: :attr:`lock` is held, or the
    session was garbage-collected.

    Attributes:
        lock: the session's lock.
        submitted: the output that the store accepted, and the future of its id; None before that.
        retracted: the live text was removed from the index, for good.
    """

    def __init__(
        self,
        namespace: NamespaceIndex,
        native: core.Session,
        writer: int,
        commit: Commit,
        about: TextOrigin = TextOrigin(),
    ) -> None:
        self._namespace = namespace
        self._native = native
        self._writer = writer
        self._commit = commit
        self._about = about
        self.lock = threading.Lock()
        self.submitted: tuple[NewOutput, CommittedIds] | None = None
        self._insert: UndoableInsert | None = None
        #: the index holds the output's texts besides the live ones, which carry more context
        self._copied = False
        #: the live text is the output's
        self._handed_over = False
        self._released = False
        self._retracting = threading.Lock()
        self.retracted = False

    def begin(self, output: NewOutput) -> None:
        """Submit an output to the store.

        :attr:`submitted` stays None where a limit rejects the output, and where the namespace was deleted; in
        the second case the text is retracted.

        The index then holds the text as a restart would rebuild it: the live text itself, or, where context
        was appended between runs, separate texts, because live runs carry the context before each of them and
        the log stores only that of the first.
        """
        namespace = self._namespace
        insert = UndoableInsert(namespace, lambda: self._undo(output))
        writer = self._writer

        def on_committed(output_id: OutputId | None) -> None:
            if output_id is None:
                insert.failed()
                return
            try:
                namespace.record_logged(output, writer, output_id)
            finally:
                insert.committed()

        try:
            if len(output.segment_lens) > 1:
                writer = namespace.insert(output)
                self._copied = True
            self._handed_over = not self._copied
            future = self._commit(output, on_committed, self.held_bytes())
        except BaseException as error:
            insert.failed()
            insert.leave()
            if isinstance(error, UnknownNamespaceError):
                self.retract()  # as the deletion does with texts that were not in flight
            elif not isinstance(error, LimitExceededError):
                raise
            elif namespace.count_refused():
                log.warning("outputs are not stored", namespace=namespace.path, why=str(error))
        else:
            self.submitted, self._insert = (output, future), insert

    def wait(self) -> OutputId | None:
        """Wait until the output is durable and return its id. An interrupt leaves the commit in flight.

        Returns:
            The id. None: the service of a follower kept nothing of the output.

        Raises:
            StoreError: the output was not stored; the text is live again.
        """
        assert self.submitted is not None  # noqa: S101  # only after begin
        assert self._insert is not None  # noqa: S101  # as above
        future = self.submitted[1]
        try:
            return future.result()[0]
        except BaseException:
            if future.done() and future.exception() is not None:
                self._insert.leave()
                self.submitted = self._insert = None
            raise

    def release(self) -> None:
        """The session is over: text that the log does not hold is removed from the index, now or when the
        store has decided. Idempotent."""
        if self._released:
            return
        self._released = True
        insert, self._insert = self._insert, None  # breaks the reference cycle
        if insert is None or self._copied:
            self.retract()
        if insert is not None:
            insert.leave()

    def retract(self) -> None:
        """Remove the live text from the index. Idempotent."""
        with self._retracting:  # a deletion and the session may retract concurrently
            if self.retracted:
                return
            self._namespace.begin_write()
            try:
                self.retracted = True
                self._native.retract()
            finally:
                self._namespace.end_write()

    def discard(self) -> None:
        """Retract the live text unless the log holds it. Any thread, while no write is in flight."""
        if not self._handed_over:
            self.retract()

    def withdraw(self, selection: Selection) -> bool:
        """Retract the live text for good, if the selection takes its writer; whether it did.

        Text that is being stored is left to the deletion of its output. Waits while the session is closed.
        """
        about = self._about
        if not selection.takes(about.session_id, about.labels, about.principal):
            return False
        with self.lock:
            if self.retracted or self._released or self.submitted is not None:
                return False
            about.stop_learning()
            self.retract()
            return True

    def _undo(self, output: NewOutput) -> None:
        """The store did not commit the output."""
        try:
            if self._copied:
                self._namespace.remove(output)
            elif self._released:
                self.retract()
        finally:
            self._copied = self._handed_over = False

    def live_positions(self) -> int:
        """Positions of the index that the live text takes on behalf of the session, not of the log."""
        if self.retracted or self._handed_over:
            return 0
        runs = self._native.output_runs()
        return sum(last - max(0, first - PROMPT_TAIL_TOKENS) for first, last in runs)

    def held_bytes(self) -> int:
        """Memory of the live text in bytes."""
        return self._native.held_bytes

    @property
    def principal(self) -> str:
        """Who writes it."""
        return self._about.principal


class UndoableInsert:
    """The text of one session's output between its insertion into the index and the store's commit.

    Every logged output is indexed, so the text is inserted first; it is removed again if the store does not
    commit the output. Thread-safe.

    ::

        in flight ──committed──> the text stays, on behalf of the log
             └──────failed─────> removed once the writer has left: by the writer, or, where it did not wait,
                                 by the store's thread

    Until then the namespace counts the write as in flight.

    Args:
        index: index of the namespace.
        undo: removes the text from the index. Called at most once.
    """

    def __init__(self, index: NamespaceIndex, undo: Callable[[], None]) -> None:
        self._index = index
        self._undo = undo
        self._lock = threading.Lock()
        self._failed = self._left = self._done = False
        index.begin_write()

    def committed(self) -> None:
        """The output is in the log. Called on the store's thread, before the write's future is done."""
        with self._lock:
            if self._done:
                return
            self._done = True
        self._index.end_write()

    def failed(self) -> None:
        """The store did not commit the output. Called as :meth:`committed`."""
        self._finish(failed=True)

    def leave(self) -> None:
        """The writer no longer waits: the write is decided, or its undo is left to the store's thread."""
        self._finish(left=True)

    def _finish(self, *, failed: bool = False, left: bool = False) -> None:
        with self._lock:
            self._failed |= failed
            self._left |= left
            if self._done or not (self._failed and self._left):
                return
            self._done = True
        try:
            self._undo()
        finally:
            self._index.end_write()
