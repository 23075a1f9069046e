"""Reader of Thrift's compact protocol, the encoding of Parquet footers and page headers.

pyarrow's metadata classes are unsafe on untrusted files: some accessors abort the process if the footer is
damaged. A struct becomes a dict, field number -> value, of the fields that the caller selects; others are
skipped without being stored, strings without being read. Bytes read and values stored are limited separately,
because an empty struct has one byte in a file and 72 in memory.

Source: Apache Thrift, the compact protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any, Final, TypeAlias

from suffixsvc_caches.logs.base.sources import DamagedFile

#: selected fields of a struct: for a struct or a list of structs their selected fields; for a number or a
#: string VALUE
Fields: TypeAlias = "Mapping[int, Fields]"

VALUE: Final[Fields] = {}

_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _MAP, _STRUCT = 0, 1, 2, 3, 7, 8, 11, 12
_INTEGERS: Final = (4, 5, 6)
_LISTS: Final = (9, 10)
_DEEPEST: Final = 16
_DOUBLE_BYTES: Final = 8
#: smaller element counts are in the header byte of a list
_SHORT_LIST: Final = 15
_LONGEST_NUMBER_BITS: Final = 63
_MOST_FIELD: Final = (1 << 15) - 1


class CompactReader:
    """Reads structs from the position of a file.

    Args:
        file: the file.
        most_bytes: limit of bytes read; skipped strings are not counted.
        most_values: limit of stored structs, numbers and strings.

    Attributes:
        consumed: bytes read or skipped so far.
    """

    def __init__(self, file: IO[bytes], *, most_bytes: int, most_values: int) -> None:
        self._file = file
        self._most_bytes = most_bytes
        self._most_values = most_values
        self._read = 0
        self._kept = 0
        self.consumed = 0

    def struct(self, fields: Fields, depth: int = 0) -> dict[int, Any]:
        """Read the selected fields of a struct; fields that are absent or of another type are omitted.

        Raises:
            DamagedFile: the struct is malformed, or exceeds a limit. OSError: the file cannot be read.
        """
        if depth > _DEEPEST:
            raise DamagedFile("the metadata nest too deeply")
        if fields:
            self._count_value()
        found: dict[int, Any] = {}
        seen = number = 0  # seen is a bit set, since a set would grow with the file
        while (head := self._byte()) != _STOP:
            step = head >> 4
            number = number + step if step else self._signed()
            if not 0 < number <= _MOST_FIELD:
                raise DamagedFile("a field number of the metadata is out of range")
            if seen >> number & 1:  # readers differ in which one counts
                raise DamagedFile("a field of the metadata is repeated")
            seen |= 1 << number
            kind = head & 15
            if kind not in (_TRUE, _FALSE):  # whose value is the kind
                value = self._value(kind, fields.get(number), depth)
                if value is not None:
                    found[number] = value
        return found

    def _value(self, kind: int, fields: Fields | None, depth: int) -> Any:
        """Read a value; None if it was skipped: not selected (``fields`` is None), or of another type."""
        if kind in (_TRUE, _FALSE, _BYTE):
            self._byte()
        elif kind in _INTEGERS:
            number = self._signed()
            if fields == VALUE:
                self._count_value()
                return number
        elif kind == _BINARY:
            size = self._unsigned()
            if fields == VALUE:
                self._count_value()
                self._count_bytes(size)
                return self._file.read(size)
            self.consumed += size
            self._file.seek(size, 1)
        elif kind == _DOUBLE:
            self._count_bytes(_DOUBLE_BYTES)  # counted, so that a list of them is limited
            self._file.seek(_DOUBLE_BYTES, 1)
        elif kind == _STRUCT:
            struct = self.struct(fields or {}, depth + 1)
            return struct if fields else None
        elif depth >= _DEEPEST:
            raise DamagedFile("the metadata nest too deeply")
        elif kind in _LISTS:
            head = self._byte()
            count, inside = head >> 4, head & 15
            count = count if count < _SHORT_LIST else self._unsigned()
            if fields and inside == _STRUCT:
                return [self.struct(fields, depth + 1) for _ in range(count)]
            self._skip_each(count, (inside,), depth + 1)
        elif kind == _MAP:
            count = self._unsigned()
            kinds = self._byte() if count else 0
            self._skip_each(count, (kinds >> 4, kinds & 15), depth + 1)
        else:
            raise DamagedFile(f"a field of the metadata has the unknown type {kind}")
        return None

    def _skip_each(self, count: int, kinds: tuple[int, ...], depth: int) -> None:
        for _ in range(count):
            for kind in kinds:
                self._value(kind, None, depth)

    def _byte(self) -> int:
        self._count_bytes(1)
        byte = self._file.read(1)
        if not byte:
            raise DamagedFile("the file ends inside the metadata")
        return byte[0]

    def _count_bytes(self, size: int) -> None:
        self.consumed += size
        self._read += size
        if self._read > self._most_bytes:
            raise DamagedFile(f"the metadata have more than {self._most_bytes:,} bytes")

    def _count_value(self) -> None:
        self._kept += 1
        if self._kept > self._most_values:
            raise DamagedFile(f"the metadata have more than {self._most_values:,} values")

    def _unsigned(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
            if shift > _LONGEST_NUMBER_BITS:
                raise DamagedFile("a number of the metadata is too long")

    def _signed(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)
