"""A reader of Thrift's compact protocol, in which Parquet writes its footer and the headers of its pages.

pyarrow's own view of a footer cannot be used on files of others: some of its accessors end the process where
a footer is damaged. Structures are dicts here, field number -> value; nothing is trusted, and everything
ends.

Source: Apache Thrift, the compact protocol.
"""

from __future__ import annotations

from typing import IO, Any, Final

from suffixsvc_caches.logs.sources import Damaged

__all__ = ["CompactReader"]

_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _MAP, _STRUCT = 0, 1, 2, 3, 7, 8, 11, 12
_INTEGERS: Final = (4, 5, 6)
_LISTS: Final = (9, 10)
_DEEPEST: Final = 16
#: element counts below this are in the head of a list
_SHORT_LIST: Final = 15
_LONGEST_NUMBER_BITS: Final = 63


class CompactReader:
    """Reads values from where the file is.

    Args:
        most: bytes that may be read.
        texts: whether texts are kept; where not, they are passed over without being read.

    Attributes:
        consumed: bytes read so far.
    """

    def __init__(self, file: IO[bytes], most: int, *, texts: bool) -> None:
        self._file = file
        self._most = most
        self._texts = texts
        self.consumed = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """A structure. Damaged: it is none."""
        if depth > _DEEPEST:
            raise Damaged("its description nests too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != _STOP:
            step = head >> 4
            number = number + step if step else self._signed()
            if number in fields:  # readers differ in which of them counts
                raise Damaged("a field of its description stands twice")
            kind = head & 15
            # a boolean of a structure is in its head
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        if kind in _INTEGERS:
            return self._signed()
        if kind == _BINARY:
            return self._text(self._unsigned())
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind == _DOUBLE:
            return self._text(8)
        return self._container(kind, depth)

    def _container(self, kind: int, depth: int) -> Any:
        if depth >= _DEEPEST:
            raise Damaged("its description nests too deeply")
        if kind in _LISTS:
            head = self._byte()
            count = head >> 4
            count = count if count < _SHORT_LIST else self._unsigned()
            return [self._value(head & 15, depth + 1) for _ in range(count)]
        if kind == _MAP:
            count = self._unsigned()
            kinds = self._byte() if count else 0
            return [
                (self._value(kinds >> 4, depth + 1), self._value(kinds & 15, depth + 1)) for _ in range(count)
            ]
        raise Damaged(f"a field of its description is of the unknown type {kind}")

    def _byte(self) -> int:
        self._count(1)
        byte = self._file.read(1)
        if not byte:
            raise Damaged("it ends in its description")
        return byte[0]

    def _text(self, size: int) -> bytes:
        self._count(size)
        if not self._texts:
            self._file.seek(size, 1)
            return b""
        return self._file.read(size)

    def _count(self, size: int) -> None:
        self.consumed += size
        if self.consumed > self._most:
            raise Damaged(f"a description in it has more than {self._most:,} bytes")

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
