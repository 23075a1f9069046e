"""Records of the manifest: segments and tombstones. The contract is ``docs/format.md``."""

from __future__ import annotations

import struct

from suffixsvc.store.records.framing import (
    CHECKSUM,
    RECORD_VERSION,
    append_checksum,
    corrupt,
    decode_text,
    open_record,
    require_length,
    require_no_flags,
    require_same,
)
from suffixsvc.store.records.output_records import namespace_row_key
from suffixsvc.types import OutputId, SegmentRecord

__all__ = ["decode_segment", "decode_tombstone", "encode_segment", "encode_tombstone"]

_SEGMENT = struct.Struct("<4sHHIHHQQQQQ")
_TOMBSTONE = struct.Struct("<4sHHIIQ")


def encode_segment(namespace_id: int, r: SegmentRecord) -> bytes:
    """Encode a segment record; its key is ``namespace_row_key(namespace_id, r.first_lsn)``."""
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
    return append_checksum(head + name)


def decode_segment(raw: bytes, key: bytes) -> tuple[int, SegmentRecord]:
    """Decode a segment record to (namespace number, record); StoreCorruptError."""
    where = f"segment record {key.hex()}"
    flags, namespace_id, name_len, zero, *numbers = open_record(raw, _SEGMENT, b"SXSG", where)
    first, last, outputs, tokens, file_bytes = numbers
    require_length(raw, _SEGMENT.size + name_len + CHECKSUM.size, where)
    require_no_flags(where, flags | zero)
    require_same(where, "range", key, namespace_row_key(namespace_id, first))
    name = decode_text(raw[_SEGMENT.size : _SEGMENT.size + name_len], where, "name")
    if not first <= last or not name or "/" in name or "\0" in name:
        raise corrupt(
            where, "range must have first <= last, name must be a file name", got=(first, last, name)
        )
    return namespace_id, SegmentRecord(name, first, last, outputs, tokens, file_bytes)


def encode_tombstone(namespace_id: int, output_id: OutputId, tokens: int) -> bytes:
    """Encode a tombstone; its key is ``namespace_row_key(namespace_id, output_id)``."""
    return append_checksum(_TOMBSTONE.pack(b"SXTS", RECORD_VERSION, 0, namespace_id, tokens, output_id))


def decode_tombstone(raw: bytes, key: bytes) -> tuple[OutputId, int]:
    """Decode a tombstone to (id, token count) of the deleted output; StoreCorruptError."""
    where = f"tombstone {key.hex()}"
    flags, namespace_id, tokens, output_id = open_record(raw, _TOMBSTONE, b"SXTS", where)
    require_length(raw, _TOMBSTONE.size + CHECKSUM.size, where)
    require_no_flags(where, flags)
    require_same(where, "output", key, namespace_row_key(namespace_id, output_id))
    return output_id, tokens
