"""Estimation of the sizes of Arrow cells as Python values, before they are converted."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["Sizes", "cell_sizes", "sum_sizes"]

Sizes = npt.NDArray[np.int64]

#: overhead of a list or an object
_OBJECT_BYTES: Final = 64


def cell_sizes(column: Any) -> Sizes:
    """Estimate the bytes of each cell of an array, including nested values; int64[n].

    A dictionary entry is counted in each cell that refers to it.
    """
    import pyarrow as pa  # noqa: PLC0415 - loaded by the caller
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    kind, types = column.type, pa.types
    if isinstance(column, pa.ExtensionArray):
        return cell_sizes(column.storage)
    if types.is_dictionary(kind):
        entries = cell_sizes(column.dictionary)
        places = pc.fill_null(column.indices, 0).to_numpy(zero_copy_only=False)
        return entries[places] if len(entries) else np.zeros(len(column), np.int64)
    if types.is_nested(kind):
        return _nested(column)
    if any(is_text(kind) for is_text in _text_kinds()):
        lengths = pc.fill_null(pc.binary_length(column), 0)
        return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)
    if types.is_primitive(kind) or types.is_null(kind):
        return np.full(len(column), kind.bit_width // 8 if types.is_primitive(kind) else 0, np.int64)
    return np.full(len(column), column.nbytes, np.int64)  # unknown type: a cell may be the whole column


def _text_kinds() -> tuple[Any, ...]:
    from pyarrow import types  # noqa: PLC0415 - loaded by the caller

    return (
        types.is_string,
        types.is_large_string,
        types.is_binary,
        types.is_large_binary,
        types.is_fixed_size_binary,
    )


def _nested(column: Any) -> Sizes:
    """Sizes of cells with nested values."""
    from pyarrow import types  # noqa: PLC0415 - loaded by the caller

    kind = column.type
    if types.is_struct(kind):
        return sum_sizes([cell_sizes(inner) for inner in column.flatten()], len(column)) + _OBJECT_BYTES
    if types.is_fixed_size_list(kind):
        first, count = column.offset * kind.list_size, len(column) * kind.list_size
        inside = cell_sizes(column.values.slice(first, count))
        return np.asarray(inside.reshape(len(column), kind.list_size).sum(axis=1), np.int64)
    if types.is_map(kind):
        inside = sum_sizes([cell_sizes(column.keys), cell_sizes(column.items)], len(column.keys))
    elif types.is_list(kind) or types.is_large_list(kind):
        inside = cell_sizes(column.values)
    else:
        return np.full(len(column), column.nbytes, np.int64)
    upto = np.concatenate([np.zeros(1, np.int64), np.cumsum(inside, dtype=np.int64)])
    ends = column.offsets.to_numpy().astype(np.int64)
    return np.asarray(upto[ends[1:]] - upto[ends[:-1]] + _OBJECT_BYTES, np.int64)


def sum_sizes(parts: list[Sizes], count: int) -> Sizes:
    """Sum the sizes of the cells of ``count`` rows over their columns; int64[count]."""
    total = np.zeros(count, np.int64)
    for part in parts:
        total += part
    return total
