"""The LMDB environment of a store: opening, short read transactions, commits, growth of the map, reopening.

LMDB replaces the whole memory map when it grows, which invalidates every open transaction. Reads are
therefore short and hold a shared lock; growth takes it exclusively:

    readers   ──┐  shared    (any thread; never nested, never across a yield)
                ├── map lock
    growth    ──┤  exclusive: wait for the last reader, remap   (the store's thread only)
    reopening ──┘  exclusive: replace the LMDB environment

After a failed commit it is unknown whether the transaction is on the disk, and LMDB writes no more. The meta
page that a commit will overwrite is therefore read and journaled first (its before-image). Reopening restores
it, so that the failed commit never happened, verifies the file as an open does while readers continue, and
then replaces the environment. If the process ends before that, the next open restores the page.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final, cast

import lmdb
import structlog

from suffixsvc.errors import StoreClosedError, StoreCorruptError, StoreError
from suffixsvc.runtime.signal_guard import AtomicCondition
from suffixsvc.runtime.sync_points import SyncPoint
from suffixsvc.store.files import datafile
from suffixsvc.store.files.folder import DATA_FILE, FULL_ERRNOS, FolderLock, disk_error
from suffixsvc.store.files.meta_journal import MetaBeforeImage, MetaJournal
from suffixsvc.store.lmdb_log.databases import MAX_DATABASES, LmdbTables, create_missing, open_databases
from suffixsvc.store.lmdb_log.lmdb_errors import store_error_of
from suffixsvc.store.lmdb_log.migration import back_up
from suffixsvc.store.lmdb_log.read_write_lock import ReadWriteLock
from suffixsvc.store.records.table_records import SCHEMA_VERSION
from suffixsvc.store.transactions.read_view import ReadView
from suffixsvc.store.transactions.snapshot import Snapshot, load_snapshot
from suffixsvc.store.transactions.write_view import WriteView

log = structlog.get_logger(__name__)

#: simultaneous short reads; each takes a slot of LMDB's reader table
_MAX_READERS: Final = 1024
#: longest wait of a read for :meth:`Environment.reopen`, which verifies every page of the file
_REOPEN_SECONDS: Final = 60.0


class Environment:
    """An open data folder: lock, LMDB environment, databases. Closed once; unusable after a fork.

    Write transactions, :meth:`resize` and :meth:`reopen` belong to the store's thread; :meth:`read` to any.

    Args:
        folder: absolute path; it exists.
        map_bytes_initial: size of a new data file, and the least size of the map.
        map_bytes_cap: the first map is not made larger than this.
        sync: whether commits wait for the disk.
        created_us: creation time of a new file, in microseconds since the epoch.
        migrate: back up a folder of an older schema, which :meth:`upgrade` may then change; False refuses
            it, None: it is only read.
        sync_point: called at named points (:mod:`suffixsvc.runtime.sync_points`).

    Raises:
        StoreLockedError: the folder is open already.
        StoreForeignError: the data file or journal is another program's, or has another schema version.
        StoreCorruptError: the data file is truncated or damaged.
        StoreError: the folder cannot be read or written, or its backup cannot be.
    """

    def __init__(
        self,
        folder: str,
        *,
        map_bytes_initial: int,
        map_bytes_cap: int,
        sync: bool,
        created_us: int,
        migrate: bool | None,
        sync_point: SyncPoint,
    ) -> None:
        self.pid = os.getpid()
        self.path = os.path.join(folder, DATA_FILE)
        #: called at named points; replaced by tests
        self.sync_point = sync_point
        self._map_lock = ReadWriteLock()
        #: held while a commit and its snapshot change together
        self.commit_lock = threading.Lock()
        self._closed = False
        self._folder = folder
        self._sync = sync
        #: before-image of the meta page that a failed commit may have overwritten, until it is restored
        self.failed_commit: MetaBeforeImage | None = None
        #: :meth:`reopen` is about to follow a failed commit
        self._reopen_due = False
        self._reopen_done = AtomicCondition()
        self._opened: lmdb.Environment | None = None
        self._fd = -1
        with ExitStack() as held:  # released if the open fails
            self._lock = FolderLock(folder)
            held.callback(self._lock.release)
            self._journal = MetaJournal(folder)
            held.callback(self._journal.close)
            self._roll_back()
            if not os.path.lexists(self.path):
                datafile.create(folder, map_bytes_initial, lambda env: _fill(env, created_us), sync_point)
            info = datafile.inspect(self.path)
            datafile.verify_pages(self.path)
            # only the used part: the file is not changed before it is known to be a suffixsvc store
            self.map_bytes = round_up_map_size(info.used_bytes)
            held.callback(self._release)
            self._fd = datafile.open_to_read(self.path)
            self._opened = self._open()
            self.reload()
            #: before :meth:`upgrade`
            self.opened_schema = self.schema
            datafile.require_whole(self.path, info)
            datafile.require_own_commits(self.path)
            if self.schema < SCHEMA_VERSION and migrate is not None:
                back_up(folder, self.schema, migrate=migrate, sync_point=sync_point)
            with self._env.begin() as txn:
                #: the last commit
                self.snapshot = load_snapshot(self.tables(txn))
                #: the last reading of the clock; None in a new folder
                self.stored_clock = ReadView(self.tables(txn), self.snapshot).clock()
            self._set_initial_size(info, map_bytes_initial, map_bytes_cap)
            held.pop_all()

    def _roll_back(self) -> None:
        """Undo a failed commit of an earlier process, as its journal requires."""
        before = self._journal.pending
        if before is None:
            return
        if os.path.lexists(self.path) and datafile.roll_back(self.path, before):
            self.sync_point("rolled-back")
            log.warning("failed commit rolled back", folder=self.path, transaction=before.txn)
        self._journal.clear()

    @property
    def _env(self) -> lmdb.Environment:
        if self._opened is None:
            raise StoreError(
                f"{self.path} could not be opened again after an error",
                remedy="Reopening is retried automatically; see the log for the reason.",
            )
        return self._opened

    def _close_env(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _release(self) -> None:
        self._close_env()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _open(self) -> lmdb.Environment:
        datafile.allocate_lock_file(self._folder, _MAX_READERS)
        try:
            return lmdb.open(
                self._folder,
                map_size=self.map_bytes,
                max_dbs=MAX_DATABASES,
                max_readers=_MAX_READERS,
                sync=self._sync,
                create=False,
                mode=0o600,
                lib_version=0,
            )
        except OSError as e:
            raise disk_error(e, self.path, "opening") from e
        except lmdb.Error as e:
            raise store_error_of(e, f"opening {self.path}") from e

    def _set_initial_size(self, info: datafile.DataFileInfo, initial: int, cap: int) -> None:
        """Set the map to the file size or ``initial``; a cap below the used size only prevents growth."""
        if initial > info.file_bytes:
            try:
                datafile.extend(self.path, min(initial, cap))
            except OSError as e:
                if e.errno not in FULL_ERRNOS:
                    raise disk_error(e, self.path, "extending") from e
                # a full disk does not prevent reading
        room = os.stat(self.path).st_size
        self.map_bytes = max(
            min(cap, room - room % datafile.PAGE_MULTIPLE), round_up_map_size(info.used_bytes)
        )
        self._env.set_mapsize(self.map_bytes)

    def tables(self, txn: lmdb.Transaction[bytes]) -> LmdbTables:
        """Return the databases of a transaction."""
        return LmdbTables(txn, self.handles)

    def upgrade(self, view: WriteView) -> None:
        """Create missing databases in the write transaction; :meth:`reload` follows the commit."""
        create_missing(self._env, cast("LmdbTables", view.tables).lmdb_txn)
        view.put_schema(self._created_us)

    def reload(self) -> None:
        """Open the databases again after an upgrade, before the environment is shared with other threads."""
        self.handles, self.schema, self._created_us = open_databases(self._env, self.path)

    def require_usable(self) -> None:
        """Raise StoreClosedError after close() and in a forked child."""
        if self.pid != os.getpid():
            raise StoreClosedError(
                "a store must be used by the process that opened it",
                expected=f"process {self.pid}",
                got=f"process {os.getpid()}",
                remedy="Open the store after forking, in one process.",
            )
        if self._closed:
            raise StoreClosedError("the store is closed", remedy="Open it again.")

    @contextmanager
    def read(self) -> Iterator[ReadView]:
        """Open a short read transaction.

        Must not be nested, and must not yield to callers inside: growth of the map waits for it. A read that
        begins between a failed commit and :meth:`reopen` waits for the latter: LMDB refuses transactions
        until then.
        """
        while True:
            self.require_usable()
            with self._map_lock.shared():
                self.require_usable()
                try:
                    with self.commit_lock:
                        txn, snapshot = self._env.begin(), self.snapshot
                except lmdb.PanicError as e:
                    panic = e
                except lmdb.Error as e:
                    raise store_error_of(e, "reading") from e
                else:
                    try:
                        with txn:
                            yield ReadView(self.tables(txn), snapshot)
                    except lmdb.Error as e:
                        raise store_error_of(e, "reading") from e
                    return
            with self._reopen_done:
                self._reopen_done.wait_for(lambda: not self._reopen_due, timeout=_REOPEN_SECONDS)
                if self.failed_commit is not None:
                    raise store_error_of(panic, "reading") from panic

    def begin_write(self) -> lmdb.Transaction[bytes]:
        """Begin a write transaction. Store's thread."""
        return self._env.begin(write=True)

    def commit(self, txn: lmdb.Transaction[bytes]) -> None:
        """Commit a write transaction. Store's thread.

        After an error other than a full map :meth:`reopen` must follow: until then it is unknown whether the
        commit is on the disk.
        """
        before = datafile.read_before_image(self._fd, self.path, txn.id())
        self._journal.write(before)
        try:
            txn.commit()
        except lmdb.MapFullError:  # raised before anything is written
            self._journal.clear()
            raise
        except lmdb.Error:
            with self._reopen_done:
                self.failed_commit = before = replace(before, failed=True)
                self._reopen_due = True
            self.sync_point("commit-failed")
            self._journal.write(before)
            raise
        self._journal.clear()

    def reopen(self) -> None:
        """Roll back a failed commit, verify the file and replace the environment. Reads continue until then.

        Store's thread, without an open transaction.

        Raises:
            StoreError: it failed for now. If before the replacement, the old environment still serves reads,
            unless a meta page could not be written: LMDB begins no transaction after that.
        """
        try:
            self._reopen()
        finally:
            with self._reopen_done:
                self._reopen_due = False
                self._reopen_done.notify_all()
        self.sync_point("reopened")

    def _reopen(self) -> None:
        if self.failed_commit is not None:
            datafile.roll_back(self.path, self.failed_commit)
        self.sync_point("reopen-restored")
        datafile.verify(self.path)
        self._replace_env()
        self._journal.clear()
        self.failed_commit = None

    def _replace_env(self) -> None:
        """Close the LMDB environment and open the file again; reads wait. It has to hold the last commit.

        Raises:
            StoreError: there is no environment until a later call succeeds.
        """
        with self._map_lock.exclusive():
            try:
                self._close_env()
                self._opened = self._open()
                self.reload()
                with self._env.begin() as txn:
                    self._require_same(load_snapshot(self.tables(txn)))
            except BaseException as error:
                self._close_env()
                if isinstance(error, lmdb.Error):
                    raise store_error_of(error, f"opening {self.path} again") from error
                raise

    def renew(self) -> None:
        """Replace the LMDB environment, whose memory has copies of pages, deleted rows among them, which a
        later commit may write into the gaps of its pages. Afterwards no reader uses an older transaction than
        the last one. Store's thread, without an open transaction.

        Raises:
            StoreError: as after a failed commit, :meth:`reopen` must follow.
        """
        self._replace_env()
        self.sync_point("scrub-renewed")

    def _require_same(self, found: Snapshot) -> None:
        """Raise StoreCorruptError unless the file holds the last acknowledged commit."""
        if found.counters != self.snapshot.counters:
            raise StoreCorruptError(
                f"{self.path} must hold the last acknowledged commit",
                expected=self.snapshot.counters,
                got=found.counters,
                remedy="Restart; restore the folder from a backup if outputs are missing.",
            )

    def begin_verified_read(self) -> tuple[ReadView, Callable[[], None]]:
        """Verify the file, then begin a read, which another thread ends by calling the returned function.

        For check(), which needs one consistent view. The map cannot grow while it is open. Store's thread.
        """
        datafile.verify(self.path)
        with ExitStack() as held:
            held.enter_context(self._map_lock.shared())
            txn = self._env.begin()
            held.callback(txn.abort)
            return ReadView(self.tables(txn), self.snapshot), held.pop_all().close

    def resize(self, size: int) -> None:
        """Set the map to ``size`` bytes. Store's thread, without an open transaction.

        Raises:
            OSError: the file cannot be extended to that length.
        """
        if size > self.map_bytes:
            datafile.extend(self.path, size)
            self.sync_point("grow-extended")
        with self._map_lock.exclusive():
            try:
                self._env.set_mapsize(size)
            except lmdb.Error:
                # LMDB has unmapped the old map: this environment must not be used any more
                self._close_env()
                raise
        self.map_bytes = size
        self.sync_point("grown")

    def disk_bytes(self) -> int:
        """Return the bytes that the data file occupies on disk."""
        return os.stat(self.path).st_blocks * 512

    def close(self) -> None:
        """Wait for reads, sync, close, unlock. Idempotent; does nothing in a forked child."""
        if self._closed or self.pid != os.getpid():
            return
        with self._map_lock.exclusive():
            self._closed = True
            try:
                if self._opened is not None:
                    self._opened.sync(True)
            except lmdb.Error as e:
                raise store_error_of(e, "flushing at close") from e
            finally:
                self._release()
                self._journal.close()
                self._lock.release()


def round_up_map_size(size: int) -> int:
    """Round up to the next multiple that a map size may have."""
    return -(-size // datafile.PAGE_MULTIPLE) * datafile.PAGE_MULTIPLE


def _fill(env: lmdb.Environment, created_us: int) -> None:
    """Write the first transaction of a new data file."""
    with env.begin(write=True) as txn:
        view = WriteView(create_missing(env, txn), Snapshot())
        view.put_schema(created_us)
        view.finish()
