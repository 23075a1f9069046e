"""Outputs on their way into log and index, and out of both again.

    commit   admit ──> log                  a session's: its text is in the index as it is written
    add      admit ──> index ──> log        bulk
    forget             log ──> index        also to make room, and when their time has passed

Whoever forgets holds the lock ``forgetting`` over both halves. Where the cache's own lock is held, too, that
one is taken first.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial

import structlog

from suffixsvc.clock import Due
from suffixsvc.config import Limits
from suffixsvc.engine.insertion import Insertion
from suffixsvc.engine.lifetime import Lifetime
from suffixsvc.engine.room import Room, predicted_bytes
from suffixsvc.engine.sealing import Hook
from suffixsvc.errors import LimitExceededError, SuffixError, UnknownNamespaceError
from suffixsvc.index import NamespaceIndex
from suffixsvc.policies import Policies
from suffixsvc.store.validation import check_now, check_output
from suffixsvc.types import NewOutput, OutputId, Store, StoredOutput

__all__ = ["Outputs"]

log = structlog.get_logger(__name__)


class Outputs:
    """The outputs of one cache. Thread-safe.

    Args:
        store: the log.
        indexes: of the cache; others add to it.
        lifetime: of the cache.
        limits: how long an output may be, and what all may take.
        policies: what each namespace may hold and for how long.
        hook: see :data:`Hook`.
    """

    def __init__(
        self,
        store: Store,
        indexes: Mapping[str, NamespaceIndex],
        lifetime: Lifetime,
        limits: Limits,
        policies: Policies,
        hook: Hook | None = None,
    ) -> None:
        self._store = store
        self._indexes = indexes
        self._lifetime = lifetime
        self._limits = limits
        #: held by whoever forgets, over the log's and the index's part of it
        self.forgetting = threading.Lock()
        self.room = Room(policies, limits.max_cache_bytes, store, weakref.WeakMethod(self.forget_many), hook)

    # -------------------------------------------------------------------------------------------- writing

    def commit(self, index: NamespaceIndex, output: NewOutput) -> Future[list[OutputId]]:
        """Log what a session wrote; the future holds its id once it is durable."""
        release = self.room.admit(index, [output])
        try:
            with self._lifetime.while_open():
                future = self._store.append([output])
        except BaseException:
            release()
            raise
        future.add_done_callback(lambda done: release())
        return future

    def add(self, index: NamespaceIndex, outputs: Sequence[NewOutput]) -> list[OutputId]:
        """Index and log outputs of one namespace, all or none. See ``Namespace.add_outputs``."""
        for output in outputs:  # all of them before any is touched
            check_output(output)
            if len(output.token_ids) > self._limits.max_output_tokens:
                raise LimitExceededError(
                    "an output is too long",
                    expected=f"at most {self._limits.max_output_tokens} tokens (Limits.max_output_tokens)",
                    got=len(output.token_ids),
                )
            if output.namespace != index.path:
                raise UnknownNamespaceError(
                    "an output belongs to another namespace", expected=index.path, got=output.namespace
                )
        self._lifetime.require_open()
        release = self.room.admit(index, outputs)
        try:
            ids = self._log(index, outputs)
        finally:
            release()
        self.make_room(index, sum(map(predicted_bytes, outputs)))
        return ids

    def _log(self, index: NamespaceIndex, outputs: Sequence[NewOutput]) -> list[OutputId]:
        # Indexed before they are logged: whoever finds an output in the log, an expiry say, can rely
        # on its being in the index.
        insertion = Insertion(index, outputs)
        try:
            insertion.do()
            with self._lifetime.while_open():
                future = self._store.append(outputs)
        except BaseException:
            insertion.undo()
            raise
        # Whether it is kept is the store's word alone: an interrupt of the wait undoes nothing.
        future.add_done_callback(lambda done: insertion.undo() if done.exception() else None)
        future.add_done_callback(partial(_note_kept, index, outputs, insertion.writers))
        try:
            return future.result()
        finally:
            if future.done() and future.exception() is not None:
                insertion.undo()  # now, not when the writer comes to the callback

    def make_room(self, index: NamespaceIndex, written: int) -> None:
        """After a write that was acknowledged: nothing that goes wrong here is an error of that write."""
        try:
            self.room.make_room(index, written)
        except SuffixError as error:
            log.warning("eviction failed; it is tried again", namespace=index.path, error=str(error))

    # ----------------------------------------------------------------------------------------- forgetting

    def forget(self, path: str, output_id: OutputId) -> None:
        """Forget one output of a namespace. UnknownOutputError if it is not there."""
        with self._lifetime.while_open(), self.forgetting:
            self._unindex([self._store.forget(path, output_id)])

    def forget_many(self, path: str, output_ids: Sequence[OutputId]) -> int:
        """Forget those of a namespace's outputs that are there, in few transactions; returns how many."""
        with self.forgetting:
            gone = self._store.forget_many(path, output_ids)
            self._unindex(gone)
            return len(gone)

    def expire(self, now: float | None = None) -> int:
        """Forget the outputs whose time to live has passed, their own or their namespace's; how many."""
        due = self._store.clock.due() if now is None else Due.at(check_now(now))
        with self._lifetime.while_open(), self.forgetting:
            gone = self._store.expire(now)
            self._unindex(gone)
            indexes = list(self._indexes.values())
        return len(gone) + self.room.expire(indexes, due)

    def _unindex(self, gone: Sequence[StoredOutput]) -> None:
        """The log has let these go: so must the indexes. IndexCorruptError after all of them. The lock for
        forgetting has been held since before the log did."""
        by_namespace: dict[str, list[StoredOutput]] = {}
        for stored in gone:
            by_namespace.setdefault(stored.output.namespace, []).append(stored)
        broken: SuffixError | None = None
        for path, outputs in by_namespace.items():
            index = self._indexes[path]  # nothing is written to a namespace that has none
            try:
                index.forget(outputs)
            except SuffixError as error:
                broken = error
            self.room.refresh(index)
        if broken is not None:
            raise broken


def _note_kept(
    index: NamespaceIndex,
    outputs: Sequence[NewOutput],
    writers: Sequence[int],
    stored: Future[list[OutputId]],
) -> None:
    if stored.cancelled() or stored.exception() is not None:
        return
    for output, writer, output_id in zip(outputs, writers, stored.result(), strict=True):
        index.note_kept(output, writer, output_id)
