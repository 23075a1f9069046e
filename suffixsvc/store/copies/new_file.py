"""A data file that is written once, by one thread, before a store opens it.

Nothing is on the disk for certain before :meth:`NewDataFile.finish`: the caller builds it in a folder that
gets its name afterwards (``files/new_folder.py``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import lmdb

from suffixsvc.clock import ClockReading
from suffixsvc.runtime.atomic_file import sync_folder
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.store.files import datafile
from suffixsvc.store.files.folder import DATA_FILE, disk_error
from suffixsvc.store.lmdb_log.databases import MAX_DATABASES, LmdbTables, create_missing, open_databases
from suffixsvc.store.lmdb_log.environment import round_up_map_size
from suffixsvc.store.lmdb_log.lmdb_errors import store_error_of
from suffixsvc.store.records.table_records import Counters
from suffixsvc.store.transactions.read_view import ReadView
from suffixsvc.store.transactions.snapshot import Snapshot, load_snapshot
from suffixsvc.store.transactions.write_view import WriteView

T = TypeVar("T")

#: the map grows by a quarter, at least and at most by these: the file is as long as its map
_LEAST_GROWTH_BYTES: Final = 4 << 20
_MOST_GROWTH_BYTES: Final = 1 << 30


class NewDataFile(ClosedOnExit):
    """A data file without other readers and writers.

    Args:
        folder: an existing folder. Without a data file it gets one, with the databases of the current schema
            and no row; else that one is changed.
        created_us: creation time of a new file, in microseconds since the epoch.

    Raises:
        StoreError: the file cannot be written; what was written is incomplete.
    """

    def __init__(self, folder: Path, created_us: int = 0) -> None:
        self.path = folder / DATA_FILE
        is_new = not self.path.exists()
        size = _LEAST_GROWTH_BYTES if is_new else datafile.inspect(str(self.path)).map_bytes
        try:
            # lock: no other process knows the folder
            self._env = lmdb.open(
                str(folder),
                map_size=size,
                max_dbs=MAX_DATABASES,
                mode=0o600,
                sync=False,
                lock=False,
                lib_version=0,
            )
        except lmdb.Error as error:
            raise store_error_of(error, f"creating {self.path}") from error
        self._map_bytes = size
        try:
            if is_new:
                self._create(created_us)
            else:
                self._handles, *_ = open_databases(self._env, str(self.path))
            with self._env.begin() as txn:
                self._snapshot = load_snapshot(LmdbTables(txn, self._handles))
        except lmdb.Error as error:
            self.close()
            raise store_error_of(error, f"writing {self.path}") from error
        except BaseException:
            self.close()
            raise

    @property
    def counters(self) -> Counters:
        """Totals of the file."""
        return self._snapshot.counters

    def _create(self, created_us: int) -> None:
        with self._env.begin(write=True) as txn:
            tables = create_missing(self._env, txn)
            view = WriteView(tables, Snapshot())
            view.put_schema(created_us)
            view.finish()
            self._handles = tables.handles

    def write(self, apply: Callable[[WriteView], T], reading: ClockReading | None = None) -> T:
        """Run ``apply`` in a transaction; again where the map was too small for it.

        Args:
            reading: a reading of the clock that is stored with the transaction.
        """
        while True:
            txn = self._env.begin(write=True)
            try:
                view = WriteView(LmdbTables(txn, self._handles), self._snapshot)
                result = apply(view)
                view.touch()
                view.finish(reading)
                txn.commit()
            except lmdb.MapFullError:
                txn.abort()
                self._grow()
            except lmdb.Error as error:
                txn.abort()
                raise store_error_of(error, f"writing {self.path}") from error
            except BaseException:
                txn.abort()
                raise
            else:
                self._snapshot = view.snapshot()
                return result

    def read(self, use: Callable[[ReadView], T]) -> T:
        """Run ``use`` in a read transaction."""
        try:
            with self._env.begin() as txn:
                return use(ReadView(LmdbTables(txn, self._handles), self._snapshot))
        except lmdb.Error as error:
            raise store_error_of(error, f"reading {self.path}") from error

    def _grow(self) -> None:
        step = min(max(self._map_bytes // 4, _LEAST_GROWTH_BYTES), _MOST_GROWTH_BYTES)
        self._map_bytes = round_up_map_size(self._map_bytes + step)
        self._env.set_mapsize(self._map_bytes)

    def finish(self) -> None:
        """Make the file as a store leaves it, durably: as long as its map, with all blocks allocated."""
        self.close()
        try:
            datafile.extend(str(self.path), self._map_bytes)
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
            sync_folder(self.path.parent)
        except OSError as error:
            raise disk_error(error, str(self.path), "writing") from error
        datafile.verify(str(self.path))

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._env.close()
