"""Read plans of Parquet row groups: whether a group fits the limits, and how many rows to read at a time.

The plan is computed from page headers before any page is decompressed. Columns without lists are read a few
rows at a time; their memory is bounded by the densest page, or by the dictionary, which each cell may
reference. Columns of lists are read in the same way, but one row may have all of a column.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import IO, Final, NamedTuple

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs.parquet.pages import Chunk, read_pages

#: size limit of the cells of a batch, as estimated from page headers
BATCH_BYTES: Final = 1 << 26
#: overhead of a cell: its offset and its levels
_CELL_BYTES: Final = 16
#: Maximum compression ratio of columns of lists that are larger than a page may be: one row may need many of
#: its pages. Text compresses to a third or a tenth, seldom further.
_LIST_RATIO: Final = 32


class SkippedRows(InvalidInputError):
    """Error of a row group that exceeds the limits; ``rows`` is the number of skipped rows."""

    rows: int = 1


class RowGroupPlan(NamedTuple):
    """Read plan of a row group.

    Attributes:
        apart: text columns inside lists that are read dictionary-encoded.
        most: maximum rows of a batch.
    """

    apart: list[str]
    most: int


def plan_row_group(
    file: IO[bytes], rows: int, chunks: Sequence[Chunk], columns: Collection[str], max_page_bytes: int
) -> RowGroupPlan:
    """Plan the reading of a row group.

    Args:
        file: the open file.
        rows: number of rows.
        chunks: its column chunks.
        columns: top-level columns to read.
        max_page_bytes: size limit of a decompressed page.

    Raises:
        SkippedRows: the row group does not fit the limits.
    """
    apart: list[str] = []
    row_bytes = 0.0
    for chunk in chunks:
        path, nested, width = chunk.column
        if not any(path == name or path.startswith(f"{name}.") for name in columns):
            continue
        total = largest = 0  # decompressed bytes with the overhead of cells: of all pages, of the largest
        densest = 1  # bytes per cell of the densest page
        # maximum bytes of a cell beyond its own in the page: of a dictionary, or of a shared prefix
        shared = 0
        copies = True  # whether ``shared`` comes from a dictionary alone, which can stay encoded
        for page in read_pages(file, chunk):
            size = page.bytes + page.values * (_CELL_BYTES + width)
            total += size
            largest = max(largest, size)
            if page.dictionary or page.shared:
                shared = max(shared, page.bytes)
                copies &= not page.shared
            if not page.dictionary:
                densest = max(densest, -(-size // max(1, page.values)))
        if largest > max_page_bytes:
            raise _too_large(f"a page of column {path}", max_page_bytes, largest)
        if not nested:
            row_bytes += max(densest, shared)
            continue
        if total > max_page_bytes and total > _LIST_RATIO * chunk.packed:
            raise _too_large(f"column {path} of lists", max_page_bytes, total)
        row_bytes += total / max(1, rows)
        if (expanded := total + chunk.cells * shared) > max_page_bytes:
            if not copies:
                raise _too_large(f"column {path} of lists with delta-encoded texts", max_page_bytes, expanded)
            apart.append(path)
    return RowGroupPlan(apart, max(1, int(BATCH_BYTES / max(1.0, row_bytes))))


def _too_large(what: str, limit: int, size: int) -> SkippedRows:
    return SkippedRows(
        f"{what} must have at most {limit:,} bytes decompressed",
        got=f"up to {size:,} bytes",
        remedy="Raise max_page_bytes, or write the file with smaller pages and row groups.",
    )
