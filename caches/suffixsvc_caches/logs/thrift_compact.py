"""A reader of Thrift's compact protocol, in which Parquet writes its footer and the headers of its pages.

pyarrow's own view of a footer cannot be used on files of others: some of its accessors end the process where
a footer is damaged. A structure becomes a dict, field number -> value, of the fields that the caller names;
all others are passed over without being kept, and texts among them without being read. The bytes read and the
values kept are bounded separately: an empty structure has one byte in a file and 72 in memory.

Source: Apache Thrift, the compact protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any, Final, TypeAlias

from suffixsvc_caches.logs.sources import Damaged

__all__ = ["VALUE", "CompactReader", "Fields"]

#: which fields of a structure are kept: those of a structure, or of each in a list of structures; VALUE: the
#: number or text itself
Fields: TypeAlias = "Mapping[int, Fields]"

VALUE: Final[Fields] = {}

_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _MAP, _STRUCT = 0, 1, 2, 3, 7, 8, 11, 12
_INTEGERS: Final = (4, 5, 6)
_LISTS: Final = (9, 10)
_DEEPEST: Final = 16
_DOUBLE_BYTES: Final = 8
#: element counts below this are in the head of a list
_SHORT_LIST: Final = 15
_LONGEST_NUMBER_BITS: Final = 63
_MOST_FIELD: Final = (1 << 15) - 1


class CompactReader:
    """Reads structures from where the file is.

    Args:
        most_bytes: bytes that may be read; texts that are passed over do not count.
        most_values: structures, numbers and texts that may be kept.

    Attributes:
        consumed: bytes read or passed over so far.
    """

    def __init__(self, file: IO[bytes], *, most_bytes: int, most_values: int) -> None:
        self._file = file
        self._most_bytes = most_bytes
        self._most_values = most_values
        self._read = 0
        self._kept = 0
        self.consumed = 0

    def struct(self, fields: Fields, depth: int = 0) -> dict[int, Any]:
        """These fields of a structure, where it has them with a value of that kind.

        Raises:
            Damaged: it is no structure, or a limit is passed. OSError.
        """
        if depth > _DEEPEST:
            raise Damaged("its description nests too deeply")
        self._keep()
        found: dict[int, Any] = {}
        seen = number = 0  # a bit for each field: a set of them would grow with the file
        while (head := self._byte()) != _STOP:
            step = head >> 4
            number = number + step if step else self._signed()
            if not 0 < number <= _MOST_FIELD:
                raise Damaged("a field of its description has a number that no field has")
            if seen >> number & 1:  # readers differ in which of them counts
                raise Damaged("a field of its description stands twice")
            seen |= 1 << number
            kind = head & 15
            if number not in fields:
                self._pass(kind, depth, in_head=True)
            else:
                value = self._value(kind, fields[number], depth)
                if value is not None:
                    found[number] = value
        return found

    def _value(self, kind: int, fields: Fields, depth: int) -> Any:
        """The value of a field that is kept; None: it is of another kind, and was passed over."""
        if fields:
            if kind == _STRUCT:
                return self.struct(fields, depth + 1)
            if kind in _LISTS:
                count, inside = self._list_head()
                if inside == _STRUCT:
                    return [self.struct(fields, depth + 1) for _ in range(count)]
                self._pass_each(count, (inside,), depth + 1)
                return None
        elif kind in _INTEGERS:
            self._keep()
            return self._signed()
        elif kind == _BINARY:
            self._keep()
            size = self._unsigned()
            self._count(size)
            return self._file.read(size)
        self._pass(kind, depth, in_head=True)
        return None

    def _pass(self, kind: int, depth: int, *, in_head: bool = False) -> None:
        """Read over a value. ``in_head``: of a structure, where a boolean is in the head of its field."""
        if kind in (_TRUE, _FALSE, _BYTE):
            if kind == _BYTE or not in_head:
                self._byte()
        elif kind in _INTEGERS:
            self._signed()
        elif kind == _BINARY:
            size = self._unsigned()
            self.consumed += size
            self._file.seek(size, 1)
        elif kind == _DOUBLE:
            self._count(_DOUBLE_BYTES)  # a list of them has to end
            self._file.seek(_DOUBLE_BYTES, 1)
        elif depth >= _DEEPEST:
            raise Damaged("its description nests too deeply")
        elif kind == _STRUCT:
            while (head := self._byte()) != _STOP:
                if not head >> 4:
                    self._signed()
                self._pass(head & 15, depth + 1, in_head=True)
        elif kind in _LISTS:
            count, inside = self._list_head()
            self._pass_each(count, (inside,), depth + 1)
        elif kind == _MAP:
            count = self._unsigned()
            kinds = self._byte() if count else 0
            self._pass_each(count, (kinds >> 4, kinds & 15), depth + 1)
        else:
            raise Damaged(f"a field of its description is of the unknown type {kind}")

    def _pass_each(self, count: int, kinds: tuple[int, ...], depth: int) -> None:
        for _ in range(count):
            for kind in kinds:
                self._pass(kind, depth)

    def _list_head(self) -> tuple[int, int]:
        """(elements, their kind)."""
        head = self._byte()
        count = head >> 4
        return count if count < _SHORT_LIST else self._unsigned(), head & 15

    def _byte(self) -> int:
        self._count(1)
        byte = self._file.read(1)
        if not byte:
            raise Damaged("it ends in its description")
        return byte[0]

    def _count(self, size: int) -> None:
        self.consumed += size
        self._read += size
        if self._read > self._most_bytes:
            raise Damaged(f"a description in it has more than {self._most_bytes:,} bytes")

    def _keep(self) -> None:
        self._kept += 1
        if self._kept > self._most_values:
            raise Damaged(f"a description in it has more than {self._most_values:,} values")

    def _unsigned(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
            if shift > _LONGEST_NUMBER_BITS:
                raise Damaged("a number of its description has no end")

    def _signed(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)
