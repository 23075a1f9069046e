"""The bytes of the manifest's records; ``docs/format.md`` is their contract. The others: ``records.py``."""

from __future__ import annotations

import struct

from suffixsvc.store.framing import (
    CHECKSUM,
    RECORD_VERSION,
    corrupt,
    decode_text,
    open_record,
    require_length,
    require_no_flags,
    require_same,
    seal,
)
from suffixsvc.store.records import namespace_row_key
from suffixsvc.types import OutputId, SegmentRecord

__all__ = ["decode_segment", "decode_tombstone", "encode_segment", "encode_tombstone"]

_SEGMENT = struct.Struct("<4sHHIHHQQQQQ")
_TOMBSTONE = struct.Struct("<4sHHIIQ")


def encode_segment(namespace_id: int, r: SegmentRecord) -> bytes:
    """Its key is ``namespace_row_key(namespace_id, r.first_lsn)``."""
    name = r.name.encode()
    head = _SEGMENT.pack(
        b"SXSG",
        RECORD_VERSION,
        0,
        namespace_id,
        len(name),
        0,
        r.first_lsn,
        r.last_lsn,
        r.outputs,
        r.tokens,
        r.file_bytes,
    )
    return seal(head + name)


def decode_segment(raw: bytes, key: bytes) -> tuple[int, SegmentRecord]:
    """(namespace number, record)."""
    where = f"segment record {key.hex()}"
    flags, namespace_id, name_len, zero, *numbers = open_record(raw, _SEGMENT, b"SXSG", where)
    first, last, outputs, tokens, file_bytes = numbers
    require_length(raw, _SEGMENT.size + name_len + CHECKSUM.size, where)
    require_no_flags(where, flags | zero)
    require_same(where, "range", key, namespace_row_key(namespace_id, first))
    name = decode_text(raw[_SEGMENT.size : _SEGMENT.size + name_len], where, "name")
    if not first <= last or not name or "/" in name or "\0" in name:
        raise corrupt(
            where, "range or name makes no sense", "first <= last, a file name", (first, last, name)
        )
    return namespace_id, SegmentRecord(name, first, last, outputs, tokens, file_bytes)


def encode_tombstone(namespace_id: int, output_id: OutputId, tokens: int) -> bytes:
    """Its key is ``namespace_row_key(namespace_id, output_id)``."""
    return seal(_TOMBSTONE.pack(b"SXTS", RECORD_VERSION, 0, namespace_id, tokens, output_id))


def decode_tombstone(raw: bytes, key: bytes) -> tuple[OutputId, int]:
    """(id, tokens of the output that was deleted)."""
    where = f"tombstone {key.hex()}"
    flags, namespace_id, tokens, output_id = open_record(raw, _TOMBSTONE, b"SXTS", where)
    require_length(raw, _TOMBSTONE.size + CHECKSUM.size, where)
    require_no_flags(where, flags)
    require_same(where, "output", key, namespace_row_key(namespace_id, output_id))
    return output_id, tokens
