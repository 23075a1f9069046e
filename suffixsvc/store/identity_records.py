"""Keys and records of schema 3: which output is which, who wrote it. ``docs/format.md`` is their contract.

Integers in values are little endian, in keys big endian, as in ``records.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import xxhash

from suffixsvc.store.framing import (
    CHECKSUM,
    RECORD_VERSION,
    corrupt,
    open_record,
    require_length,
    require_no_flags,
    seal,
)
from suffixsvc.types import OutputId

__all__ = [
    "Range",
    "decode_lsn",
    "decode_node",
    "decode_pending",
    "drawn_uuid",
    "encode_lsn",
    "encode_node",
    "encode_pending",
    "incomplete_key",
    "lsn_of_drawn",
    "uuid_key",
]

#: first and last LSN, both included
Range = tuple[OutputId, OutputId]

_NODE = struct.Struct("<4sHHQ")
_PENDING = struct.Struct("<4sHHI")
_RANGE = struct.Struct("<QQ")
_UUID_KEY = struct.Struct(">I16s")
_DRAWN = struct.Struct(">QQ")
_LSN = struct.Struct(">Q")


def drawn_uuid(node_id: int, lsn: OutputId) -> bytes:
    """The id of an output whose writer chose none: it needs no index, and no two outputs have the same."""
    return _DRAWN.pack(node_id, lsn)


def lsn_of_drawn(uuid: bytes, node_id: int) -> OutputId | None:
    """The other way round; None for one that was chosen, or drawn elsewhere."""
    node, lsn = _DRAWN.unpack(uuid)
    return int(lsn) if node == node_id else None


def uuid_key(namespace_id: int, uuid: bytes) -> bytes:
    return _UUID_KEY.pack(namespace_id, uuid)


def encode_lsn(lsn: OutputId) -> bytes:
    """What a uuid leads to. The row repeats the uuid, so it needs no checksum."""
    return _LSN.pack(lsn)


def decode_lsn(raw: bytes, uuid: bytes) -> OutputId:
    if len(raw) != _LSN.size:
        raise corrupt(f"uuid {uuid.hex()}", "entry has a wrong length", f"{_LSN.size} bytes", len(raw))
    return int(_LSN.unpack(raw)[0])


def incomplete_key(session_id: str, lsn: OutputId) -> bytes:
    """All incomplete outputs of a session lie side by side; with LSN 0, where they begin."""
    return xxhash.xxh3_128_digest(session_id.encode("utf-8", "surrogatepass")) + _LSN.pack(lsn)


def encode_node(node_id: int) -> bytes:
    return seal(_NODE.pack(b"SXND", RECORD_VERSION, 0, node_id))


def decode_node(raw: bytes) -> int:
    where = "node record"
    flags, node_id = open_record(raw, _NODE, b"SXND", where)
    require_length(raw, _NODE.size + CHECKSUM.size, where)
    require_no_flags(where, flags)
    if not node_id:
        raise corrupt(where, "node id is zero", "1 .. 2**64 - 1", 0)
    return int(node_id)


def encode_pending(ranges: Sequence[Range]) -> bytes:
    """The rows that a split append has written so far."""
    head = _PENDING.pack(b"SXPD", RECORD_VERSION, 0, len(ranges))
    return seal(head + b"".join(_RANGE.pack(first, last) for first, last in ranges))


def decode_pending(raw: bytes, key: bytes) -> list[Range]:
    where = f"unfinished append {key.hex()}"
    flags, count = open_record(raw, _PENDING, b"SXPD", where)
    require_length(raw, _PENDING.size + count * _RANGE.size + CHECKSUM.size, where)
    require_no_flags(where, flags)
    ranges = list(_RANGE.iter_unpack(raw[_PENDING.size : -CHECKSUM.size]))
    if not all(0 < first <= last for first, last in ranges):
        raise corrupt(where, "a range ends before it begins", "first <= last", ranges[:3])
    return ranges
