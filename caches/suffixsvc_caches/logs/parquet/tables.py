"""Reader of the rows of Parquet files as records, in batches of bounded size.

    page headers -> read plan of a row group -> batches -> sizes of rows -> records

The memory of a row group is estimated from its page headers before any page is decompressed; a row is
converted to Python values only if it is within the limit. Columns of integer lists are arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from suffixsvc.errors import InvalidInputError, MissingExtraError
from suffixsvc_caches.logs.base.lines import too_long
from suffixsvc_caches.logs.base.options import MAX_LINE_BYTES, MAX_PAGE_BYTES
from suffixsvc_caches.logs.base.sources import DamagedFile
from suffixsvc_caches.logs.base.times import MAX_SECONDS
from suffixsvc_caches.logs.parquet.cell_sizes import cell_sizes, sum_sizes
from suffixsvc_caches.logs.parquet.pages import read_footer
from suffixsvc_caches.logs.parquet.row_groups import BATCH_BYTES, RowGroup

__all__ = ["SkippedRows", "is_table", "read_rows"]

_MAGIC: Final = b"PAR1"


class SkippedRows(InvalidInputError):
    """A row group that exceeds the limits; ``rows`` is the number of skipped rows."""

    rows: int = 1


def is_table(path: Path) -> bool:
    """Whether a file begins with Parquet's magic bytes."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_rows(
    path: Path,
    *,
    batch_rows: int = 256,
    without: Collection[str] = (),
    max_row_bytes: int = MAX_LINE_BYTES,
    max_page_bytes: int = MAX_PAGE_BYTES,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, dict[str, Any] | InvalidInputError]]:
    """Yield (number from 1, record) of each row.

    A row that is too long is yielded as InvalidInputError, a row group that exceeds the limits as one
    :class:`SkippedRows`.

    Args:
        path: the file.
        batch_rows: maximum number of rows in memory.
        without: columns that are not read.
        max_row_bytes: size limit of a row.
        max_page_bytes: size limit of a decompressed page.
        on_bytes: progress callback: position in bytes of the file.

    Raises:
        DamagedFile: the file is not Parquet, or not readable to its end.
        MissingExtraError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - optional, and slow to load
        import pyarrow.parquet as pq  # noqa: PLC0415 - as above
    except ModuleNotFoundError:
        raise MissingExtraError("caches", "pyarrow") from None
    number = 0
    try:
        with path.open("rb") as raw:
            groups = read_footer(raw)
            with pq.ParquetFile(path) as file:
                metadata = file.metadata
                columns = [name for name in file.schema_arrow.names if name not in without]
            size, rows = path.stat().st_size, max(1, sum(rows for rows, _ in groups))
            for place, (rows_inside, chunks) in enumerate(groups):
                group = RowGroup(raw, rows_inside, chunks, columns, max_page_bytes)
                if group.fault is not None:
                    yield number + 1, _skipped_rows(group.fault, number + 1, group.rows)
                    number += group.rows
                    continue
                for record in _records(path, pq, metadata, place, group, batch_rows, max_row_bytes):
                    number += 1
                    yield number, record
                    if on_bytes is not None and number % batch_rows == 0:
                        on_bytes(size * number // rows)
            if on_bytes is not None:
                on_bytes(size)
    # ValueError, OverflowError: names that are not UTF-8, negative offsets
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise DamagedFile(" ".join(str(error).split())[:200]) from None


def _skipped_rows(fault: InvalidInputError, first: int, rows: int) -> SkippedRows:
    error = SkippedRows(
        f"rows {first:,} to {first + rows - 1:,} are skipped: {fault.message}",
        expected=fault.expected,
        got=fault.got,
        remedy=fault.remedy,
    )
    error.rows = rows
    return error


def _records(
    path: Path, pq: Any, metadata: Any, place: int, group: RowGroup, batch_rows: int, max_row_bytes: int
) -> Iterator[dict[str, Any] | InvalidInputError]:
    """Yield the rows of a row group."""
    settings = {"read_dictionary": group.apart, "pre_buffer": False, "buffer_size": 1 << 20}
    with pq.ParquetFile(path, metadata=metadata, **settings) as file:
        batches = file.iter_batches(
            min(batch_rows, group.most), row_groups=[place], columns=group.columns, use_threads=False
        )
        for batch in batches:
            sizes = [cell_sizes(column) for column in batch.columns]
            total = sum_sizes(sizes, batch.num_rows)
            if int(total.sum()) <= min(BATCH_BYTES, max_row_bytes):  # the common case
                yield from _all(batch)
                continue
            for at, size in enumerate(
                total.tolist()
            ):  # one at a time, because each may be as large as the limit
                if size > max_row_bytes:
                    largest = int(np.argmax([column[at] for column in sizes]))
                    yield _row_too_long(batch.schema.names[largest], size, max_row_bytes)
                else:
                    yield from _all(batch.slice(at, 1))


def _row_too_long(column: str, size: int, limit: int) -> InvalidInputError:
    error = too_long("row", limit)
    return InvalidInputError(
        error.message,
        expected=error.expected,
        got=f"{size:,} bytes, most of them in the column {column}",
        remedy=error.remedy,
    )


def _all(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch as records."""
    columns = {name: _values(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    for place in range(batch.num_rows):
        yield {name: values[place] for name, values in columns.items()}


def _values(column: Any) -> list[Any]:
    import pyarrow as pa  # noqa: PLC0415 - loaded by the caller

    kind = column.type
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_integer(kind.value_type):
        if column.null_count or column.values.null_count:
            return [
                None if row.values is None else row.values.to_numpy(zero_copy_only=False) for row in column
            ]
        every, ends = column.values.to_numpy(), column.offsets.to_numpy()
        return [every[first:end] for first, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
    if pa.types.is_timestamp(kind):  # includes values beyond datetime: nanoseconds, the year 10000
        return [_seconds(value, kind.unit) for value in column.cast(pa.int64()).to_pylist()]
    try:
        values: list[Any] = column.to_pylist()
    except _UNCONVERTIBLE:  # only cells of this column fail, not the batch
        values = [_value(cell) for cell in column]
    return values


def _value(cell: Any) -> Any:
    try:
        return _convert(cell)
    except _UNCONVERTIBLE:
        return _UNREADABLE


def _convert(cell: Any) -> Any:
    """Convert a cell to a Python value, with _UNREADABLE for each part that has none.

    Raises:
        UnicodeDecodeError: a text in it is not UTF-8.
    """
    import pyarrow as pa  # noqa: PLC0415 - loaded by the caller

    try:
        return cell.as_py()
    except UnicodeDecodeError:
        raise
    except _UNCONVERTIBLE:
        if isinstance(cell, pa.TimestampScalar):
            return _seconds(cell.value, cell.type.unit)
        if isinstance(cell, pa.StructScalar):
            return {name: _convert(cell[name]) for name in cell}
        if isinstance(cell, pa.ListScalar):
            places = range(len(cell.values))
            return [_convert(cell.values[place]) for place in places]
        if isinstance(cell, (pa.DictionaryScalar, pa.ExtensionScalar)):
            return _convert(cell.value)
        return _UNREADABLE


def _seconds(value: int | None, unit: str) -> float | None:
    """Convert a timestamp to seconds since the epoch; None beyond the range of times in logs."""
    seconds = None if value is None else value / _UNITS_A_SECOND[unit]
    return seconds if seconds is not None and abs(seconds) < MAX_SECONDS else None


_UNITS_A_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
#: pyarrow's exceptions for a cell that has no Python value
_UNCONVERTIBLE: Final = (ValueError, OverflowError, LookupError)
#: a value of a type that no parser accepts
_UNREADABLE: Final = object()
