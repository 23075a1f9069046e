"""What merging must find for caches that are made small, and which of it they keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from suffixsvc_caches.counting import RecordFile, Records
from suffixsvc_caches.lookup.algorithm import LAX, STRICT
from suffixsvc_caches.lookup.pruning import ROW_WORDS, Chosen, choose_rows
from suffixsvc_caches.lookup.table import MAX_ORDER, STATIC_ORDER, Int32s

__all__ = ["candidates", "choose"]

#: what a candidate takes while it is chosen from: its row, twice for a moment, and what is worked out of it
_CHOICE_BYTES: Final = 160
_PIECE_ROWS: Final = 1 << 16
#: counts are told apart up to here
_COUNTED: Final = 1 << 16


def candidates(orders: Sequence[int], *, static: bool, min_count: int) -> list[RecordFile]:
    """What merging must find to choose from: n-grams that fire, with their best follower."""
    rules = {STATIC_ORDER: LAX[STATIC_ORDER - 1]} if static else dict(enumerate(STRICT, 1))
    return [
        RecordFile(
            order,
            slots=MAX_ORDER + 1,
            min_count=min_count,
            top=1,
            least=rules[order][0],
            percent=rules[order][1],
            firing=True,
            totals=True,
        )
        for order in orders
    ]


def choose(
    found: Sequence[Records], budget_bytes: int | None, memory_bytes: int | None = None
) -> tuple[Chosen, int]:
    """The best records for a budget (:func:`suffixsvc_caches.lookup.pruning.choose_rows`).

    Args:
        found: what merging found of :func:`candidates`, by rising order.
        memory_bytes: to choose in; where all candidates take more, those seen least often are left out
            beforehand. None: no limit.

    Returns:
        What was chosen, and the count below which candidates were left out for want of memory (0 = none).
    """
    most = sum(each.records for each in found) if memory_bytes is None else memory_bytes // _CHOICE_BYTES
    least = _least_count(found, most)
    return choose_rows([_rows(each, least) for each in found], budget_bytes), least


def _least_count(found: Sequence[Records], most: int) -> int:
    """The smallest count that at most ``most`` records reach, or 0 where all may stay."""
    if sum(each.records for each in found) <= most:
        return 0
    seen = np.zeros(_COUNTED + 1, np.int64)
    for piece in (piece for each in found for piece in _pieces(each)):
        seen += np.bincount(np.minimum(piece[:, -1], _COUNTED), minlength=_COUNTED + 1)
    reach = np.cumsum(seen[::-1])[::-1]  # how many have so much or more
    return int(np.argmax(reach <= most)) if (reach <= most).any() else _COUNTED + 1


def _rows(found: Records, least: int) -> Int32s:
    """The records of one order whose follower was counted so often, int32[m, 8]."""
    kept = [np.empty((0, ROW_WORDS), np.int32)]
    kept += [piece[piece[:, -1] >= least] if least else piece for piece in _pieces(found)]
    return np.concatenate(kept)


def _pieces(found: Records) -> Iterator[Int32s]:
    for part in found.parts:
        with part.open("rb") as file:
            while raw := file.read(_PIECE_ROWS * 4 * ROW_WORDS):
                yield np.frombuffer(raw, "<i4").reshape(-1, ROW_WORDS)
