"""n-gram counts of texts that are not in the hot index."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from suffixsvc.core import Index
from suffixsvc.index.texts import next_writer, texts_of
from suffixsvc.types import StoredOutput, TokenArray

__all__ = ["add_ngrams"]

#: tokens per temporary index: bounds its memory
_CHUNK_TOKENS: Final = 1 << 18

Counts = tuple[TokenArray, npt.NDArray[np.uint64]]


def add_ngrams(counts: Counts, n: int, outputs: Iterable[StoredOutput]) -> Counts:
    """Add the n-grams of outputs to counts.

    Args:
        counts: n-grams int32[m, n] and their counts uint64[m].
        n: length of the n-grams, validated.
        outputs: outputs whose n-grams are counted.

    Returns:
        The sums, as ``counts``.
    """
    index, tokens = Index(n), 0
    for stored in outputs:
        for text, context in texts_of(stored.output):
            index.add(text, context, next_writer())
            tokens += len(text)
        if tokens >= _CHUNK_TOKENS:
            counts = _sum(counts, index.ngrams(n), n)
            index, tokens = Index(n), 0
    return _sum(counts, index.ngrams(n), n) if tokens else counts


def _sum(one: Counts, other: Counts, n: int) -> Counts:
    grams = np.concatenate([one[0].reshape(-1, n), other[0].reshape(-1, n)])
    found, where = np.unique(grams, axis=0, return_inverse=True)
    sums = np.zeros(len(found), np.uint64)
    np.add.at(sums, where.reshape(-1), np.concatenate([one[1], other[1]]))
    return found, sums
