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
from suffixsvc_caches.errors import at_place
from suffixsvc_caches.logs.base.lines import too_long
from suffixsvc_caches.logs.base.options import MAX_LINE_BYTES, MAX_PAGE_BYTES
from suffixsvc_caches.logs.base.sources import DamagedFile
from suffixsvc_caches.logs.base.times import MAX_SECONDS
from suffixsvc_caches.logs.parquet.cell_sizes import cell_sizes, sum_sizes
from suffixsvc_caches.logs.parquet.pages import read_footer
from suffixsvc_caches.logs.parquet.row_groups import BATCH_BYTES, SkippedRows, plan_row_group

_MAGIC: Final = b"PAR1"


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
                try:
                    plan = plan_row_group(raw, rows_inside, chunks, columns, max_page_bytes)
                except SkippedRows as fault:
                    error = at_place(f"rows {number + 1:,} to {number + rows_inside:,} are skipped", fault)
                    error.rows = rows_inside
                    yield number + 1, error
                    number += rows_inside
                    continue
                settings = {"read_dictionary": plan.apart, "pre_buffer": False, "buffer_size": 1 << 20}
                with pq.ParquetFile(path, metadata=metadata, **settings) as file:
                    for batch in file.iter_batches(
                        min(batch_rows, plan.most), row_groups=[place], columns=columns, use_threads=False
                    ):
                        for record in _records(batch, max_row_bytes):
                            number += 1
                            yield number, record
                            if on_bytes is not None and number % batch_rows == 0:
                                on_bytes(size * number // rows)
            if on_bytes is not None:
                on_bytes(size)
    # ValueError, OverflowError: names that are not UTF-8, negative offsets
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise DamagedFile(" ".join(str(error).split())[:200]) from None


def _records(batch: Any, max_row_bytes: int) -> Iterator[dict[str, Any] | InvalidInputError]:
    """Yield the rows of a batch; a row that is too long as InvalidInputError."""
    sizes = [cell_sizes(column) for column in batch.columns]
    total = sum_sizes(sizes, batch.num_rows)
    if int(total.sum()) <= min(BATCH_BYTES, max_row_bytes):  # the common case
        yield from _all(batch)
        return
    # one at a time, because each may be as large as the limit
    for at, size in enumerate(total.tolist()):
        if size > max_row_bytes:
            name = batch.schema.names[int(np.argmax([column[at] for column in sizes]))]
            yield too_long("row", max_row_bytes, f"{size:,} bytes, most of them in the column {name}")
        else:
            yield from _all(batch.slice(at, 1))


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
        values = [_convert(cell) for cell in column]
    return values


def _convert(cell: Any) -> Any:
    """Convert a cell to a Python value, with _UNREADABLE for each part that has none."""
    import pyarrow as pa  # noqa: PLC0415 - loaded by the caller

    try:
        return cell.as_py()
    except _UNCONVERTIBLE:
        if isinstance(cell, pa.TimestampScalar):
            return _seconds(cell.value, cell.type.unit)
        if isinstance(cell, pa.StructScalar):
            return {name: _convert(cell[name]) for name in cell}
        if isinstance(cell, pa.ListScalar):
            return [_convert(cell.values[place]) for place in range(len(cell.values))]
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
