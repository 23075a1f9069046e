"""Atomic writing of lookup cache files from merged or selected records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from suffixsvc_caches.atomic import new_file
from suffixsvc_caches.counting import RecordFile, Records
from suffixsvc_caches.lookup.algorithm import LAX, STRICT
from suffixsvc_caches.lookup.table import MAX_ORDER, STATIC_ORDER, Int32s

__all__ = ["WrittenFile", "all_records", "write_records", "write_rows"]

_PIECE: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A lookup cache file that was written.

    Attributes:
        path, size_bytes: the file.
        ngrams: number of records by order.
        pairs: followers of all of them.
        count: sum of their counts.
        xxh3: xxh3-64 of the file, 16 hexadecimal digits.
    """

    path: Path
    size_bytes: int
    ngrams: dict[int, int]
    pairs: int
    count: int
    xxh3: str


def all_records(*, static: bool, min_count: int, top: int, max_count: int, unique: bool) -> list[RecordFile]:
    """Return the merge outputs for a cache with all n-grams.

    Args:
        static: a static cache, else a dynamic one.
        min_count, top, max_count: see ``RecordFile``.
        unique: raise the count of one of two equal best followers, so that llama.cpp's choice does not depend
            on its hash map.
    """
    if static:
        least, percent = LAX[STATIC_ORDER - 1]
        return [RecordFile(STATIC_ORDER, MAX_ORDER, min_count, top, max_count, least, percent, unique=unique)]
    # Without unique: the best follower needs two thirds of the occurrences here, so there are no ties.
    return [
        RecordFile(order, MAX_ORDER, min_count, top, max_count, least, percent)
        for order, (least, percent) in enumerate(STRICT, 1)
    ]


def write_records(path: Path, found: Sequence[Records], *, force: bool) -> WrittenFile:
    """Write merged records, given by rising order; errors as ``suffixsvc_caches.atomic.new_file``."""
    written = _write(path, _pieces(part for each in found for part in each.parts), force)
    ngrams = {each.wanted.order: each.records for each in found if each.records}
    pairs, count = sum(each.pairs for each in found), sum(each.count_sum for each in found)
    return WrittenFile(path, written[0], ngrams, pairs, count, written[1])


def write_rows(path: Path, rows: Sequence[Int32s], *, force: bool) -> WrittenFile:
    """Write records with one follower each, int32[k, 7] for each order; errors as :func:`write_records`."""
    written = _write(path, (np.ascontiguousarray(each, "<i4").tobytes() for each in rows), force)
    orders = [int(np.count_nonzero(each[0, :MAX_ORDER] >= 0)) if len(each) else 0 for each in rows]
    ngrams = {order: len(each) for order, each in zip(orders, rows, strict=True) if order}
    count = sum(int(each[:, -1].sum(dtype=np.int64)) for each in rows)
    return WrittenFile(path, written[0], ngrams, sum(ngrams.values()), count, written[1])


def _write(path: Path, pieces: Iterable[bytes], force: bool) -> tuple[int, str]:
    size, digest = 0, xxhash.xxh3_64()
    with new_file(path, force=force) as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()


def _pieces(paths: Iterable[Path]) -> Iterable[bytes]:
    for path in paths:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece
