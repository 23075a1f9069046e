"""Lookup tables of dictionaries, and back: {n-gram: {follower: count}}."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from suffixsvc_caches.lookup.table import MAX_ORDER, LookupTable

__all__ = ["records_of_table", "table_of"]


def table_of(records: Mapping[Sequence[int], Mapping[int, int]]) -> LookupTable:
    """Build a table, in the order of the dictionaries."""
    ngrams = [[*ngram, *[-1] * (MAX_ORDER - len(ngram))] for ngram in records]
    sizes = [0, *map(len, records.values())]
    pairs = [pair for followers in records.values() for pair in followers.items()]
    tokens, counts = np.array(pairs, np.int32).reshape(-1, 2).T
    return LookupTable(
        np.array(ngrams, np.int32).reshape(-1, MAX_ORDER),
        np.cumsum(sizes, dtype=np.int64),
        np.ascontiguousarray(tokens),
        np.ascontiguousarray(counts),
    )


def records_of_table(table: LookupTable) -> dict[tuple[int, ...], dict[int, int]]:
    """Return the counts as llama.cpp's loader reads them: of equal n-grams, and of equal tokens in one
    record, the first counts."""
    found: dict[tuple[int, ...], dict[int, int]] = {}
    for ngram, a, b in zip(
        table.ngrams.tolist(), table.starts[:-1].tolist(), table.starts[1:].tolist(), strict=True
    ):
        key = tuple(token for token in ngram if token != -1)
        if key not in found:
            found[key] = {}
            for token, count in zip(table.tokens[a:b].tolist(), table.counts[a:b].tolist(), strict=True):
                found[key].setdefault(token, count)
    return found
