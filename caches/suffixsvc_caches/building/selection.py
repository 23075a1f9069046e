"""Selection of records for small caches, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from suffixsvc_caches.counting.merging import Records
from suffixsvc_caches.lookup.pruning import ROW_WORDS, select_rows
from suffixsvc_caches.lookup.table import Int32s

#: memory of a candidate during the selection: two copies of its row, and derived arrays
_CANDIDATE_BYTES: Final = 160
_PIECE_ROWS: Final = 1 << 16
#: larger counts share the last bin of the histogram of counts
_MAX_BIN: Final = 1 << 16


def select(
    found: Sequence[Records], budget_bytes: int | None, memory_bytes: int | None = None
) -> tuple[list[Int32s], int]:
    """Select the best records for a budget (:func:`suffixsvc_caches.lookup.pruning.select_rows`).

    Args:
        found: merged records of n-grams that fire, with their best follower, by rising order.
        budget_bytes: size limit of the file; None = no limit.
        memory_bytes: memory for the selection; if the candidates take more, those with the lowest counts are
            dropped first. None = no limit.

    Returns:
        The selected rows by order, and the count below which candidates were dropped because of the memory
        limit (0 if none were).
    """
    most = sum(each.records for each in found) if memory_bytes is None else memory_bytes // _CANDIDATE_BYTES
    least = _least_count(found, most)
    return select_rows([_rows(each, least) for each in found], budget_bytes), least


def _least_count(found: Sequence[Records], most: int) -> int:
    """Smallest count that at most ``most`` records reach; 0 if there are no more records than that."""
    if sum(each.records for each in found) <= most:
        return 0
    histogram = np.zeros(_MAX_BIN + 1, np.int64)
    for piece in (piece for each in found for piece in _pieces(each)):
        histogram += np.bincount(np.minimum(piece[:, -1], _MAX_BIN), minlength=_MAX_BIN + 1)
    reach = np.cumsum(histogram[::-1])[::-1]  # number of records with a count of at least the index
    return int(np.argmax(reach <= most)) if (reach <= most).any() else _MAX_BIN + 1


def _rows(found: Records, least: int) -> Int32s:
    """Candidate rows of one order with a count of at least ``least``, int32[m, 8]."""
    kept = [np.empty((0, ROW_WORDS), np.int32)]
    kept += [piece[piece[:, -1] >= least] if least else piece for piece in _pieces(found)]
    return np.concatenate(kept)


def _pieces(found: Records) -> Iterator[Int32s]:
    for part in found.parts:
        with part.open("rb") as file:
            while raw := file.read(_PIECE_ROWS * 4 * ROW_WORDS):
                yield np.frombuffer(raw, "<i4").reshape(-1, ROW_WORDS)
