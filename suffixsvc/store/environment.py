"""The LMDB environment of a store: its databases, short read transactions, and growth of the map.

LMDB replaces the whole memory map when it grows, which invalidates every open transaction. So reads
are short, counted at a gate, and growth waits until none is under way:

    readers   ──┐  enter ... leave                 (any thread; never nested, never across a yield)
                ├── gate
    growth    ──┤  close, wait for the last reader, remap, open   (the writer thread only)
    reopening ──┘  the same, with a new LMDB environment

A commit that failed may be on the disk or not, and LMDB writes no more. Before a commit the meta page that it
will overwrite is read and kept in a journal; reopening puts it back, so that a commit that failed never
happened, verifies the file as an open does, while readers go on, and only then replaces the environment.
Where the process ends before that, the next open puts it back.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final

import lmdb
import structlog

from suffixsvc.errors import StoreClosedError, StoreCorruptError, StoreError, StoreForeignError
from suffixsvc.interrupts import AtomicCondition
from suffixsvc.store import datafile
from suffixsvc.store.clock_record import load_clock
from suffixsvc.store.folder import DATA_FILE, FULL_ERRNOS, FolderLock, disk_error
from suffixsvc.store.gate import Gate
from suffixsvc.store.identity_records import encode_node
from suffixsvc.store.meta_journal import MetaBefore, MetaJournal
from suffixsvc.store.records import (
    COUNTERS_KEY,
    NODE_KEY,
    OLDEST_SCHEMA,
    SCHEMA_KEY,
    SCHEMA_VERSION,
    Counters,
    decode_schema,
    encode_counters,
    encode_schema,
)
from suffixsvc.store.snapshot import Snapshot, load_snapshot

__all__ = [
    "COUNTERS_KEY",
    "SCHEMA_KEY",
    "Databases",
    "Environment",
    "full_or_store_error",
    "is_full",
    "new_node_id",
    "rounded_up",
]

log = structlog.get_logger(__name__)

#: simultaneous short reads; each takes a slot of LMDB's reader table
_MAX_READERS: Final = 1024
#: less than this free and an I/O error of a write means a full disk
_ROOM_BYTES: Final = 1 << 20
#: a file is verified page by page before it is opened again; a read waits no longer than this for it
_REOPEN_SECONDS: Final = 60.0

Hook = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Databases:
    """Handles of the named databases; docs/format.md says what their keys and values are."""

    meta: lmdb._Database
    namespaces: lmdb._Database
    log: lmdb._Database
    payloads: lmdb._Database
    refs: lmdb._Database
    by_namespace: lmdb._Database
    expiry: lmdb._Database
    state: lmdb._Database
    #: the manifest; None in a folder of schema 1 that had no room for the current schema
    segments: lmdb._Database | None = None
    tombstones: lmdb._Database | None = None
    #: of schema 3; None in an older folder that had no room for it
    uuids: lmdb._Database | None = None
    incomplete: lmdb._Database | None = None
    pending: lmdb._Database | None = None


_NAMES: Final = tuple(Databases.__dataclass_fields__)
#: schema that a database came with, where that was not the first
_ADDED: Final = {"segments": 2, "tombstones": 2, "uuids": 3, "incomplete": 3, "pending": 3}


class Environment:
    """An open data folder: lock, LMDB environment, databases. Closed once; never used after a fork.

    Write transactions and :meth:`resize` belong to one thread (the writer); :meth:`read` to any.
    """

    def __init__(
        self,
        folder: str,
        *,
        map_bytes_initial: int,
        map_bytes_cap: int,
        sync: bool,
        created_us: int,
        progress: Callable[[int, int], None] | None,
        hook: Hook | None,
    ) -> None:
        self.pid = os.getpid()
        self.path = os.path.join(folder, DATA_FILE)
        self._hook = hook
        self._gate = Gate()
        #: held while a commit and the snapshot that belongs to it change together
        self.commit_lock = threading.Lock()
        self._closed = False
        self._folder = folder
        self._sync = sync
        #: of a commit that failed: the meta page that it may have overwritten
        self._unsettled: MetaBefore | None = None
        #: :meth:`reopen` is about to follow a commit that failed
        self._reopen_due = False
        self._settling = AtomicCondition()
        self._opened: lmdb.Environment | None = None
        self._fd = -1
        with ExitStack() as held:  # given up where the open fails
            self._lock = FolderLock(folder)
            held.callback(self._lock.release)
            self._journal = MetaJournal(folder)
            held.callback(self._journal.close)
            self._roll_back()
            if not os.path.lexists(self.path):
                datafile.create(folder, map_bytes_initial, lambda env: _fill(env, created_us), hook)
            info = datafile.inspect(self.path)
            if progress:
                progress(0, info.used_bytes)
            datafile.verify_pages(self.path)
            if progress:
                progress(info.used_bytes, info.used_bytes)
            # only what is used: nothing of a file is changed before we know that it is ours
            self.map_bytes = rounded_up(info.used_bytes)
            held.callback(self._release)
            self._fd = datafile.open_to_read(self.path)
            self._opened = self._open()
            self.dbs = self._databases()
            datafile.require_whole(self.path, info)
            datafile.require_own_commits(self.path)
            with self._env.begin() as txn:
                self.snapshot = load_snapshot(txn, self.dbs)
                #: what was kept of the clock; None in a new folder
                self.clock_seen = load_clock(txn, self.dbs.meta, self.dbs.log)
            self._first_size(info, map_bytes_initial, map_bytes_cap)
            held.pop_all()

    def _roll_back(self) -> None:
        """What a process left of a commit that failed."""
        before = self._journal.pending
        if before is None:
            return
        if os.path.lexists(self.path) and datafile.roll_back(self.path, before):
            self._call_hook("rolled-back")
            log.warning("a commit that failed is taken back", folder=self.path, transaction=before.txn)
        self._journal.settle()

    @property
    def _env(self) -> lmdb.Environment:
        if self._opened is None:
            raise StoreError(
                f"{self.path} could not be opened again after an error",
                remedy="It is tried again by itself; see the log for the reason.",
            )
        return self._opened

    def _release(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _open(self) -> lmdb.Environment:
        try:
            return lmdb.open(
                self._folder,
                map_size=self.map_bytes,
                max_dbs=len(_NAMES) + 1,
                max_readers=_MAX_READERS,
                sync=self._sync,
                create=False,
                mode=0o600,
                lib_version=0,
            )
        except OSError as e:
            raise disk_error(e, self.path, "opening") from e
        except lmdb.Error as e:
            raise full_or_store_error(e, f"opening {self.path}") from e

    def _first_size(self, info: datafile.DataFileInfo, initial: int, cap: int) -> None:
        """The map as large as the file, or as wanted; a cap below what is used only stops growth."""
        if initial > info.file_bytes:
            try:
                datafile.extend(self.path, min(initial, cap))
            except OSError as e:
                if e.errno not in FULL_ERRNOS:
                    raise disk_error(e, self.path, "extending") from e
                # a full disk does not keep history from being read
        room = os.stat(self.path).st_size
        self.map_bytes = max(min(cap, room - room % datafile.PAGE_MULTIPLE), rounded_up(info.used_bytes))
        self._env.set_mapsize(self.map_bytes)

    def _databases(self) -> Databases:
        try:
            meta = self._env.open_db(b"meta", create=False)
        except lmdb.Error as e:
            raise _foreign(self.path, "no database named 'meta'") from e
        with self._env.begin() as txn:
            raw = txn.get(SCHEMA_KEY, db=meta)
        if raw is None:
            raise _foreign(self.path, "no schema record")
        try:
            schema, self.created_us = decode_schema(raw)
        except StoreCorruptError as e:
            if raw[:4] == b"SXHD":
                raise
            raise _foreign(self.path, "no schema record") from e
        if not OLDEST_SCHEMA <= schema <= SCHEMA_VERSION:
            raise StoreForeignError(
                f"{self.path} has another schema version",
                expected=f"{OLDEST_SCHEMA} .. {SCHEMA_VERSION}",
                got=schema,
                remedy="Open it with the release of suffixsvc that wrote it, or a newer one.",
            )
        handles = [meta]
        self.schema = schema
        names = [name for name in _NAMES if schema >= _ADDED.get(name, 1)]
        for name in names[1:]:
            try:
                handles.append(self._env.open_db(name.encode(), create=False))
            except lmdb.Error as e:
                raise StoreCorruptError(
                    f"{self.path}: database {name!r} is missing", remedy="Restore the folder from a backup."
                ) from e
        for name, handle in zip(names, handles, strict=True):
            flags = [flag for flag, is_set in handle.flags().items() if is_set]
            if flags:
                raise StoreCorruptError(
                    f"{self.path}: database {name!r} has flags it was not made with",
                    got=", ".join(flags),
                    remedy="Restore the folder from a backup.",
                )
        return Databases(*handles)

    def add_databases(self, txn: lmdb.Transaction[bytes]) -> bytes:
        """Make the databases that are missing in the writer's transaction; the new schema record, to be put.
        :meth:`reload` follows the commit."""
        for name in _ADDED:
            self._env.open_db(name.encode(), txn=txn)
        return encode_schema(SCHEMA_VERSION, self.created_us)

    def reload(self) -> None:
        """Take the databases from the file again. Nobody else uses this object yet."""
        self.dbs = self._databases()

    def require_usable(self) -> None:
        """StoreClosedError after close() and in a forked child."""
        if self.pid != os.getpid():
            raise StoreClosedError(
                "a store does not survive a fork",
                expected=f"process {self.pid}",
                got=f"process {os.getpid()}",
                remedy="Open the store after forking, in one process.",
            )
        if self._closed:
            raise StoreClosedError("the store is closed", remedy="Open it again.")

    @contextmanager
    def read(self) -> Iterator[tuple[lmdb.Transaction[bytes], Snapshot]]:
        """A short read transaction and what belongs to it. Do not nest it, and do not hand control to
        callers inside. A read that comes between a commit that failed and the opening that follows waits for
        that: LMDB begins no transaction of any kind meanwhile."""
        while True:
            self.require_usable()
            with self._gate.shared():
                self.require_usable()
                try:
                    with self.commit_lock:
                        txn, snapshot = self._env.begin(), self.snapshot
                except lmdb.PanicError as e:
                    panic = e
                except lmdb.Error as e:
                    raise full_or_store_error(e, "reading") from e
                else:
                    try:
                        with txn:
                            yield txn, snapshot
                    except lmdb.Error as e:
                        raise full_or_store_error(e, "reading") from e
                    return
            with self._settling:
                self._settling.wait_for(lambda: not self._reopen_due, timeout=_REOPEN_SECONDS)
                if self._unsettled is not None:
                    raise full_or_store_error(panic, "reading") from panic

    def begin_write(self) -> lmdb.Transaction[bytes]:
        """The writer thread's transaction."""
        return self._env.begin(write=True)

    def commit(self, txn: lmdb.Transaction[bytes]) -> None:
        """Commit it. After an error other than a full map :meth:`reopen` has to follow: until then it is open
        whether the commit is on the disk. Writer thread."""
        before = datafile.before_commit(self._fd, self.path, txn.id())
        self._journal.write(before)
        try:
            txn.commit()
        except lmdb.MapFullError:  # seen while the transaction was prepared: nothing was written
            self._journal.settle()
            raise
        except lmdb.Error:
            with self._settling:
                self._unsettled = before = replace(before, failed=True)
                self._reopen_due = True
            self._call_hook("commit-failed")
            self._journal.write(before)
            raise
        self._journal.settle()

    @property
    def unsettled(self) -> bool:
        """A commit failed, and :meth:`reopen` has not followed yet."""
        return self._unsettled is not None

    def reopen(self) -> None:
        """Take back a commit that failed, verify the file and open it again. Reads go on to the last moment.
        Writer thread, no transaction of its own open.

        Raises:
            StoreError: not now. Where that shows early, the environment that was there still serves reads,
            unless the meta page could not be written: LMDB begins no transaction after that.
        """
        try:
            self._reopen()
        finally:
            with self._settling:
                self._reopen_due = False
                self._settling.notify_all()
        self._call_hook("reopened")

    def _reopen(self) -> None:
        if self._unsettled is not None:
            datafile.roll_back(self.path, self._unsettled)
        self._call_hook("reopen-restored")
        info = datafile.inspect(self.path)
        datafile.require_whole(self.path, info)
        datafile.verify_pages(self.path)
        datafile.require_own_commits(self.path)
        with self._gate.exclusive():
            opened, self._opened = self._opened, None
            try:
                if opened is not None:
                    opened.close()
                self._opened = self._open()
                self.dbs = self._databases()
                with self._env.begin() as txn:
                    self._require_same(load_snapshot(txn, self.dbs))
            except BaseException as error:
                opened, self._opened = self._opened, None
                if opened is not None:
                    opened.close()
                if isinstance(error, lmdb.Error):
                    raise full_or_store_error(error, f"opening {self.path} again") from error
                raise
        self._journal.settle()
        self._unsettled = None

    def _require_same(self, found: Snapshot) -> None:
        """StoreCorruptError unless the file holds what was last acknowledged."""
        if found.counters != self.snapshot.counters:
            raise StoreCorruptError(
                f"{self.path} does not hold the last commit any more",
                expected=self.snapshot.counters,
                got=found.counters,
                remedy="Restart; restore the folder from a backup if outputs are missing.",
            )

    def begin_long_read(self) -> tuple[lmdb.Transaction[bytes], Callable[[], None]]:
        """A read transaction that another thread ends with the function returned (check() needs one
        view of everything). The map cannot grow while it is open. Called by the writer thread."""
        self._gate.enter()
        try:
            txn = self._env.begin()
        except BaseException:
            self._gate.leave()
            raise

        def finish() -> None:
            txn.abort()
            self._gate.leave()

        return txn, finish

    def resize(self, size: int) -> None:
        """Give the map this size. Writer thread, no transaction of its own open. OSError if the file
        cannot be made that long."""
        if size > self.map_bytes:
            datafile.extend(self.path, size)
            self._call_hook("grow-extended")
        with self._gate.exclusive():
            try:
                self._env.set_mapsize(size)
            except lmdb.Error:
                # LMDB has let the old map go: nothing may touch this environment any more
                opened, self._opened = self._opened, None
                if opened is not None:
                    opened.close()
                raise
        self.map_bytes = size
        self._call_hook("grown")

    def disk_bytes(self) -> int:
        """What the data file takes on disk."""
        return os.stat(self.path).st_blocks * 512

    def close(self) -> None:
        """Wait for reads, sync, close, unlock. Idempotent; in a forked child it does nothing."""
        if self._closed or self.pid != os.getpid():
            return
        with self._gate.exclusive():
            self._closed = True
            try:
                if self._opened is not None:
                    self._opened.sync(True)
            except lmdb.Error as e:
                raise full_or_store_error(e, "flushing at close") from e
            finally:
                self._release()
                self._journal.close()
                self._lock.release()

    def _call_hook(self, point: str) -> None:
        if self._hook:
            self._hook(point)


