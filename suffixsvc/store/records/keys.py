"""Keys of the store's databases. Integers are big endian, so that byte order is numeric order.

The contract is ``docs/format.md``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import xxhash

from suffixsvc.store.records.framing import encode_text

#: keys of the database "meta"
SCHEMA_KEY: Final = b"schema"
COUNTERS_KEY: Final = b"counters"
NODE_KEY: Final = b"node"
CLOCK_KEY: Final = b"clock"
HISTORY_KEY: Final = b"history"
ERASURE_KEY: Final = b"erasure"
#: the greatest LSN that a key can hold
LAST_LSN: Final = 2**64 - 1

_LSN = struct.Struct(">Q")
#: number of a namespace or a principal
_NUMBER = struct.Struct(">I")
_NAMESPACE_LSN = struct.Struct(">IQ")
_PAYLOAD = struct.Struct(">I16sI")
_UUID = struct.Struct(">I16s")
_GENERATED = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True, order=True)
class PayloadKey:
    """Key of a payload. ``slot`` distinguishes contents of one namespace with equal hashes."""

    namespace_id: int
    digest: bytes  #: 16 bytes, xxh3-128 of the content
    slot: int


def log_key(lsn: int) -> bytes:
    """Return the key of a log record, deletion or pending record, or the value of an entry of ``uuids``."""
    return _LSN.pack(lsn)


def lsn_of(key: bytes) -> int:
    """Return the LSN at the end of a key, or of a uuid that a store generated."""
    return int.from_bytes(key[-_LSN.size :], "big")


def namespace_row_key(namespace_id: int, lsn: int) -> bytes:
    """Return the key of an entry of ``by_namespace``, a segment or a tombstone."""
    return _NAMESPACE_LSN.pack(namespace_id, lsn)


def expiry_key(expires_us: int, lsn: int) -> bytes:
    """Return the key of an entry of ``expiry``."""
    return log_key(expires_us) + log_key(lsn)


def payload_key(key: PayloadKey) -> bytes:
    """Return the key of a payload or reference count."""
    return _PAYLOAD.pack(key.namespace_id, key.digest, key.slot)


def payload_key_of(raw: bytes) -> PayloadKey:
    """Return the fields of a key of 24 bytes."""
    return PayloadKey(*_PAYLOAD.unpack(raw))


def principal_key(number: int) -> bytes:
    """Return the key of a principal."""
    return _NUMBER.pack(number)


def state_key(namespace_id: int, name: str) -> bytes:
    """Return the key of a state; with an empty name the prefix of a namespace."""
    return _NUMBER.pack(namespace_id) + encode_text(name)


def uuid_key(namespace_id: int, uuid: bytes) -> bytes:
    """Return the key of an entry of ``uuids``."""
    return _UUID.pack(namespace_id, uuid)


def incomplete_key(session_id: str, lsn: int) -> bytes:
    """Return the key of an entry of ``incomplete``; those of a session are adjacent."""
    return xxhash.xxh3_128_digest(encode_text(session_id)) + log_key(lsn)


def generated_uuid(node_id: int, lsn: int) -> bytes:
    """Return the uuid of an output whose writer chose none: unique, and found without an index."""
    return _GENERATED.pack(node_id, lsn)


def lsn_of_generated(uuid: bytes, node_id: int) -> int | None:
    """Return the LSN in a generated uuid; None for one that was chosen, or generated on another node."""
    node, lsn = _GENERATED.unpack(uuid)
    return int(lsn) if node == node_id else None
