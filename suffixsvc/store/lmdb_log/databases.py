"""Named LMDB databases of a data folder: creation, opening with a check of the schema, transactions.

docs/format.md describes keys and values.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final

import lmdb

from suffixsvc.errors import StoreCorruptError, StoreForeignError, StoreFullError
from suffixsvc.store.files.folder import backup_folder
from suffixsvc.store.records.framing import corrupt
from suffixsvc.store.records.keys import SCHEMA_KEY
from suffixsvc.store.records.table_records import OLDEST_SCHEMA, SCHEMA_VERSION, decode_schema
from suffixsvc.store.transactions.tables import SCHEMAS, Database

MAX_DATABASES: Final = len(SCHEMAS) + 1

#: of the databases; those of a later schema are missing in an older folder that was full when it should have
#: been upgraded
Handles = Mapping[Database, "lmdb._Database"]


class LmdbTables:
    """The databases of one LMDB transaction. StoreFullError: a write to a database that the folder lacks."""

    def __init__(self, txn: lmdb.Transaction[bytes], handles: Handles) -> None:
        self.lmdb_txn = txn
        self.handles = handles

    @property
    def txn(self) -> int:
        """LMDB's number of the transaction."""
        return self.lmdb_txn.id()

    def has(self, database: Database) -> bool:
        """Whether the folder has a database."""
        return database in self.handles

    def get(self, database: Database, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        handle = self.handles.get(database)
        return None if handle is None else self.lmdb_txn.get(key, db=handle)

    def keys(self, database: Database, first: bytes = b"", last: bytes | None = None) -> Iterator[bytes]:
        """Iterate over the keys in ``first`` .. ``last``, in order."""
        return (key for key, _ in self._positions(database, first, last))

    def rows(
        self, database: Database, first: bytes = b"", last: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over keys and values in the same range."""
        return ((key, cursor.value()) for key, cursor in self._positions(database, first, last))

    def _positions(
        self, database: Database, first: bytes, last: bytes | None
    ) -> Iterator[tuple[bytes, lmdb.Cursor[bytes]]]:
        handle = self.handles.get(database)
        if handle is None:
            return
        with self.lmdb_txn.cursor(db=handle) as cursor:
            if cursor.set_range(first):
                for key in cursor.iternext(values=False):
                    if last is not None and key > last:
                        return
                    yield key, cursor

    def entries(self, database: Database) -> int:
        """Return the number of rows."""
        handle = self.handles.get(database)
        return 0 if handle is None else self.lmdb_txn.stat(db=handle)["entries"]

    def put(self, database: Database, key: bytes, value: bytes) -> None:
        """Write one row."""
        handle = self.handles.get(database)
        if handle is None:
            raise StoreFullError(
                f"the data folder must have the database {database!r}",
                expected="room for it when the folder was opened",
                remedy="Free disk space or raise Limits.max_store_bytes (serve --max-store-gib), and open it "
                "again.",
            )
        self.lmdb_txn.put(key, value, db=handle)

    def drop(self, database: Database, key: bytes) -> None:
        """Delete one row, if it exists."""
        handle = self.handles.get(database)
        if handle is not None:
            self.lmdb_txn.delete(key, db=handle)


def create_missing(env: lmdb.Environment, txn: lmdb.Transaction[bytes]) -> LmdbTables:
    """Create the missing databases of the current schema, in a write transaction; return all."""
    return LmdbTables(txn, {name: env.open_db(name.encode(), txn=txn) for name in SCHEMAS})


def open_databases(env: lmdb.Environment, path: str) -> tuple[Handles, int, int]:
    """Open the databases of a data file.

    Returns:
        (handles, schema version, creation time in microseconds since the epoch).

    Raises:
        StoreForeignError: the file was written by another program, or has an unsupported schema version.
        StoreCorruptError: the schema record is damaged, or a database is missing or has unexpected flags.
    """
    try:
        meta = env.open_db(b"meta", create=False)
    except lmdb.Error as e:
        raise _foreign(path, "no database named 'meta'") from e
    with env.begin() as txn:
        raw = txn.get(SCHEMA_KEY, db=meta)
    if raw is None:
        raise _foreign(path, "no schema record")
    try:
        schema, created_us, _ = decode_schema(raw)
    except StoreCorruptError as e:
        if raw[:4] == b"SXHD":
            raise
        raise _foreign(path, "no schema record") from e
    if not OLDEST_SCHEMA <= schema <= SCHEMA_VERSION:
        backup = backup_folder(os.path.dirname(path), "N")
        raise StoreForeignError(
            f"{path} must have a schema version of this release or an earlier one",
            expected=f"{OLDEST_SCHEMA} .. {SCHEMA_VERSION}",
            got=f"{schema}, of a newer release",
            remedy="Open it with the newer release, or restore a backup: the migration from schema N wrote "
            f"{backup}. The file is left unchanged.",
        )
    handles: dict[Database, lmdb._Database] = {}
    for name, added in SCHEMAS.items():
        if added > schema:
            continue
        try:
            handles[name] = env.open_db(name.encode(), create=False)
        except lmdb.Error as e:
            raise corrupt(f"{path}: database {name!r} is missing") from e
        flags = [flag for flag, is_set in handles[name].flags().items() if is_set]
        if flags:
            raise corrupt(f"{path}: database {name!r} has unexpected flags", got=", ".join(flags))
    return handles, schema, created_us


def _foreign(path: str, why: str) -> StoreForeignError:
    return StoreForeignError(
        f"{path} is an LMDB file of another program",
        got=why,
        remedy="Name another data folder, or move the file away; it is left unchanged.",
    )