def is_full(error: lmdb.Error, folder: str) -> bool:
    """True for no room: in the map, on the disk, in the quota or in the process's file size limit."""
    if isinstance(error, lmdb.MapFullError | lmdb.DiskError) or error.code in FULL_ERRNOS:
        return True
    # LMDB reports a short write, which is how most disks run full, as a plain I/O error
    return error.code == errno.EIO and not _has_room(folder)


def full_or_store_error(error: lmdb.Error, doing: str) -> StoreError:
    """The typed error for one of LMDB's."""
    if isinstance(error, lmdb.DiskError) or error.code in FULL_ERRNOS:
        return disk_error(OSError(error.code, str(error)), "the store", doing)
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.InvalidError):
        return StoreCorruptError(
            f"LMDB found damage while {doing}", got=str(error), remedy="Restore the folder from a backup."
        )
    return StoreError(
        f"LMDB failed while {doing}",
        got=str(error),
        remedy="Nothing of it was kept. The store opens itself again when the disk answers; try again then.",
    )


def _has_room(folder: str) -> bool:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize >= _ROOM_BYTES


def _fill(env: lmdb.Environment, created_us: int) -> None:
    with env.begin(write=True) as txn:
        handles = {name: env.open_db(name.encode(), txn=txn) for name in _NAMES}
        txn.put(SCHEMA_KEY, encode_schema(SCHEMA_VERSION, created_us), db=handles["meta"])
        txn.put(COUNTERS_KEY, encode_counters(Counters(txn=txn.id())), db=handles["meta"])
        txn.put(NODE_KEY, encode_node(new_node_id()), db=handles["meta"])


def new_node_id() -> int:
    """64 random bits, not all zero."""
    return secrets.randbits(64) or 1


def _foreign(path: str, why: str) -> StoreForeignError:
    return StoreForeignError(
        f"{path} is an LMDB file of another program",
        got=why,
        remedy="Name another data folder, or move the file away; it is left as it is.",
    )


def rounded_up(size: int) -> int:
    """The next size a map may have."""
    return -(-size // datafile.PAGE_MULTIPLE) * datafile.PAGE_MULTIPLE
