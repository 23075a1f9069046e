"""N-gram counts of all outputs of a namespace, sealed or not."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from suffixsvc.core import Index
from suffixsvc.engine.base.log_rows import batches, rows_of
from suffixsvc.index import NamespaceIndex
from suffixsvc.index.texts import next_writer, positions_of, texts_of
from suffixsvc.store.base import Store
from suffixsvc.types import TokenArray

#: tokens per temporary index: bounds its memory
_CHUNK_TOKENS: Final = 1 << 18

Counts = tuple[TokenArray, npt.NDArray[np.uint64]]


def count_ngrams(index: NamespaceIndex, store: Store, n: int) -> Counts:
    """N-grams int32[m, n] and their counts uint64[m]; those of sealed outputs are counted from the log."""
    with index.move_lock:
        found = index.ngrams(n)
        ranges = [(each.record.first_lsn, each.record.last_lsn) for each in index.sealed()]
    for first, last in ranges:
        for batch, _ in batches(rows_of(store, index.path, first, last), _CHUNK_TOKENS, positions_of):
            part = Index(n)
            for stored in batch:
                for text, context in texts_of(stored.output):
                    part.add(text, context, next_writer())
            found = _sum(found, part.ngrams(n), n)
    return found


def _sum(one: Counts, other: Counts, n: int) -> Counts:
    grams = np.concatenate([one[0].reshape(-1, n), other[0].reshape(-1, n)])
    found, where = np.unique(grams, axis=0, return_inverse=True)
    sums = np.zeros(len(found), np.uint64)
    np.add.at(sums, where.reshape(-1), np.concatenate([one[1], other[1]]))
    return found, sums
