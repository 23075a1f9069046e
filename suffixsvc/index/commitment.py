"""The live text of a session, and its way into the log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import structlog

from suffixsvc import core
from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.errors import LimitExceededError, UnknownNamespaceError
from suffixsvc.index.namespace import NamespaceIndex
from suffixsvc.index.pending import PendingWrite
from suffixsvc.types import NewOutput, OutputId

__all__ = ["Commit", "Commitment", "Decided"]

log = structlog.get_logger(__name__)

#: tells on the store's thread, before the future is done, under which id an output was kept; None: it was not
Decided = Callable[[OutputId | None], None]
#: hands an output to the store; the future holds its id once it is durable. LimitExceededError: no room;
#: UnknownNamespaceError: the namespace was deleted
Commit = Callable[[NewOutput, Decided], Future[list[OutputId]]]


class Commitment:
    """Of one session, which outlives it: it holds nothing of the session but its native half.

    ::

        live ── begin ──> in flight ──> kept: the log owns the text
          │       │           └ failed: live again if the session waited, retracted otherwise
          │       └ refused by a limit: live; its namespace was deleted: retracted
          └ release ──> retracted

    :meth:`begin`, :meth:`wait` and :meth:`release` are called one at a time: the session's lock is held, or
    the session is gone.
    """

    def __init__(self, namespace: NamespaceIndex, native: core.Session, writer: int, commit: Commit) -> None:
        self._namespace = namespace
        self._native = native
        self._writer = writer
        self._commit = commit
        #: the output that the store did not refuse, and its id once it is durable
        self.made: tuple[NewOutput, Future[list[OutputId]]] | None = None
        self._pending: PendingWrite | None = None
        #: the index holds the output's texts beside the live ones, which carry more context
        self._copied = False
        #: the live text is the output's
        self._handed_over = False
        self._released = False
        self._retracting = threading.Lock()
        #: the live text is in the index no more, and will not be
        self.retracted = False

    def begin(self, output: NewOutput) -> None:
        """Hand an output to the store; :attr:`made` stays None where the limits refuse it, and where the
        namespace was deleted: the text is then retracted.

        The index then holds the text as a restart would rebuild it: as it is live, or, where context was
        appended between runs, in texts of its own, since live runs carry the context before each of them and
        the log keeps that of the first only.
        """
        namespace = self._namespace
        pending = PendingWrite(namespace, lambda: self._take_out(output))
        writer = self._writer

        def decided(output_id: OutputId | None) -> None:
            if output_id is None:
                pending.failed()
                return
            try:
                namespace.kept(output, writer, output_id)
            finally:
                pending.kept()

        try:
            if len(output.segment_lens) > 1:
                writer = namespace.insert(output)
                self._copied = True
            self._handed_over = not self._copied
            stored = self._commit(output, decided)
        except BaseException as error:
            pending.failed()
            pending.leave()
            if isinstance(error, UnknownNamespaceError):
                self.retract()  # as the deletion does with those that were not on their way
            elif not isinstance(error, LimitExceededError):
                raise
            elif namespace.count_refused():
                log.warning("outputs are not kept", namespace=namespace.path, why=str(error))
        else:
            self.made, self._pending = (output, stored), pending

    def wait(self) -> OutputId:
        """The id, once the output is durable. An interrupt leaves the commit in flight.

        Raises:
            StoreError: nothing was kept; the text is live again.
        """
        assert self.made is not None  # noqa: S101  # only after begin
        assert self._pending is not None  # noqa: S101  # as above
        stored = self.made[1]
        try:
            return stored.result()[0]
        except BaseException:
            if stored.done() and stored.exception() is not None:
                self._pending.leave()
                self.made = self._pending = None
            raise

    def release(self) -> None:
        """The session is over. What the log does not hold of its text leaves the index: now, or when the
        store has decided. Idempotent."""
        if self._released:
            return
        self._released = True
        pending, self._pending = self._pending, None  # it leads back here
        if pending is None or self._copied:
            self.retract()
        if pending is not None:
            pending.leave()

    def retract(self) -> None:
        """Take the live text out of the index. Idempotent."""
        with self._retracting:  # a deletion and the session itself may do it at once
            if self.retracted:
                return
            self._namespace.begin_write()
            try:
                self.retracted = True
                self._native.retract()
            finally:
                self._namespace.end_write()

    def discard(self) -> None:
        """The same, unless the log holds it. Any thread, while no write is in flight."""
        if not self._handed_over:
            self.retract()

    def _take_out(self, output: NewOutput) -> None:
        """Nothing was kept of an output."""
        try:
            if self._copied:
                self._namespace.remove(output)
            elif self._released:
                self.retract()
        finally:
            self._copied = self._handed_over = False

    def live_positions(self) -> int:
        """Positions that the live text takes in the index, and no output in the log stands for."""
        if self.retracted or self._handed_over:
            return 0
        runs = self._native.output_runs()
        return sum(last - max(0, first - PROMPT_TAIL_TOKENS) for first, last in runs)

    def held_bytes(self) -> int:
        """Memory of the live text."""
        return self._native.held_bytes
