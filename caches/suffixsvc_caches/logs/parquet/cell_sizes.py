"""Estimation of the sizes of Arrow cells as Python values, before they are converted."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Sizes = npt.NDArray[np.int64]

#: overhead of a list or an object
_OBJECT_BYTES: Final = 64


def cell_sizes(column: Any) -> Sizes:  # noqa: PLR0911 - a list of types
    """Estimate the bytes of each cell of an array, including nested values; int64[n].

    A dictionary entry is counted in each cell that refers to it.
    """
    import pyarrow as pa  # noqa: PLC0415 - loaded by the caller
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    kind, count = column.type, len(column)
    if isinstance(column, pa.ExtensionArray):
        return cell_sizes(column.storage)
    if isinstance(column, pa.DictionaryArray):
        entries = cell_sizes(column.dictionary)
        places = pc.fill_null(column.indices, 0).to_numpy(zero_copy_only=False)
        return entries[places] if len(entries) else np.zeros(count, np.int64)
    if isinstance(column, pa.StructArray):
        return sum_sizes([cell_sizes(inner) for inner in column.flatten()], count) + _OBJECT_BYTES
    if isinstance(column, pa.FixedSizeListArray):
        inside = cell_sizes(column.values.slice(column.offset * kind.list_size, count * kind.list_size))
        return np.asarray(inside.reshape(count, kind.list_size).sum(axis=1), np.int64)
    if isinstance(column, (pa.ListArray, pa.LargeListArray)):  # a MapArray is a ListArray, too
        inside = cell_sizes(column.values)
        upto = np.concatenate([np.zeros(1, np.int64), np.cumsum(inside, dtype=np.int64)])
        ends = column.offsets.to_numpy().astype(np.int64)
        return np.asarray(upto[ends[1:]] - upto[ends[:-1]] + _OBJECT_BYTES, np.int64)
    if isinstance(column, (pa.StringArray, pa.LargeStringArray, pa.BinaryArray, pa.LargeBinaryArray)):
        lengths = pc.fill_null(pc.binary_length(column), 0)
        return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)
    if pa.types.is_null(kind):
        return np.zeros(count, np.int64)
    try:
        size = kind.bit_width // 8
    except ValueError:
        size = column.nbytes  # unknown type: a cell may be the whole column
    return np.full(count, size, np.int64)


def sum_sizes(parts: list[Sizes], count: int) -> Sizes:
    """Sum the sizes of the cells of ``count`` rows over their columns; int64[count]."""
    total = np.zeros(count, np.int64)
    for part in parts:
        total += part
    return total
