"""Which n-grams a small cache keeps: those that are expected to be right most often.

llama.cpp drafts the best follower of an n-gram that *fires* (seen often enough, and the follower has enough
of it) and nothing from the others, so a cache made to be small holds n-grams that fire, each with one
follower: 28 bytes, whatever the n-gram. What is left to choose is which, and the expected number of correct
drafts of a record is what the corpus says: how often the follower followed. The budget goes to the highest
numbers; of equal ones to the surer.

In a dynamic cache the longest n-gram that fires decides. A record whose follower the next shorter n-gram that
fires names as well changes no draft: it counts 0, and is left out even where there is room. (What it would be
without the shorter one does not matter: that one was seen at least as often and is kept first.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import InvalidConfigError
from suffixsvc_caches.lookup.algorithm import LAX, STRICT
from suffixsvc_caches.lookup.table import HEAD, MAX_ORDER, STATIC_ORDER, Int32s, LookupTable

__all__ = ["RECORD_BYTES", "ROW_WORDS", "Chosen", "choose_rows", "prune_table", "require_budget"]

#: of a record with one follower
RECORD_BYTES: Final = 4 * (HEAD + 2)
#: of a record that is chosen from: n-gram, how often it was seen, 1, follower, count
ROW_WORDS: Final = MAX_ORDER + 4
_TOTAL, _FOLLOWER, _COUNT = MAX_ORDER, MAX_ORDER + 2, MAX_ORDER + 3
_KEY_BITS: Final = 63
_MOST: Final = 2**31 - 1

Bools = npt.NDArray[np.bool_]


def require_budget(budget_bytes: int | None) -> None:
    """Refuse a size of a file that no record fits. InvalidConfigError."""
    if budget_bytes is not None and budget_bytes < RECORD_BYTES:
        raise InvalidConfigError(
            "no record fits the budget", expected=f"{RECORD_BYTES} bytes or more", got=budget_bytes
        )


def prune_table(table: LookupTable, budget_bytes: int | None, *, static: bool) -> LookupTable:
    """A cache without what changes no draft, cut down to a budget; in order.

    Args:
        budget_bytes: size of the file; None keeps every record that changes a draft.
        static: whether llama.cpp asks it as a static cache (for 2-grams) or as a dynamic one.
    """
    ordered = table.in_order()  # followers by falling count
    rules = {STATIC_ORDER: LAX[STATIC_ORDER - 1]} if static else dict(enumerate(STRICT, 1))
    chosen = choose_rows([_firing(ordered, order, *rule) for order, rule in rules.items()], budget_bytes)
    words = np.concatenate(chosen.words(0))
    return LookupTable(
        words[:, :MAX_ORDER],
        np.arange(len(words) + 1, dtype=np.int64),
        words[:, MAX_ORDER + 1],
        words[:, MAX_ORDER + 2],
    )


def _firing(table: LookupTable, order: int, least: int, percent: int) -> Int32s:
    """The n-grams of an order that fire, with their best follower, int32[m, 8]."""
    heads = table.starts[:-1]
    totals = np.add.reduceat(table.counts.astype(np.int64), heads) if len(table) else heads
    most = table.counts[heads].astype(np.int64)
    fires = np.flatnonzero((table.orders() == order) & (totals >= least) & (100 * most >= percent * totals))
    rows = np.empty((len(fires), ROW_WORDS), np.int32)
    rows[:, :MAX_ORDER] = table.ngrams[fires]
    rows[:, _TOTAL] = np.minimum(totals[fires], _MOST)
    rows[:, _TOTAL + 1] = 1
    rows[:, _FOLLOWER] = table.tokens[heads[fires]]
    # Alone it has to be seen often enough to fire.
    rows[:, _COUNT] = np.maximum(most[fires], least)
    return rows


class Chosen:
    """The records kept.

    Attributes:
        rows: of each order that was a candidate, int32[k, 8].
        candidates: records there were to choose from.
        hits: how often the followers kept followed in the corpus, where no shorter n-gram says the same.
        hits_of_all: the same of all candidates.
    """

    def __init__(self, rows: list[Int32s], candidates: int, hits: int, hits_of_all: int) -> None:
        self.rows = rows
        self.candidates = candidates
        self.hits = hits
        self.hits_of_all = hits_of_all

    def words(self, max_count: int) -> list[Int32s]:
        """The records as they stand in a file, int32[k, 7] of each order, no count above ``max_count``."""
        laid_out = []
        for rows in self.rows:
            words = np.empty((len(rows), HEAD + 2), np.int32)
            words[:, :MAX_ORDER] = rows[:, :MAX_ORDER]
            words[:, MAX_ORDER] = 1
            words[:, MAX_ORDER + 1] = rows[:, _FOLLOWER]
            words[:, MAX_ORDER + 2] = np.minimum(rows[:, _COUNT], max_count) if max_count else rows[:, _COUNT]
            laid_out.append(words)
        return laid_out


def choose_rows(tables: Sequence[Int32s], budget_bytes: int | None) -> Chosen:
    """The best records for a budget.

    Args:
        tables: n-grams that fire, int32[m, 8], sorted, of each order, by rising order: the n-gram, how often
            it was seen, 1, the best follower, its count.
        budget_bytes: size of the file; None keeps every record that changes a draft.
    """
    values = _values(tables)
    every = np.concatenate([np.empty(0, np.int64), *values])
    keep = every > 0
    room = len(every) if budget_bytes is None else budget_bytes // RECORD_BYTES
    if np.count_nonzero(keep) > room:
        keep = _best(every, np.concatenate([_shares(rows) for rows in tables]), room)
    parts = np.split(keep, np.cumsum([len(rows) for rows in tables])[:-1])
    return Chosen(
        [rows[part] for rows, part in zip(tables, parts, strict=True)],
        len(every),
        int(every[keep].sum()),
        int(every.sum()),
    )


def _shares(rows: Int32s) -> npt.NDArray[np.float32]:
    return (rows[:, _COUNT] / rows[:, _TOTAL]).astype(np.float32)


def _values(tables: Sequence[Int32s]) -> list[npt.NDArray[np.int64]]:
    """Expected correct drafts of each record; 0 where a shorter n-gram drafts the same."""
    tokens = np.unique(np.concatenate([np.unique(rows[:, :MAX_ORDER]) for rows in tables]))
    bits = len(tokens).bit_length()
    if bits * (MAX_ORDER - 1) > _KEY_BITS:  # no vocabulary is that large; then nothing counts 0
        return [rows[:, _COUNT].astype(np.int64) for rows in tables]
    values, shorter = [], list[tuple[int, npt.NDArray[np.int64], Int32s]]()
    for rows in tables:
        order = int(np.count_nonzero(rows[0, :MAX_ORDER] >= 0)) if len(rows) else 0
        ranks = np.searchsorted(tokens, rows[:, :order]).astype(np.int64)
        said = np.full(len(rows), -1, np.int32)
        for n, keys, followers in shorter:  # rising: what a longer one says counts
            asked = _packed(ranks[:, order - n :], bits)
            at = np.minimum(np.searchsorted(keys, asked), max(0, len(keys) - 1))
            known = keys[at] == asked if len(keys) else np.zeros(len(asked), bool)
            said[known] = followers[at[known]]
        values.append(np.where(said == rows[:, _FOLLOWER], 0, rows[:, _COUNT]).astype(np.int64))
        if 0 < order < MAX_ORDER:
            shorter.append((order, _packed(ranks, bits), rows[:, _FOLLOWER]))
    return values


def _packed(ranks: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.int64]:
    """n-grams int64[m, n] as numbers that sort like them."""
    keys = np.zeros(len(ranks), np.int64)
    for column in ranks.T:
        keys = keys << bits | column
    return keys


def _best(values: npt.NDArray[np.int64], shares: npt.NDArray[np.float32], room: int) -> Bools:
    """The ``room`` records of the highest value; of equal ones the surest, then the first."""
    keep = np.zeros(len(values), bool)
    if room <= 0:
        return keep
    threshold = np.partition(values, len(values) - room)[len(values) - room]
    keep[values > threshold] = True
    even = np.flatnonzero(values == threshold)
    left = room - int(np.count_nonzero(keep))
    if threshold > 0:
        keep[even[np.argsort(-shares[even], kind="stable")[:left]]] = True
    return keep
