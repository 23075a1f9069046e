"""Named LMDB databases of a data folder: creation, opening with a check of the schema, upgrade.

docs/format.md describes keys and values.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

import lmdb

from suffixsvc.errors import StoreCorruptError, StoreForeignError
from suffixsvc.store.records.identity_records import encode_node
from suffixsvc.store.records.output_records import (
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

__all__ = [
    "MAX_DATABASES",
    "Databases",
    "add_missing",
    "create_databases",
    "new_node_id",
    "open_databases",
]


@dataclass(frozen=True, slots=True)
class Databases:
    """Handles of the named databases. Those of a later schema are None in an older folder that was full when
    it should have been upgraded.
    """

    meta: lmdb._Database
    namespaces: lmdb._Database
    log: lmdb._Database
    payloads: lmdb._Database
    refs: lmdb._Database
    by_namespace: lmdb._Database
    expiry: lmdb._Database
    state: lmdb._Database
    #: the manifest, since schema 2
    segments: lmdb._Database | None = None
    tombstones: lmdb._Database | None = None
    #: output identity, since schema 3
    uuids: lmdb._Database | None = None
    incomplete: lmdb._Database | None = None
    pending: lmdb._Database | None = None


_NAMES: Final = tuple(Databases.__dataclass_fields__)
MAX_DATABASES: Final = len(_NAMES) + 1
#: schema that added a database, where that was not the first
_ADDED: Final = {"segments": 2, "tombstones": 2, "uuids": 3, "incomplete": 3, "pending": 3}


def create_databases(env: lmdb.Environment, created_us: int) -> None:
    """Create all databases of the current schema and the records of ``meta``, in one transaction."""
    with env.begin(write=True) as txn:
        handles = {name: env.open_db(name.encode(), txn=txn) for name in _NAMES}
        txn.put(SCHEMA_KEY, encode_schema(SCHEMA_VERSION, created_us), db=handles["meta"])
        txn.put(COUNTERS_KEY, encode_counters(Counters(txn=txn.id())), db=handles["meta"])
        txn.put(NODE_KEY, encode_node(new_node_id()), db=handles["meta"])


def open_databases(env: lmdb.Environment, path: str) -> tuple[Databases, int, int]:
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
        schema, created_us = decode_schema(raw)
    except StoreCorruptError as e:
        if raw[:4] == b"SXHD":
            raise
        raise _foreign(path, "no schema record") from e
    if not OLDEST_SCHEMA <= schema <= SCHEMA_VERSION:
        raise StoreForeignError(
            f"{path} has another schema version",
            expected=f"{OLDEST_SCHEMA} .. {SCHEMA_VERSION}",
            got=schema,
            remedy="Open it with the release of suffixsvc that wrote it, or a newer one.",
        )
    handles = [meta]
    names = [name for name in _NAMES if schema >= _ADDED.get(name, 1)]
    for name in names[1:]:
        try:
            handles.append(env.open_db(name.encode(), create=False))
        except lmdb.Error as e:
            raise StoreCorruptError(
                f"{path}: database {name!r} is missing", remedy="Restore the folder from a backup."
            ) from e
    for name, handle in zip(names, handles, strict=True):
        flags = [flag for flag, is_set in handle.flags().items() if is_set]
        if flags:
            raise StoreCorruptError(
                f"{path}: database {name!r} has unexpected flags",
                got=", ".join(flags),
                remedy="Restore the folder from a backup.",
            )
    return Databases(*handles), schema, created_us


def add_missing(env: lmdb.Environment, txn: lmdb.Transaction[bytes], created_us: int) -> bytes:
    """Create the databases that later schemas added; return the current schema record, to be put."""
    for name in _ADDED:
        env.open_db(name.encode(), txn=txn)
    return encode_schema(SCHEMA_VERSION, created_us)


def new_node_id() -> int:
    """Return 64 random bits, not all zero."""
    return secrets.randbits(64) or 1


def _foreign(path: str, why: str) -> StoreForeignError:
    return StoreForeignError(
        f"{path} is an LMDB file of another program",
        got=why,
        remedy="Name another data folder, or move the file away; it is left unchanged.",
    )
