"""Keys and records of output identity, added by schema 3. The contract is ``docs/format.md``.

Integers in values are little endian, in keys big endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import xxhash

from suffixsvc.store.records.framing import (
    CHECKSUM,
    RECORD_VERSION,
    append_checksum,
    corrupt,
    open_record,
    require_length,
    require_no_flags,
)
from suffixsvc.types import OutputId

__all__ = [
    "Range",
    "decode_lsn",
    "decode_node",
    "decode_pending",
    "encode_lsn",
    "encode_node",
    "encode_pending",
    "generated_uuid",
    "incomplete_key",
    "lsn_of_generated",
    "uuid_key",
]

#: first and last LSN, both included
Range = tuple[OutputId, OutputId]

_NODE = struct.Struct("<4sHHQ")
_PENDING = struct.Struct("<4sHHI")
_RANGE = struct.Struct("<QQ")
_UUID_KEY = struct.Struct(">I16s")
_GENERATED = struct.Struct(">QQ")
_LSN = struct.Struct(">Q")


def generated_uuid(node_id: int, lsn: OutputId) -> bytes:
    """Return the uuid of an output whose writer chose none: unique, and found without an index."""
    return _GENERATED.pack(node_id, lsn)


def lsn_of_generated(uuid: bytes, node_id: int) -> OutputId | None:
    """Return the LSN in a generated uuid; None for one that was chosen, or generated on another node."""
    node, lsn = _GENERATED.unpack(uuid)
    return int(lsn) if node == node_id else None


def uuid_key(namespace_id: int, uuid: bytes) -> bytes:
    """Return the key of an entry of ``uuids``."""
    return _UUID_KEY.pack(namespace_id, uuid)


def encode_lsn(lsn: OutputId) -> bytes:
    """Encode the value of an entry of ``uuids``, without checksum: the row repeats the uuid."""
    return _LSN.pack(lsn)


def decode_lsn(raw: bytes, uuid: bytes) -> OutputId:
    """Decode the value of an entry of ``uuids``; StoreCorruptError."""
    if len(raw) != _LSN.size:
        raise corrupt(f"uuid {uuid.hex()}", "entry has a wrong length", f"{_LSN.size} bytes", len(raw))
    return int(_LSN.unpack(raw)[0])


def incomplete_key(session_id: str, lsn: OutputId) -> bytes:
    """Return the key of an entry of ``incomplete``: adjacent for a session; with LSN 0 the lower bound."""
    return xxhash.xxh3_128_digest(session_id.encode("utf-8", "surrogatepass")) + _LSN.pack(lsn)


def encode_node(node_id: int) -> bytes:
    """Encode the node record."""
    return append_checksum(_NODE.pack(b"SXND", RECORD_VERSION, 0, node_id))


def decode_node(raw: bytes) -> int:
    """Decode the node record; StoreCorruptError."""
    where = "node record"
    flags, node_id = open_record(raw, _NODE, b"SXND", where)
    require_length(raw, _NODE.size + CHECKSUM.size, where)
    require_no_flags(where, flags)
    if not node_id:
        raise corrupt(where, "node id must not be zero")
    return int(node_id)


def encode_pending(ranges: Sequence[Range]) -> bytes:
    """Encode the ranges of rows that an append of several transactions has written so far."""
    head = _PENDING.pack(b"SXPD", RECORD_VERSION, 0, len(ranges))
    return append_checksum(head + b"".join(_RANGE.pack(first, last) for first, last in ranges))


def decode_pending(raw: bytes, key: bytes) -> list[Range]:
    """Decode the ranges of an unfinished append; StoreCorruptError."""
    where = f"unfinished append {key.hex()}"
    flags, count = open_record(raw, _PENDING, b"SXPD", where)
    require_length(raw, _PENDING.size + count * _RANGE.size + CHECKSUM.size, where)
    require_no_flags(where, flags)
    ranges = list(_RANGE.iter_unpack(raw[_PENDING.size : -CHECKSUM.size]))
    if not all(0 < first <= last for first, last in ranges):
        raise corrupt(where, "ranges must have first <= last", got=ranges[:3])
    return ranges
