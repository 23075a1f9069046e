"""Outputs on their way into log and index, and out of both again.

    commit   admit ──> log                  a session's: its text is in the index as it is written
    add      admit ──> index ──> log        bulk
    forget             log ──> index        also to make room, and when their time has passed

What is in the log is in the index: a text is there before its row, and leaves after it. No lock is held over
a call of the store; what depends on the order of commits is done where they are made (see ``Store.append``
and ``Store.set_deletion_listener``).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from concurrent.futures import Future

import structlog

from suffixsvc.clock import Due
from suffixsvc.config import Limits
from suffixsvc.engine.indexes import Indexes
from suffixsvc.engine.lifetime import Lifetime
from suffixsvc.engine.prices import predicted_bytes
from suffixsvc.engine.room import Room
from suffixsvc.engine.sealing import Hook
from suffixsvc.engine.unindexing import Unindexer
from suffixsvc.engine.writes import BulkLoad, LiveWrite
from suffixsvc.errors import LimitExceededError, SuffixError, UnknownNamespaceError
from suffixsvc.index import Decided, NamespaceIndex
from suffixsvc.interrupts import uninterrupted
from suffixsvc.policies import Policies
from suffixsvc.store.validation import check_now, check_output
from suffixsvc.types import NewOutput, OutputId, Store, StoredOutput, repeated_in

__all__ = ["Outputs"]

log = structlog.get_logger(__name__)

#: outputs that are forgotten before their texts are taken out of the index
_FORGOTTEN_AT_A_TIME = 256


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
        indexes: Indexes,
        lifetime: Lifetime,
        limits: Limits,
        policies: Policies,
        hook: Hook | None = None,
    ) -> None:
        self._store = store
        self._indexes = indexes
        self._lifetime = lifetime
        self._limits = limits
        self.room = Room(
            policies, limits.max_cache_bytes, store, indexes, weakref.WeakMethod(self.forget_many), hook
        )
        self._unindexer = Unindexer(indexes, self.room.refresh)
        weakly = weakref.WeakMethod(self._unindexer.forgotten)  # the store's thread must not keep the cache

        def forgotten(gone: Sequence[StoredOutput]) -> None:
            if (tell := weakly()) is not None:
                tell(gone)

        store.set_deletion_listener(forgotten)

    # -------------------------------------------------------------------------------------------- writing

    def commit(self, index: NamespaceIndex, output: NewOutput, decided: Decided) -> Future[list[OutputId]]:
        """Log what a session wrote; the future holds its id once it is durable. See ``index.Commit``."""
        write = LiveWrite(index, output, decided)
        try:
            with self._lifetime.while_open():
                write.begin(self.room, self._indexes, live=True)
            return write.hand_over(self._store)
        except BaseException:
            write.take_back()
            raise

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
        with self._lifetime.while_open():
            ids = self._log(index, outputs)
        self.make_room(index, sum(map(predicted_bytes, outputs)))
        return ids

    def _log(self, index: NamespaceIndex, outputs: Sequence[NewOutput]) -> list[OutputId]:
        load = BulkLoad(index, outputs, self._unindexer)
        try:
            uninterrupted(lambda: load.begin(self.room, self._indexes))
            for _ in outputs:
                uninterrupted(load.insert_next)
            future = uninterrupted(lambda: load.hand_over(self._store))
        except BaseException:
            uninterrupted(load.take_back)
            self.settle()
            raise
        try:  # an interrupt of the wait undoes nothing: whether it is kept is the store's word alone
            ids = future.result()
        except SuffixError:
            self.settle()
            raise
        if repeated_in(ids):
            self.settle()
        return ids

    def make_room(self, index: NamespaceIndex, written: int) -> None:
        """After a write that was acknowledged: nothing that goes wrong here is an error of that write."""
        try:
            self.room.make_room(index, written)
        except SuffixError as error:
            log.warning("eviction failed; it is tried again", namespace=index.path, error=str(error))

    # ----------------------------------------------------------------------------------------- forgetting

    def forget(self, path: str, output_id: OutputId) -> None:
        """Forget one output of a namespace. UnknownOutputError if it is not there."""
        with self._lifetime.while_open():
            try:
                self._store.forget(path, output_id)
            finally:
                self.settle()

    def forget_many(self, path: str, output_ids: Sequence[OutputId]) -> int:
        """Forget those of a namespace's outputs that are there, in few transactions; returns how many."""
        gone = 0
        for first in range(0, len(output_ids), _FORGOTTEN_AT_A_TIME):
            try:
                gone += len(self._store.forget_many(path, output_ids[first : first + _FORGOTTEN_AT_A_TIME]))
            finally:
                self.settle()
        return gone

    def expire(self, now: float | None = None) -> int:
        """Forget the outputs whose time to live has passed, their own or their namespace's; how many."""
        due = self._store.clock.due() if now is None else Due.at(check_now(now))
        outputs = 0
        while gone := self._expire_some(now):
            outputs += gone
        with self._lifetime.while_open():
            return outputs + self.room.expire(self._indexes.stored(), due)

    def _expire_some(self, now: float | None) -> int:
        with self._lifetime.while_open():
            try:
                return len(self._store.expire(now))
            finally:
                self.settle()

    def settle(self) -> None:
        """Returns when what was forgotten before is out of the indexes."""
        self._unindexer.finish()
