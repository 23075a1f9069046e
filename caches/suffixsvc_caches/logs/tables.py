"""Parquet files: rows as records, a batch in memory at a time. Columns of integer lists come as arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import MissingExtraError
from suffixsvc_caches.logs.sources import Damaged

__all__ = ["is_table", "read_rows"]

_MAGIC: Final = b"PAR1"


def is_table(path: Path) -> bool:
    """Whether a file begins like Parquet."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_rows(
    path: Path,
    *,
    batch_rows: int = 256,
    without: Collection[str] = (),
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 1, record) of each row.

    Args:
        batch_rows: rows in memory at a time.
        without: columns that are not read.
        on_bytes: told how far reading is, as bytes of the file.

    Raises:
        Damaged: the file is no Parquet, or not readable to its end.
        MissingExtraError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - optional, and slow to load
        import pyarrow.parquet as pq  # noqa: PLC0415 - as above
    except ModuleNotFoundError:
        raise MissingExtraError("caches", "pyarrow") from None
    number = 0
    try:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            size, rows = path.stat().st_size, file.metadata.num_rows
            wanted = [name for name in file.schema_arrow.names if name not in without]
            for batch in file.iter_batches(batch_rows, columns=wanted, use_threads=False):
                columns = {
                    name: _values(column)
                    for name, column in zip(batch.schema.names, batch.columns, strict=True)
                }
                for place in range(batch.num_rows):
                    number += 1
                    yield number, {name: values[place] for name, values in columns.items()}
                if on_bytes is not None:
                    on_bytes(size * number // rows)
    except pa.ArrowException as error:
        raise Damaged(" ".join(str(error).split())[:200]) from None


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
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:  # one value is no text: only its row is lost
        values = [_value(row) for row in column]
    return values


def _value(row: Any) -> Any:
    try:
        return row.as_py()
    except UnicodeDecodeError:
        return _NO_TEXT


#: a value that no reader takes for a text
_NO_TEXT: Final = object()
