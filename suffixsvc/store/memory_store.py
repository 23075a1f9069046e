"""The in-memory store: the contract of the durable store without a disk. Its contents are lost at exit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from suffixsvc.clock import StoreClock, SystemTime
from suffixsvc.config import Limits
from suffixsvc.errors import StoreClosedError, StoreError, StoreFullError
from suffixsvc.runtime.signal_guard import uninterrupted
from suffixsvc.store.base import Store
from suffixsvc.store.memory_tables import MemoryTables
from suffixsvc.store.records.framing import corrupt
from suffixsvc.store.transactions.checker import check_view
from suffixsvc.store.transactions.operations import Operation, call_listener
from suffixsvc.store.transactions.read_view import ReadView
from suffixsvc.store.transactions.snapshot import Snapshot
from suffixsvc.store.transactions.tables import SCHEMAS
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.types import OutputId, StoredOutput

T = TypeVar("T")

#: a store that refused an append counts as full while this many bytes do not fit
_PROBE_BYTES: Final = 64 << 10


class MemoryStore(Store):
    """A :class:`Store` in memory. Thread-safe; futures are done when they are returned.

    Args:
        limit_bytes: limit of all rows together; appends beyond it raise StoreFullError.
        clock: the clocks of the machine.
    """

    _log: _MemoryLog
    _appends_in_slices = False

    def __init__(
        self,
        *,
        limit_bytes: int = Limits().max_store_bytes,
        clock: SystemTime | None = None,
    ) -> None:
        super().__init__(_MemoryLog(limit_bytes), StoreClock(grace_seconds=0.0, source=clock))
        self._call(lambda view: view.put_schema(self.clock.now_us()))

    def _submit(self, operation: Operation[T]) -> Future[T]:
        return self._log.submit(operation, self._scans.record_deletions)

    def set_deletion_listener(self, listener: Callable[[Sequence[StoredOutput]], None]) -> None:
        """Call ``listener`` after every call that deleted outputs, with these."""
        self._log.listener = listener

    def set_commit_listener(self, listener: Callable[[OutputId], None]) -> None:
        """Call ``listener`` with the last LSN after every call that wrote something."""
        self._log.commit_listener = listener

    def barrier(self) -> None:
        """Return: the listener is called before a deletion returns."""
        with self._log.read():
            pass

    def scrub(self) -> None:
        """Return: a deleted row has been freed."""

    @property
    def segment_folder(self) -> Path | None:
        """None: the contents end with the process, so that nothing is sealed."""
        return None

    def failure(self) -> StoreError | None:
        """Return why appends fail at this moment, or None."""
        return self._log.failure()

    def check(self) -> None:
        """Verify every row, counter and index; StoreCorruptError names the first broken invariant."""
        with self._log.read() as view:
            check_view(view)
            rows = (row for name in SCHEMAS if name != "meta" for row in view.tables.rows(name))
            counted = sum(len(key) + len(value) for key, value in rows)
            if counted != self._log.disk_bytes():
                raise corrupt("the number of bytes is wrong", counted, self._log.disk_bytes())

    def close(self) -> None:
        """Refuse further calls with StoreClosedError. Idempotent."""
        self._log.close()


class _MemoryLog:
    """The log of an in-memory store. A write is done, and its listeners are called, with the lock held."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tables = MemoryTables()
        self._closed = False
        self._refused = False  # the last append, for lack of room
        self.commit_lock = threading.RLock()
        self.snapshot = Snapshot()
        #: receives the rows that a commit deleted, after it
        self.listener: Callable[[list[StoredOutput]], object] | None = None
        #: receives the last LSN after a commit
        self.commit_listener: Callable[[OutputId], object] | None = None

    def require_usable(self) -> None:
        """Raise StoreClosedError after the close."""
        if self._closed:
            raise StoreClosedError("the store is closed", remedy="Open another one.")

    @contextmanager
    def read(self) -> Iterator[ReadView]:
        """Return the contents; nothing is written meanwhile."""
        with self.commit_lock:
            self.require_usable()
            yield ReadView(self._tables, self.snapshot)

    def submit(self, operation: Operation[T], on_deleted: Callable[[WriteView], None]) -> Future[T]:
        """Run an operation; its future is done.

        Args:
            on_deleted: called before a commit that deletes rows.
        """
        with self.commit_lock:
            try:
                self.require_usable()
                result, deleted = uninterrupted(lambda: self._transact(operation, on_deleted))
            except Exception as error:  # of the future
                operation.fail(error)
            else:
                call_listener(operation.on_committed, result)
                if deleted:
                    call_listener(self.listener, deleted)
                call_listener(self.commit_listener, self.snapshot.counters.last_lsn)
                operation.future.set_result(result)
        return operation.future

    def _transact(
        self, operation: Operation[T], on_deleted: Callable[[WriteView], None]
    ) -> tuple[T, list[StoredOutput]]:
        before = self._tables.bytes
        self._tables.begin()
        try:
            view = WriteView(self._tables, self.snapshot)
            result = operation.apply(view)
            view.finish()
            if self._tables.bytes > before:
                self._require_room(self._tables.bytes)
            on_deleted(view)
            self.snapshot = view.snapshot()
            self._tables.commit()
        except BaseException:
            self._tables.abort()
            raise
        return result, view.deleted

    def failure(self) -> StoreError | None:
        """Return why appends fail at this moment, or None."""
        with self.commit_lock:
            try:
                self.require_usable()
                if self._refused:
                    self._require_room(self._tables.bytes + _PROBE_BYTES)
                    self._refused = False
            except StoreError as error:
                return error
            return None

    def disk_bytes(self) -> int:
        """Return the bytes of all rows."""
        return self._tables.bytes

    def close(self) -> None:
        """Refuse further calls."""
        with self.commit_lock:
            self._closed = True

    def _require_room(self, needed: int) -> None:
        if needed > self._limit:
            self._refused = True
            raise StoreFullError(
                "the store is full",
                expected=f"at most {self._limit} bytes",
                got=f"{needed} bytes",
                remedy="Forget outputs or raise Limits.max_store_bytes; nothing was stored.",
            )
