"""Framing of the store's values: magic, version, flags and checksum. The contract is ``docs/format.md``.

Every value starts with a magic, a version and flags, and ends with the xxh3-64 of all bytes before it:

    +-------+---------+-------+-------- ... ---------+----------+
    | magic | version | flags | fields, variable part | checksum |
    |  4    |  u16    |  u16  |                       |  u64     |
    +-------+---------+-------+-------- ... ---------+----------+

Integers in values are little endian. Violations raise a :class:`StoreCorruptError` that names the record
(``where``) and the reason.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import xxhash

from suffixsvc.errors import StoreCorruptError
from suffixsvc.types import TokenArray

_CHECKSUM: Final = struct.Struct("<Q")


#: of errors about damage of a data folder
DAMAGE_REMEDY: Final = (
    "`suffixsvc check --data FOLDER` lists what is damaged. Restore a backup (`suffixsvc restore`), or keep "
    "what can be read with `suffixsvc repair --data FOLDER`; until then the folder is left unchanged."
)


def corrupt(what: str, expected: object = None, got: object = None) -> StoreCorruptError:
    """Return the error for damage of a data folder."""
    return StoreCorruptError(what, expected=expected, got=got, remedy=DAMAGE_REMEDY)


def append_checksum(body: bytes) -> bytes:
    """Return the body followed by its checksum."""
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


class Layout:
    """Magic, version and fixed fields of one kind of record.

    Args:
        magic: its first four bytes.
        fields: format of the fixed fields, as for ``struct``.
        version: of this layout.
        flags: the flags that may be set.
    """

    def __init__(self, magic: bytes, fields: str, version: int = 1, flags: int = 0) -> None:
        self._magic = magic
        self._head = struct.Struct("<4sHH" + fields)
        self._version = version
        self._flags = flags
        self.record_bytes = self._head.size + _CHECKSUM.size  #: of a record without variable part

    def encode(self, *fields: Any, flags: int = 0, tail: bytes = b"") -> bytes:
        """Return a record; ``tail`` is its variable part."""
        return append_checksum(self._head.pack(self._magic, self._version, flags, *fields) + tail)

    def decode(self, raw: bytes, where: str) -> tuple[Any, ...]:
        """Verify magic, version, flags and checksum of a record; return (flags, fields..., variable part).

        Raises:
            StoreCorruptError: the record is too short, damaged or of another version.
        """
        _, version, flags, *fields = self.peek(raw, where)
        body = raw[: -_CHECKSUM.size]
        (stored,) = _CHECKSUM.unpack_from(raw, len(body))
        actual = xxhash.xxh3_64_intdigest(body)
        if stored != actual:
            raise corrupt(f"{where}: checksum does not match", f"{stored:016x}", f"{actual:016x}")
        if version != self._version:
            raise corrupt(f"{where}: unknown record version", self._version, version)
        require_no_flags(where, flags & ~self._flags)
        return (flags, *fields, body[self._head.size :])

    def decode_fixed(self, raw: bytes, where: str) -> tuple[Any, ...]:
        """Return the fields of a record without flags and variable part; StoreCorruptError."""
        _, *fields, tail = self.decode(raw, where)
        require_length(where, tail, 0)
        return tuple(fields)

    def peek(self, raw: bytes, where: str) -> tuple[Any, ...]:
        """Return (magic, version, flags, fields...); only length and magic are verified."""
        if len(raw) < self.record_bytes:
            raise corrupt(
                f"{where}: record is too short", f"at least {self.record_bytes} bytes", f"{len(raw)} bytes"
            )
        fields = self._head.unpack_from(raw)
        if fields[0] != self._magic:
            raise corrupt(f"{where}: wrong magic", self._magic, fields[0])
        return fields


def require_length(where: str, tail: bytes, expected: int) -> None:
    """Raise StoreCorruptError unless the variable part of a record has ``expected`` bytes."""
    if len(tail) != expected:
        raise corrupt(
            f"{where}: record has a wrong length", f"{expected} variable bytes", f"{len(tail)} bytes"
        )


def require_same(where: str, what: str, expected: object, got: object) -> None:
    """Raise StoreCorruptError unless a field equals its repetition in the record's key."""
    if expected != got:
        raise corrupt(f"{where}: {what} must be the one in its key", expected, got)


def require_no_flags(where: str, flags: int) -> None:
    """Raise StoreCorruptError unless all reserved bits are zero."""
    if flags:
        raise corrupt(f"{where}: reserved bits must be zero", 0, flags)


def encode_text(text: str) -> bytes:
    """Encode as UTF-8 with lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(raw: bytes, where: str, what: str) -> str:
    """Decode UTF-8 with lone surrogates; StoreCorruptError."""
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as e:
        raise corrupt(f"{where}: {what} is not UTF-8") from e


def decode_tokens(raw: bytes, offset: int, count: int, where: str) -> TokenArray:
    """Decode ``count`` ids from byte ``offset``: int32[count], read-only. StoreCorruptError if negative."""
    ids: TokenArray = np.frombuffer(raw, dtype="<i4", count=count, offset=offset).astype(np.int32, copy=False)
    if count and int(ids.min()) < 0:
        raise corrupt(f"{where}: negative token id", "ids in 0 .. 2**31 - 1", int(ids.min()))
    ids.flags.writeable = False
    return ids
