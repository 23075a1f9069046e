"""Framing of the store's values: magic, version and checksum. The contract is ``docs/format.md``.

Every value starts with a four-byte magic and a version and ends with the xxh3-64 of all bytes before it:

    +-------+---------+----------------- ... ----+----------+
    | magic | version | fields, variable parts   | checksum |
    |  4    |  u16    |                          |  u64     |
    +-------+---------+----------------- ... ----+----------+

Violations raise a :class:`StoreCorruptError` that names the record (``where``) and the reason.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import xxhash

from suffixsvc.errors import StoreCorruptError
from suffixsvc.types import TokenArray

__all__ = [
    "CHECKSUM",
    "RECORD_VERSION",
    "append_checksum",
    "corrupt",
    "decode_text",
    "decode_tokens",
    "open_record",
    "require_length",
    "require_no_flags",
    "require_same",
]

#: version of a record's layout
RECORD_VERSION: Final = 1
CHECKSUM: Final = struct.Struct("<Q")
_PREFIX: Final = struct.Struct("<4sH")

_REMEDY: Final = "Restore the data folder from a backup."


def append_checksum(body: bytes) -> bytes:
    """Return the body followed by its checksum."""
    return body + CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def corrupt(where: str, what: str, expected: object = None, got: object = None) -> StoreCorruptError:
    """Return the error for a damaged record ``where``."""
    return StoreCorruptError(f"{where}: {what}", expected=expected, got=got, remedy=_REMEDY)


def open_record(
    raw: bytes, layout: struct.Struct, magic: bytes, where: str, record_version: int = RECORD_VERSION
) -> tuple[Any, ...]:
    """Verify magic, version and checksum of a record.

    Returns:
        The fields of its header after magic and version.

    Raises:
        StoreCorruptError: the record is too short, damaged or of another version.
    """
    smallest = layout.size + CHECKSUM.size
    if len(raw) < smallest:
        raise corrupt(where, "record is too short", f"at least {smallest} bytes", f"{len(raw)} bytes")
    found, version = _PREFIX.unpack_from(raw)
    if found != magic:
        raise corrupt(where, "wrong magic", magic, found)
    body = raw[: -CHECKSUM.size]
    (stored,) = CHECKSUM.unpack_from(raw, len(body))
    actual = xxhash.xxh3_64_intdigest(body)
    if stored != actual:
        raise corrupt(where, "checksum does not match", f"{stored:016x}", f"{actual:016x}")
    if version != record_version:
        raise corrupt(where, "unknown record version", record_version, version)
    return layout.unpack_from(raw)[2:]


def require_length(raw: bytes, expected: int, where: str) -> None:
    """Raise StoreCorruptError unless the record has ``expected`` bytes, checksum included."""
    if len(raw) != expected:
        raise corrupt(where, "record has a wrong length", f"{expected} bytes", f"{len(raw)} bytes")


def require_same(where: str, what: str, expected: object, got: object) -> None:
    """Raise StoreCorruptError unless a field equals its repetition in the record's key."""
    if expected != got:
        raise corrupt(where, f"{what} must be the one in its key", expected, got)


def require_no_flags(where: str, flags: object) -> None:
    """Raise StoreCorruptError unless all reserved bits are zero."""
    if flags != 0:
        raise corrupt(where, "reserved bits must be zero", 0, flags)


def decode_text(raw: bytes, where: str, what: str) -> str:
    """Decode UTF-8 with lone surrogates; StoreCorruptError."""
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as e:
        raise corrupt(where, f"{what} is not UTF-8") from e


def decode_tokens(raw: bytes, offset: int, count: int, where: str) -> TokenArray:
    """Decode ``count`` ids from byte ``offset``: int32[count], read-only. StoreCorruptError if negative."""
    ids: TokenArray = np.frombuffer(raw, dtype="<i4", count=count, offset=offset).astype(np.int32, copy=False)
    if count and int(ids.min()) < 0:
        raise corrupt(where, "negative token id", "ids in 0 .. 2**31 - 1", int(ids.min()))
    ids.flags.writeable = False
    return ids
