"""What merging must find for caches that are made small, and which of it they keep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from suffixsvc_caches.counting import RecordFile, Records
from suffixsvc_caches.lookup.algorithm import LAX, STRICT
from suffixsvc_caches.lookup.pruning import RECORD_BYTES, ROW_WORDS, Chosen, choose_rows
from suffixsvc_caches.lookup.table import MAX_ORDER, STATIC_ORDER, Int32s

__all__ = ["RECORD_BYTES", "candidates", "choose"]


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


def choose(found: Sequence[Records], budget_bytes: int | None) -> Chosen:
    """The best records for a budget (:func:`suffixsvc_caches.lookup.pruning.choose_rows`).

    Args:
        found: what merging found of :func:`candidates`, by rising order.
    """
    return choose_rows([_rows(each) for each in found], budget_bytes)


def _rows(found: Records) -> Int32s:
    """The records of one order, int32[m, 8], mapped from their file where it is one."""
    parts = [
        np.memmap(part, np.dtype("<i4"), "r").reshape(-1, ROW_WORDS)
        for part in found.parts
        if part.stat().st_size
    ]
    rows: Int32s = (
        parts[0] if len(parts) == 1 else np.concatenate([np.empty((0, ROW_WORDS), np.int32), *parts])
    )
    return rows
