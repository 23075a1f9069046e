"""Read plans of Parquet row groups: whether a group fits the limits, and how many rows to read at a time.

The plan is computed from page headers before any page is decompressed. Columns without lists are read a few
rows at a time; their memory is bounded by the densest page, or by the dictionary, which each cell may
reference. Columns of lists are read in the same way, but one row may have all of a column.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import IO, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs.parquet.pages import Chunk, Page, read_pages

__all__ = ["BATCH_BYTES", "RowGroup"]

#: size limit of the cells of a batch, as estimated from page headers
BATCH_BYTES: Final = 1 << 26
#: overhead of a cell: its offset and its levels
_CELL_BYTES: Final = 16
#: Maximum compression ratio of columns of lists that are larger than a page may be: one row may need many of
#: its pages. Text compresses to a third or a tenth, seldom further.
_LIST_RATIO: Final = 32


@dataclass(slots=True)
class _Column:
    """Sizes of a column chunk, accumulated from its page headers.

    Attributes:
        path: names from the root, joined by dots.
        nested: a row can have any number of its cells.
        cells: number of cells.
        packed: compressed bytes of all pages.
        bytes: decompressed bytes of all pages, with the overhead of cells.
        largest: the same of the largest page.
        densest: bytes per cell of the densest page.
        shared: maximum bytes of a cell beyond its own in the page: of a dictionary, or of a shared prefix.
        copies: whether ``shared`` comes from a dictionary alone, which can stay encoded.
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
        """Add a page with cells of a fixed width (0 = variable)."""
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
    """Read plan of a row group.

    Attributes:
        file: the open file.
        rows: number of rows.
        chunks: its column chunks.
        columns: top-level columns to read.
        max_page_bytes: size limit of a decompressed page.
        apart: text columns inside lists that are read dictionary-encoded.
        most: maximum rows of a batch.
        fault: reason why the group cannot be read; None if it can.
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
        """Reason why a column chunk does not fit the limits; None if it does."""
        if column.largest > self.max_page_bytes:
            return self._too_large(f"a page of column {column.path}", column.largest)
        if not column.nested:
            return None
        if column.bytes > self.max_page_bytes and column.bytes > _LIST_RATIO * column.packed:
            return self._too_large(f"column {column.path} of lists", column.bytes)
        if not column.copies and column.bytes + column.cells * column.shared > self.max_page_bytes:
            return self._too_large(
                f"column {column.path} of lists with delta-encoded texts",
                column.bytes + column.cells * column.shared,
            )
        return None

    def _too_large(self, what: str, size: int) -> InvalidInputError:
        return InvalidInputError(
            f"{what} must have at most {self.max_page_bytes:,} bytes decompressed",
            got=f"up to {size:,} bytes",
            remedy="Raise max_page_bytes, or write the file with smaller pages and row groups.",
        )
