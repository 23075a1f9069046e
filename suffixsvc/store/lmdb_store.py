"""The durable store: an LMDB log in one folder, open in one process. Writes go through its thread."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import structlog

from suffixsvc.clock import StoreClock, SystemTime
from suffixsvc.config import Limits
from suffixsvc.errors import InvalidConfigError, StoreClosedError, StoreError, StoreFullError
from suffixsvc.store.base import Store
from suffixsvc.store.copies.log_copy import LogCopy
from suffixsvc.store.copies.new_file import NewDataFile
from suffixsvc.store.files import datafile
from suffixsvc.store.files.folder import SEGMENTS, prepare_folder
from suffixsvc.store.lmdb_log.committer import Committer
from suffixsvc.store.lmdb_log.environment import Environment, round_up_map_size
from suffixsvc.store.lmdb_log.migration import discard_backup
from suffixsvc.store.lmdb_log.store_thread import StoreThread
from suffixsvc.store.records.table_records import SCHEMA_VERSION
from suffixsvc.store.records.validation import check_now
from suffixsvc.store.transactions.checker import check_view
from suffixsvc.store.transactions.operations import Operation, Undo
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.types import OutputId, StoredOutput, StoreStats

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: an empty store needs a few dozen pages, and deletions need working space
MIN_LIMIT_BYTES: Final = 1 << 20
_DEFAULT_MAP_BYTES: Final = 4 << 20
#: longest time between two clock records of an open store without other writes
_CLOCK_PERIOD_SECONDS: Final = 600.0
#: a wall clock that went back by more was set while the folder was closed
_BEHIND_SECONDS: Final = 1.0


class LmdbStore(Store):
    """A :class:`Store` in a folder.

    Thread-safe. Belongs to the process that opened it: after a fork the child gets StoreClosedError.
    Futures resolve on the store's thread; their callbacks must not call the store and wait.

    Args:
        path: the folder; created where it is missing.
        map_bytes_initial: the file's first size; it doubles as needed.
        limit_bytes: maximum size of the file; appends beyond it raise StoreFullError. A small part is
            reserved so that deletions always work. At least ``MIN_LIMIT_BYTES``.
        sync: False acknowledges before the data is on the disk: acknowledged data then survives the end of
            the process, but a power cut can destroy the whole file.
        grace_seconds: how long outputs are retained that are due only because the wall clock moved while the
            folder was closed (:mod:`suffixsvc.clock`).
        migrate: migrate a folder of an older schema, after a backup (docs/upgrading.md); False refuses it.
        clock: the clocks of the machine.
        lsns_from_clock: LSNs are store times in microseconds, as far as they rise; False: they count.

    Raises:
        StoreLockedError: the folder is open already.
        StoreForeignError: a file is not one of suffixsvc's, or has another schema version.
        StoreCorruptError: a file is truncated or damaged.
        StoreFullError, StoreError: the folder cannot be created or written.
    """

    _log: Environment

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        map_bytes_initial: int = _DEFAULT_MAP_BYTES,
        limit_bytes: int = Limits().max_store_bytes,
        sync: bool = True,
        grace_seconds: float = Limits().expiry_grace_seconds,
        migrate: bool = False,
        clock: SystemTime | None = None,
        lsns_from_clock: bool = False,
    ) -> None:
        for name, value, smallest in (
            ("limit_bytes", limit_bytes, MIN_LIMIT_BYTES),
            ("map_bytes_initial", map_bytes_initial, 1),
        ):
            if type(value) is not int or value < smallest:
                raise InvalidConfigError(f"{name} must be an integer >= {smallest}", got=repr(value))
        folder = os.path.abspath(os.fspath(path))
        limit = limit_bytes - limit_bytes % datafile.PAGE_MULTIPLE
        append_cap = limit - _reserve(limit)
        prepare_folder(folder)
        source = SystemTime() if clock is None else clock
        environment = Environment(
            folder,
            map_bytes_initial=min(round_up_map_size(max(map_bytes_initial, 256 << 10)), append_cap),
            map_bytes_cap=append_cap,
            sync=sync,
            created_us=check_now(source.wall()),
            migrate=migrate,
            sync_point=self._sync_point,
        )
        store_clock = StoreClock(environment.stored_clock, grace_seconds=grace_seconds, source=source)
        super().__init__(environment, store_clock)
        with environment.read() as view:
            has_grace_outputs = view.any_expired_in_gap(store_clock.expiry_cutoff())
        self._report_gap(has_grace_outputs)
        self._clock_stored_at = store_clock.now()
        self._opened_txn = environment.snapshot.counters.txn
        committer = Committer(
            environment,
            append_cap,
            self._scans.record_deletions,
            store_clock,
            lsns_from_clock=lsns_from_clock,
        )
        self._thread = thread = StoreThread(environment, committer, free_cap=limit)
        # also runs at interpreter exit, while the (daemon) thread still does
        self._finalizer = weakref.finalize(self, _shut_down, environment.pid, thread)
        try:
            if environment.schema < SCHEMA_VERSION:
                self._upgrade()
            self._undo_unfinished()
            self._finish_deletions()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _sync_point(_name: str) -> None:
        """See :mod:`suffixsvc.runtime.sync_points`."""

    def _report_gap(self, has_grace_outputs: bool) -> None:
        """Log movements of the wall clock while the folder was closed that affect expiry.

        Args:
            has_grace_outputs: whether outputs are retained only because of the grace period.
        """
        moved = self.clock.moved_seconds
        if moved < -_BEHIND_SECONDS:
            log.warning(
                "the wall clock was set back while the folder was closed",
                folder=self._log.path,
                seconds=-moved,
            )
        elif has_grace_outputs:
            log.warning(
                "outputs that expired while the folder was closed are retained for a grace period",
                folder=self._log.path,
                closed_seconds=round(moved, 3),
                grace_seconds=round(self.clock.grace_seconds, 3),
            )

    def _upgrade(self) -> None:
        """Upgrade the folder to the current schema, which earlier releases refuse to open.

        They would delete rows and leave their tombstones, or the entries of their uuids.
        """
        environment, before = self._log, self._log.schema
        try:
            self._call(environment.upgrade, frees=True)
        except StoreFullError as error:  # served in the old schema
            log.warning("no room for the new schema", folder=environment.path, error=str(error))
            discard_backup(os.path.dirname(environment.path), before)
            return
        environment.reload()
        log.info("data folder upgraded", folder=environment.path, schema=environment.schema)

    def _undo_unfinished(self) -> None:
        """Delete the rows of appends of several transactions that a crash interrupted.

        The folder opens even if that fails for now: space can only be freed in an open store.
        """
        with self._log.read() as view:
            found = view.unfinished()
        for ranges in found:
            left = [lsn for first, last in ranges for lsn in range(first, last + 1)]
            log.info("unfinished append found", folder=self._log.path, outputs=len(left))
            self._thread.undo_append(Undo(left))

    def _finish_deletions(self) -> None:
        """Continue deletions of namespaces that a crash or a full disk interrupted."""
        for row in list(self._log.snapshot.names.deleting.values()):
            try:
                outputs = self._delete_rest(row.namespace_id)
            except StoreFullError as error:  # the remaining rows are not visible
                log.warning("no room to finish a deletion", namespace=row.path, error=str(error))
            else:
                log.info("deletion finished", namespace=row.path, outputs=outputs)

    def _submit(self, operation: Operation[T]) -> Future[T]:
        return self._thread.submit(operation)

    def _require_may_wait(self) -> None:
        self._thread.require_other_thread()

    def set_access_controlled(self, value: bool) -> None:
        """Record whether a server with access control has served the log, durably; changes are logged."""
        if value != self.access_controlled:
            super().set_access_controlled(value)
            event = "data folder marked as served with access control" if value else "data folder unmarked"
            log.info(event, folder=self._log.path)

    def set_deletion_listener(self, listener: Callable[[Sequence[StoredOutput]], None]) -> None:
        """Call ``listener`` on the store's thread after every commit that deleted outputs, with these."""
        self._thread.listener = listener

    def set_commit_listener(self, listener: Callable[[OutputId], None]) -> None:
        """Call ``listener`` on the store's thread with the last LSN after every commit."""
        self._thread.commit_listener = listener

    def barrier(self) -> None:
        """Wait until the deletion listener has received the deletions of earlier commits."""
        self._thread.call_between_transactions(lambda: None)

    def expire(self, now: float | None = None) -> list[StoredOutput]:
        """Delete outputs whose TTL has passed; write the clock record from time to time."""
        self._store_clock(_CLOCK_PERIOD_SECONDS)
        return super().expire(now)

    def scrub(self) -> None:
        """Overwrite what ``data.mdb`` holds of deleted rows: free pages, gaps in pages, its end."""
        self._require_may_wait()
        self._thread.scrub()

    @property
    def schema(self) -> int:
        """Schema of the folder; an older one than the current if there was no room to migrate it."""
        return self._log.schema

    @property
    def opened_schema(self) -> int:
        """Schema that the folder had when it was opened, before it was migrated."""
        return self._log.opened_schema

    @property
    def segment_folder(self) -> Path:
        """The folder of segment files; it need not exist."""
        return Path(self._log.path).with_name(SEGMENTS)

    def failure(self) -> StoreError | None:
        """Return why appends fail at this moment, or None."""
        try:
            self._log.require_usable()
        except StoreClosedError as error:
            return error
        return self._thread.failure()

    def stats(self) -> StoreStats:
        """Counts and sizes of the store, and counts of recoveries."""
        thread = self._thread
        return replace(
            super().stats(), reopened=thread.reopened, defects=thread.defects, queued=thread.queued
        )

    def begin_copy(self, target: NewDataFile) -> LogCopy:
        """Begin a copy of the log in a new file, while it is written to. Errors as :class:`LogCopy`."""
        return LogCopy(self._log, target)

    def check(self) -> None:
        """Verify every page, then every record; StoreCorruptError. Writes wait for the first part."""
        view, finish = self._thread.call_between_transactions(self._log.begin_verified_read)
        try:
            check_view(view)
        finally:
            finish()

    def close(self) -> None:
        """Finish queued writes, close the environment and release the lock. Idempotent."""
        if self._log.pid == os.getpid():
            # a file that was only read is left unchanged
            if self._log.snapshot.counters.txn != self._opened_txn:
                self._store_clock(0.0)
            self._thread.close()
        self._finalizer.detach()

    def _store_clock(self, seconds: float) -> None:
        """Commit, and so write the clock record, unless that was done within ``seconds``."""
        now = self.clock.now()
        if abs(now - self._clock_stored_at) < seconds:
            return
        self._clock_stored_at = now
        try:
            self._call(WriteView.touch, frees=True)
        except StoreClosedError:
            return
        except StoreError as error:  # the next open sees a longer gap, and grants its grace period
            log.warning("clock record not written", folder=self._log.path, error=str(error))


def _reserve(limit: int) -> int:
    """Return the bytes that only deletions may use."""
    return round_up_map_size(min(max(limit // 32, 256 << 10), 4 << 20))


def _shut_down(pid: int, thread: StoreThread) -> None:
    """Close a store that its owner did not close: at interpreter exit, or when it is collected."""
    if pid != os.getpid():
        return
    if thread.is_current_thread():  # collected in a callback: the thread cannot wait for itself
        thread.request_close()
    else:
        thread.close()
