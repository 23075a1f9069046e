"""Reader of Parquet footers and page headers, which give the sizes of pages before they are decompressed.

    file         := "PAR1" (page header, compressed bytes)* footer  length of the footer u32  "PAR1"
    footer       := columns, (row group := column chunk*)*           Thrift, compact protocol
    column chunk := offset of its pages, bytes, cells
    page header  := type, bytes uncompressed, bytes compressed, values, encoding, ..

pyarrow allocates the size in a page's header, and a dictionary entry can be referenced by any number of
cells: 800 bytes of file can become gigabytes of text. A footer has only sums for a chunk, so the header of
each page is read, with one short read.

Source: Apache Parquet, parquet.thrift.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any, Final, NamedTuple

from suffixsvc_caches.logs.base.sources import DamagedFile
from suffixsvc_caches.logs.parquet.thrift_compact import VALUE, CompactReader, Fields

_END: Final = b"PAR1"
_TAIL_BYTES: Final = 8
_DICTIONARY: Final = 2
_REPEATED: Final = 2
_FIXED_LEN_BYTE_ARRAY: Final = 7
_DELTA_BYTE_ARRAY: Final = 7
#: fields DataPageHeader, DictionaryPageHeader and DataPageHeaderV2 of a page header -> their fields with the
#: number of values and the encoding
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
#: a header has some fifty bytes without the texts of its statistics, which are skipped
_MOST_HEADER_BYTES: Final = 4 << 10
_MOST_FOOTER_BYTES: Final = 64 << 20
#: a column chunk has six values; at this limit they take some 120 MB
_MOST_VALUES: Final = 1 << 20
#: total length of the paths of all columns, each of which repeats its parents' names
_MOST_PATH_LETTERS: Final = 16 << 20


class Column(NamedTuple):
    """A column of the file.

    Attributes:
        path: names from the root, joined by dots.
        nested: a row can have any number of its cells.
        width: bytes of a cell of fixed length, else 0.
    """

    path: str
    nested: bool
    width: int


class Chunk(NamedTuple):
    """A column chunk: a column of a row group.

    Attributes:
        column: the column.
        cells: number of cells.
        start: offset of its pages.
        packed: compressed bytes of its pages.
    """

    column: Column
    cells: int
    start: int
    packed: int


class Page(NamedTuple):
    """A page header.

    Attributes:
        bytes: decompressed size of the page.
        values: number of cells, or of dictionary entries.
        dictionary: the page is the dictionary of the chunk.
        shared: delta encoding: a cell can share a prefix with the cell before it.
    """

    bytes: int
    values: int
    dictionary: bool
    shared: bool


def read_footer(file: IO[bytes]) -> list[tuple[int, list[Chunk]]]:
    """Read the footer: (number of rows, column chunks) of each row group.

    Raises:
        DamagedFile: the footer is malformed. OSError: the file cannot be read.
    """
    size = file.seek(0, 2)
    file.seek(max(0, size - _TAIL_BYTES))
    tail = file.read(_TAIL_BYTES)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _END or length > size - _TAIL_BYTES:
        raise DamagedFile("the file does not end with a Parquet footer")
    file.seek(size - _TAIL_BYTES - length)
    most_bytes = min(length, _MOST_FOOTER_BYTES)
    footer = CompactReader(file, most_bytes=most_bytes, most_values=_MOST_VALUES).struct(_FOOTER_FIELDS)
    columns = _columns(_structs(footer, 2))
    groups = []
    for group in _structs(footer, 4):
        chunks = _structs(group, 1)
        if len(chunks) != len(columns):
            raise DamagedFile("the columns of a row group are not those of the file")
        groups.append((_number(group, 3), list(map(_chunk, chunks, columns))))
    return groups


def _columns(elements: list[dict[int, Any]]) -> list[Column]:
    """Columns of a schema, which is a tree in depth-first order."""
    columns: list[Column] = []
    letters = 0
    above: list[tuple[int, str, bool]] = []  # ancestors: remaining children, path, whether it repeats
    for element in elements[1:]:
        prefix, repeats = "", False
        if above:
            left, prefix, repeats = above.pop()
            if left > 1:
                above.append((left - 1, prefix, repeats))
        name = element.get(4)
        if not isinstance(name, bytes):
            raise DamagedFile("a column has no name")
        path = ".".join(filter(None, (prefix, name.decode("utf-8", "replace"))))
        letters += len(path)
        if letters > _MOST_PATH_LETTERS:
            raise DamagedFile(f"the paths of its columns have more than {_MOST_PATH_LETTERS:,} characters")
        repeats = repeats or element.get(3) == _REPEATED
        children = element.get(5, 0)
        if isinstance(children, int) and children > 0:
            above.append((children, path, repeats))
        else:
            width = _number(element, 2) if element.get(1) == _FIXED_LEN_BYTE_ARRAY else 0
            columns.append(Column(path, repeats, width))
    return columns


def _chunk(chunk: dict[int, Any], column: Column) -> Chunk:
    described = chunk.get(3)
    if not isinstance(described, dict):
        raise DamagedFile(f"column {column.path} has no metadata")
    start = _number(described, 9)
    dictionary = described.get(11)
    if isinstance(dictionary, int) and 0 < dictionary < start:
        start = dictionary
    return Chunk(column, _number(described, 5), start, _number(described, 7))


def read_pages(file: IO[bytes], chunk: Chunk) -> Iterator[Page]:
    """Yield the page headers of a column chunk.

    Raises:
        DamagedFile: a header is malformed. OSError: the file cannot be read.
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
        raise DamagedFile("a required list of the footer is missing")
    return found


def _number(of: dict[int, Any], field: int) -> int:
    found = of.get(field)
    if not isinstance(found, int) or not 0 <= found < 1 << 63:
        raise DamagedFile("a required number of the metadata is missing")
    return found
