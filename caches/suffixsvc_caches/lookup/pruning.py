"""Pruning of lookup caches: selection of the n-grams with the most expected hits for a size budget.

llama.cpp drafts the best follower of an n-gram that *fires*, i.e. reaches the thresholds on its occurrences
and on the follower's share, and nothing from other n-grams. A pruned cache therefore has only n-grams that
fire, with one follower each: 28 bytes a record. The expected hits of a record are the count of its follower
in the corpus. Records are selected by falling expected hits, of equal ones by the follower's share.

In a dynamic cache the longest n-gram that fires decides. A record with the same follower as the next shorter
n-gram that fires changes no draft: its expected hits are 0, and it is dropped even if the budget has room.
(The shorter n-gram was seen at least as often, so it is selected first.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import InvalidConfigError
from suffixsvc_caches.lookup.algorithm import thresholds
from suffixsvc_caches.lookup.table import HEAD, MAX_ORDER, Int32s, LookupTable

#: size of a record with one follower
RECORD_BYTES: Final = 4 * (HEAD + 2)
#: words of a candidate row: n-gram, its occurrences, 1, follower, count
ROW_WORDS: Final = MAX_ORDER + 4
_TOTAL, _FOLLOWER, _COUNT = MAX_ORDER, MAX_ORDER + 2, MAX_ORDER + 3
_KEY_BITS: Final = 63
_MOST: Final = 2**31 - 1

Bools = npt.NDArray[np.bool_]


def require_budget(budget_bytes: int | None) -> None:
    """Check that a budget fits at least one record. InvalidConfigError: it is smaller."""
    if budget_bytes is not None and budget_bytes < RECORD_BYTES:
        raise InvalidConfigError(f"the budget must be {RECORD_BYTES} bytes or more", got=budget_bytes)


def prune_table(table: LookupTable, budget_bytes: int | None, *, static: bool) -> LookupTable:
    """Return the sorted records that change drafts, pruned to a budget.

    Args:
        table: the cache.
        budget_bytes: size limit of the file; None keeps every record that changes a draft.
        static: prune as a static cache, of which llama.cpp queries 2-grams only; otherwise as a dynamic one.
    """
    ordered = table.in_order()  # followers by falling count
    rules = thresholds(static=static).items()
    rows = select_rows([_firing(ordered, order, *rule) for order, rule in rules], budget_bytes)
    words = np.concatenate(file_words(rows, 0))
    return LookupTable(
        words[:, :MAX_ORDER],
        np.arange(len(words) + 1, dtype=np.int64),
        words[:, MAX_ORDER + 1],
        words[:, MAX_ORDER + 2],
    )


def _firing(table: LookupTable, order: int, least: int, percent: int) -> Int32s:
    """Candidate rows, int32[m, 8]: the n-grams of an order that fire, with their best follower."""
    heads = table.starts[:-1]
    totals = np.add.reduceat(table.counts.astype(np.int64), heads) if len(table) else heads
    most = table.counts[heads].astype(np.int64)
    fires = np.flatnonzero((table.orders() == order) & (totals >= least) & (100 * most >= percent * totals))
    rows = np.empty((len(fires), ROW_WORDS), np.int32)
    rows[:, :MAX_ORDER] = table.ngrams[fires]
    rows[:, _TOTAL] = np.minimum(totals[fires], _MOST)
    rows[:, _TOTAL + 1] = 1
    rows[:, _FOLLOWER] = table.tokens[heads[fires]]
    # As the only follower it must reach the minimum by itself.
    rows[:, _COUNT] = np.maximum(most[fires], least)
    return rows


def file_words(tables: Sequence[Int32s], max_count: int) -> list[Int32s]:
    """Return the file records of candidate rows, int32[k, 7]; counts are at most ``max_count``, if not 0."""
    records = [np.delete(rows, _TOTAL, axis=1) for rows in tables]
    for each in records if max_count else ():
        np.minimum(each[:, -1], max_count, out=each[:, -1])
    return records


def select_rows(tables: Sequence[Int32s], budget_bytes: int | None) -> list[Int32s]:
    """Select the records with the most expected hits for a budget.

    Args:
        tables: sorted rows of n-grams that fire, int32[m, 8], for each order, by rising order: the n-gram,
            its occurrences, 1, the best follower, its count.
        budget_bytes: size limit of the file; None keeps every record that changes a draft.

    Returns:
        The selected rows of each table.
    """
    values = _expected_hits(tables)
    every = np.concatenate([np.empty(0, np.int64), *values])
    keep = every > 0
    limit = len(every) if budget_bytes is None else budget_bytes // RECORD_BYTES
    if np.count_nonzero(keep) > limit:
        keep = _top(every, np.concatenate([_shares(rows) for rows in tables]), limit)
    parts = np.split(keep, np.cumsum([len(rows) for rows in tables])[:-1])
    return [rows[part] for rows, part in zip(tables, parts, strict=True)]


def _shares(rows: Int32s) -> npt.NDArray[np.float32]:
    return (rows[:, _COUNT] / rows[:, _TOTAL]).astype(np.float32)


def _expected_hits(tables: Sequence[Int32s]) -> list[npt.NDArray[np.int64]]:
    """Expected hits of each record; 0 if a shorter n-gram drafts the same token."""
    tokens = np.unique(np.concatenate([np.unique(rows[:, :MAX_ORDER]) for rows in tables]))
    bits = len(tokens).bit_length()
    if bits * (MAX_ORDER - 1) > _KEY_BITS:  # beyond any real vocabulary; no record is then redundant
        return [rows[:, _COUNT].astype(np.int64) for rows in tables]
    values, shorter = [], list[tuple[int, npt.NDArray[np.int64], Int32s]]()
    for rows in tables:
        order = int(np.count_nonzero(rows[0, :MAX_ORDER] >= 0)) if len(rows) else 0
        ranks = np.searchsorted(tokens, rows[:, :order]).astype(np.int64)
        drafted = np.full(len(rows), -1, np.int32)
        for n, keys, followers in shorter:  # rising, so that longer n-grams override shorter ones
            suffixes = _pack(ranks[:, order - n :], bits)
            at = np.minimum(np.searchsorted(keys, suffixes), max(0, len(keys) - 1))
            known = keys[at] == suffixes if len(keys) else np.zeros(len(suffixes), bool)
            drafted[known] = followers[at[known]]
        values.append(np.where(drafted == rows[:, _FOLLOWER], 0, rows[:, _COUNT]).astype(np.int64))
        if 0 < order < MAX_ORDER:
            shorter.append((order, _pack(ranks, bits), rows[:, _FOLLOWER]))
    return values


def _pack(ranks: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.int64]:
    """Pack n-grams, int64[m, n], to int64[m] with the same order."""
    keys = np.zeros(len(ranks), np.int64)
    for column in ranks.T:
        keys = keys << bits | column
    return keys


def _top(values: npt.NDArray[np.int64], shares: npt.NDArray[np.float32], limit: int) -> Bools:
    """Mask of the ``limit`` records with the highest value; ties by share, then by position."""
    keep = np.zeros(len(values), bool)
    if limit <= 0:
        return keep
    threshold = np.partition(values, len(values) - limit)[len(values) - limit]
    keep[values > threshold] = True
    equal = np.flatnonzero(values == threshold)
    left = limit - int(np.count_nonzero(keep))
    if threshold > 0:
        keep[equal[np.argsort(-shares[equal], kind="stable")[:left]]] = True
    return keep
