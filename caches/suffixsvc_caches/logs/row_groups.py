"""Row groups of Parquet files: whether one can be read within the limits, and how many of its rows at a time.

Worked out from the headers of its pages before any of them is decompressed. Columns that are no lists are
read a few rows at a time, so what counts is the densest page, or the dictionary, which every cell may be. A
column of lists is read a few rows at a time as well, but one row may be all of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import IO, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs.parquet_pages import Chunk, Page, read_pages

__all__ = ["BATCH_BYTES", "RowGroup"]

#: what the cells of a batch may take, as far as the pages tell
BATCH_BYTES: Final = 1 << 26
#: of a cell beside its text: its place in arrays, its levels
_CELL_BYTES: Final = 16
#: A column of lists is read whole pages at a time, many of which one row may need. Beyond the limit of a page
#: it is read only where its bytes are really in the file: text is packed to a third or a tenth, seldom
#: further.
_LIST_RATIO: Final = 32


@dataclass(slots=True)
class _Column:
    """What the pages of a column chunk come to.

    Attributes:
        nested: a row has any number of its cells.
        bytes: of all pages, decompressed, and of the places of all cells.
        packed: of all pages, as they are in the file.
        largest: of the pages, the same.
        densest: bytes a cell of the densest page.
        shared: the most bytes that cells have in common without having them in their page: a dictionary, or
        what
            goes on from the cell before.
        copies: whether that is by a dictionary alone, which can be kept apart.
    """

    path: str
    nested: bool
    cells: int
    packed: int
    bytes: int = 0
    largest: int = 0
    densest: int = 1
    shared: int = 0
    copies: bool = True

    def add(self, page: Page, width: int) -> None:
        size = page.bytes + page.values * (_CELL_BYTES + width)
        self.bytes += size
        self.largest = max(self.largest, size)
        if page.dictionary or page.shared:
            self.shared = max(self.shared, page.bytes)
            self.copies &= not page.shared
        if not page.dictionary:
            self.densest = max(self.densest, -(-size // max(1, page.values)))


@dataclass(slots=True)
class RowGroup:
    """A row group: what of it is read, and how.

    Args:
        columns: those at the top that are read.

    Attributes:
        apart: text columns inside of lists whose dictionaries stay apart from their cells.
        most: rows of a batch.
        fault: why it is not read, if it is not.
    """

    file: IO[bytes]
    rows: int
    chunks: list[Chunk]
    columns: Collection[str]
    max_page_bytes: int
    apart: list[str] = field(default_factory=list)
    most: int = 1
    fault: InvalidInputError | None = None

    def __post_init__(self) -> None:
        row_bytes = 0.0
        for chunk in self.chunks:
            if not any(chunk.path == name or chunk.path.startswith(f"{name}.") for name in self.columns):
                continue
            column = _Column(chunk.path, chunk.nested, chunk.cells, chunk.packed)
            for page in read_pages(self.file, chunk):
                column.add(page, chunk.width)
            self.fault = self._refuse(column)
            if self.fault is not None:
                return
            if not column.nested:
                row_bytes += max(column.densest, column.shared)
                continue
            row_bytes += column.bytes / max(1, self.rows)
            if column.bytes + column.cells * column.shared > self.max_page_bytes:
                self.apart.append(column.path)
        self.most = max(1, int(BATCH_BYTES / max(1.0, row_bytes)))

    def _refuse(self, column: _Column) -> InvalidInputError | None:
        """Why a column chunk cannot be read within the limits."""
        if column.largest > self.max_page_bytes:
            return self._too_large(f"a page of column {column.path}", column.largest)
        if not column.nested:
            return None
        if column.bytes > self.max_page_bytes and column.bytes > _LIST_RATIO * column.packed:
            return self._too_large(f"column {column.path} of lists", column.bytes)
        if not column.copies and column.bytes + column.cells * column.shared > self.max_page_bytes:
            return self._too_large(
                f"column {column.path} of lists, whose texts go on from each other,",
                column.bytes + column.cells * column.shared,
            )
        return None

    def _too_large(self, what: str, size: int) -> InvalidInputError:
        return InvalidInputError(
            f"{what} is too large once decompressed",
            expected=f"at most {self.max_page_bytes:,} bytes",
            got=f"up to {size:,} bytes",
            remedy="Raise max_page_bytes, or write the file with smaller pages and row groups.",
        )
