"""Physical formats of logs, and the stream of records of a file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from suffixsvc_caches.logs.base.lines import read_lines
from suffixsvc_caches.logs.base.options import ReadOptions
from suffixsvc_caches.logs.base.sources import open_pieces
from suffixsvc_caches.logs.formats.csv_rows import read_csv
from suffixsvc_caches.logs.formats.documents import read_documents
from suffixsvc_caches.logs.parquet.tables import read_rows


class Storage(StrEnum):
    """Physical format of a file."""

    LINES = "JSON lines"
    DOCUMENT = "a JSON document"
    PARQUET = "Parquet"
    CSV = "CSV"
    TEXT = "text"


_READERS: Final = {Storage.LINES: read_lines, Storage.DOCUMENT: read_documents, Storage.CSV: read_csv}


def read_values(
    path: Path,
    storage: Storage,
    options: ReadOptions,
    *,
    batch_rows: int = 256,
    without: Collection[str] = (),
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, Any]]:
    """Yield (number of the line, record or row, value or InvalidInputError) of each record of a file.

    Args:
        path: the file.
        storage: its physical format; not TEXT.
        options: encoding and limits.
        batch_rows, without: for Parquet: maximum number of rows in memory, and columns that are not read.
        on_bytes: progress callback: bytes of the file consumed.

    Raises:
        READ_ERRORS: the file cannot be read to its end.
        MissingExtraError: a library for this format is not installed.
    """
    if storage is Storage.PARQUET:
        return read_rows(
            path,
            batch_rows=batch_rows,
            without=without,
            max_row_bytes=options.max_line_bytes,
            max_page_bytes=options.max_page_bytes,
            on_bytes=on_bytes,
        )
    pieces = open_pieces(path, options.encoding, on_bytes)
    return _READERS[storage](pieces, options.max_line_bytes, options.max_depth)
