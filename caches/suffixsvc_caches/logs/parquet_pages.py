"""What a Parquet file says of its columns and pages, read before anything of them is decompressed.

    file         := "PAR1" (page header, compressed bytes)* footer  length of the footer u32  "PAR1"
    footer       := columns, (row group := column chunk*)*           Thrift, compact protocol
    column chunk := where its pages begin, bytes, cells
    page header  := type, bytes uncompressed, bytes compressed, values, encoding, ..

pyarrow allocates what a page's header says, and one entry of a dictionary may stand for any number of cells:
800 bytes of file can be gigabytes of text. A footer holds only sums over a chunk, so the headers of its pages
are read, one short read a page.

Source: Apache Parquet, parquet.thrift.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Final

from suffixsvc_caches.logs.sources import Damaged
from suffixsvc_caches.logs.thrift_compact import VALUE, CompactReader, Fields

__all__ = ["Chunk", "Page", "read_footer", "read_pages"]

_END: Final = b"PAR1"
_TAIL_BYTES: Final = 8
_DICTIONARY: Final = 2
_REPEATED: Final = 2
_FIXED_LEN_BYTE_ARRAY: Final = 7
_DELTA_BYTE_ARRAY: Final = 7
#: of a page header: DataPageHeader, DictionaryPageHeader, DataPageHeaderV2 -> their fields of values and
#: encoding
_HEADERS: Final = {5: (1, 2), 7: (1, 2), 8: (1, 4)}
_PAGE_FIELDS: Final[Fields] = {
    1: VALUE,
    2: VALUE,
    3: VALUE,
    **{field: dict.fromkeys(fields, VALUE) for field, fields in _HEADERS.items()},
}
_FOOTER_FIELDS: Final[Fields] = {
    2: dict.fromkeys((1, 2, 3, 4, 5), VALUE),  # the schema: type, width, repetition, name, children
    # row groups: columns with cells, bytes, start, dictionary; rows
    4: {1: {3: dict.fromkeys((5, 7, 9, 11), VALUE)}, 3: VALUE},
}
#: a header has some fifty bytes beside the texts of its statistics, which are passed over
_MOST_HEADER_BYTES: Final = 4 << 10
_MOST_FOOTER_BYTES: Final = 64 << 20
#: a column chunk has six, and all of them take some 120 MB
_MOST_VALUES: Final = 1 << 20
#: of the paths of all columns: each repeats the names above it
_MOST_PATH_LETTERS: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column of a row group.

    Attributes:
        path: names from the top, joined by dots.
        nested: a row has any number of its cells.
        width: bytes of a cell of fixed length, else 0.
        cells: how many.
        start: where its pages begin.
        packed: bytes of them in the file.
    """

    path: str
    nested: bool
    width: int
    cells: int
    start: int
    packed: int


@dataclass(frozen=True, slots=True)
class Page:
    """What a page's header says.

    Attributes:
        bytes: once decompressed.
        values: cells, or entries of a dictionary.
        dictionary: it is the dictionary of the chunk.
        shared: a cell may be longer than its own bytes in the page: it goes on from the one before.
    """

    bytes: int
    values: int
    dictionary: bool
    shared: bool


@dataclass(frozen=True, slots=True)
class _Leaf:
    path: str
    nested: bool
    width: int


def read_footer(file: IO[bytes]) -> list[tuple[int, list[Chunk]]]:
    """(rows, column chunks) of each row group.

    Raises:
        Damaged: no such footer. OSError.
    """
    size = file.seek(0, 2)
    file.seek(max(0, size - _TAIL_BYTES))
    tail = file.read(_TAIL_BYTES)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _END or length > size - _TAIL_BYTES:
        raise Damaged("it does not end like Parquet")
    file.seek(size - _TAIL_BYTES - length)
    most_bytes = min(length, _MOST_FOOTER_BYTES)
    footer = CompactReader(file, most_bytes=most_bytes, most_values=_MOST_VALUES).struct(_FOOTER_FIELDS)
    leaves = _leaves(_structs(footer, 2))
    groups = []
    for group in _structs(footer, 4):
        chunks = _structs(group, 1)
        if len(chunks) != len(leaves):
            raise Damaged("a row group has other columns than the file")
        pairs = zip(chunks, leaves, strict=True)
        groups.append((_number(group, 3), [_chunk(chunk, leaf) for chunk, leaf in pairs]))
    return groups


def _leaves(elements: list[dict[int, Any]]) -> list[_Leaf]:
    """The columns of a schema, which is a tree written from its root down."""
    leaves: list[_Leaf] = []
    letters = 0
    above: list[
        tuple[int, str, bool]
    ] = []  # of each node on the way: children to come, path, whether it repeats
    for element in elements[1:]:
        prefix, repeats = "", False
        if above:
            left, prefix, repeats = above.pop()
            if left > 1:
                above.append((left - 1, prefix, repeats))
        name = element.get(4)
        if not isinstance(name, bytes):
            raise Damaged("a column has no name")
        path = ".".join(filter(None, (prefix, name.decode("utf-8", "replace"))))
        letters += len(path)
        if letters > _MOST_PATH_LETTERS:
            raise Damaged(f"the paths of its columns have more than {_MOST_PATH_LETTERS:,} letters")
        repeats = repeats or element.get(3) == _REPEATED
        children = element.get(5, 0)
        if isinstance(children, int) and children > 0:
            above.append((children, path, repeats))
        else:
            width = _number(element, 2) if element.get(1) == _FIXED_LEN_BYTE_ARRAY else 0
            leaves.append(_Leaf(path, repeats, width))
    return leaves


def _chunk(chunk: dict[int, Any], leaf: _Leaf) -> Chunk:
    described = chunk.get(3)
    if not isinstance(described, dict):
        raise Damaged(f"column {leaf.path} is not described")
    start = _number(described, 9)
    dictionary = described.get(11)
    if isinstance(dictionary, int) and 0 < dictionary < start:
        start = dictionary
    return Chunk(leaf.path, leaf.nested, leaf.width, _number(described, 5), start, _number(described, 7))


def read_pages(file: IO[bytes], chunk: Chunk) -> Iterator[Page]:
    """The pages of a column chunk.

    Raises:
        Damaged: a header cannot be read. OSError.
    """
    at, end, cells = chunk.start, chunk.start + chunk.packed, chunk.cells
    while at < end and cells > 0:
        file.seek(at)
        reader = CompactReader(file, most_bytes=_MOST_HEADER_BYTES, most_values=_MOST_VALUES)
        header = reader.struct(_PAGE_FIELDS)
        page = _page(header)
        if not page.dictionary:
            cells -= page.values
        yield page
        at += reader.consumed + _number(header, 3)


def _page(header: dict[int, Any]) -> Page:
    values = encoding = 0
    for field, (of_values, of_encoding) in _HEADERS.items():
        inner = header.get(field)
        if isinstance(inner, dict):
            values, encoding = max(values, _number(inner, of_values)), inner.get(of_encoding, 0)
    return Page(_number(header, 2), values, header.get(1) == _DICTIONARY, encoding == _DELTA_BYTE_ARRAY)


def _structs(of: dict[int, Any], field: int) -> list[dict[int, Any]]:
    found = of.get(field)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise Damaged("its footer lacks what a footer has")
    return found


def _number(of: dict[int, Any], field: int) -> int:
    found = of.get(field)
    if not isinstance(found, int) or not 0 <= found < 1 << 63:
        raise Damaged("its description lacks a number that it has to have")
    return found
