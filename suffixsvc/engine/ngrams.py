"""N-gram counts of all outputs of a namespace, sealed or not."""

from __future__ import annotations

from functools import partial
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from suffixsvc.index import NamespaceIndex
from suffixsvc.index.ngrams import add_ngrams
from suffixsvc.types import OutputId, Store, StoredOutput, TokenArray

__all__ = ["count_ngrams"]


def count_ngrams(index: NamespaceIndex, store: Store, n: int) -> tuple[TokenArray, npt.NDArray[np.uint64]]:
    """N-grams int32[m, n] and their counts uint64[m]; those of sealed outputs are counted from the log."""
    with index.move_lock:
        found = index.ngrams(n)
        ranges = [(each.record.first_lsn, each.record.last_lsn) for each in index.sealed()]
    for first, last in ranges:
        rows = store.scan(index.path, from_lsn=first)
        found = add_ngrams(found, n, takewhile(partial(_is_up_to, last), rows))
    return found


def _is_up_to(last: OutputId, stored: StoredOutput) -> bool:
    return stored.output_id <= last
