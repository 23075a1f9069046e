"""Record of a state: a small derived blob of a namespace. The contract is ``docs/format.md``."""

from __future__ import annotations

import struct

from suffixsvc.store.records.framing import (
    CHECKSUM,
    RECORD_VERSION,
    append_checksum,
    open_record,
    require_length,
    require_no_flags,
    require_same,
)

__all__ = ["decode_state", "encode_state", "state_key"]

_STATE = struct.Struct("<4sHHIHHQ")
_NS_KEY = struct.Struct(">I")


def state_key(namespace_id: int, name: str) -> bytes:
    """Return the key of a state; with an empty name the prefix of a namespace."""
    return _NS_KEY.pack(namespace_id) + name.encode("utf-8", "surrogatepass")


def encode_state(namespace_id: int, name: str, value: bytes) -> bytes:
    """Encode a state record."""
    raw_name = name.encode("utf-8", "surrogatepass")
    head = _STATE.pack(b"SXST", RECORD_VERSION, 0, namespace_id, len(raw_name), 0, len(value))
    return append_checksum(head + raw_name + value)


def decode_state(raw: bytes, key: bytes) -> bytes:
    """Decode the value of a state record; StoreCorruptError."""
    where = f"state record {key.hex()}"
    flags, namespace_id, name_len, reserved, value_len = open_record(raw, _STATE, b"SXST", where)
    middle = _STATE.size + name_len
    require_length(raw, middle + value_len + CHECKSUM.size, where)
    require_no_flags(where, flags | reserved)
    require_same(where, "namespace or name", key, _NS_KEY.pack(namespace_id) + raw[_STATE.size : middle])
    return raw[middle : middle + value_len]
