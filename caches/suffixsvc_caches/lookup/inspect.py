"""Inspection of lookup caches: statistics, and warnings about llama.cpp's behavior."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from suffixsvc_caches.lookup.algorithm import LAX, STRICT
from suffixsvc_caches.lookup.table import FREE, STATIC_ORDER, Int32s, Int64s, LookupTable, repeated_rows

_INT32: Final = 2**31 - 1
#: factor of llama.cpp's hash of a token
_FIBONACCI: Final = np.uint64(11400714819323198485)
#: followers of an n-gram from which drafting is slow: llama.cpp copies all of them for every token
_WIDE: Final = 1000
#: n-grams with the same hash from which there is a warning
_CROWDED: Final = 16
#: counts of a context cache up to which products with static counts must fit int32
_CONTEXT_COUNT: Final = 4096
#: followers shown of a record
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Record:
    """An n-gram with its best followers, (token, count), and its occurrences."""

    ngram: tuple[int, ...]
    followers: tuple[tuple[int, int], ...]
    total: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """Statistics of a table.

    Attributes:
        static: inspected as a static cache.
        bytes: size of the file.
        ngrams: number of records by length of the n-gram.
        pairs, count: followers of all records, sum of their counts.
        largest_token: -1 if the table is empty.
        firing: records that reach the thresholds for drafting.
        tied: firing records with two best followers, between which llama.cpp's hash map decides.
        dead: records that llama.cpp never queries in a static cache.
        repeated: records of an n-gram that an earlier record has; ignored.
        widest: largest number of followers of a record.
        crowd: largest number of n-grams with the same hash; they are searched linearly.
        overflowing: records with a product that overflows int32 with any context.
        safe_count: largest count of a context cache whose product with a static count here fits int32.
        top: records with the most occurrences.
    """

    static: bool
    bytes: int
    ngrams: dict[int, int]
    pairs: int
    count: int
    largest_token: int
    firing: int
    tied: int
    dead: int
    repeated: int
    widest: int
    crowd: int
    overflowing: int
    safe_count: int
    top: tuple[Record, ...]

    def warnings(self) -> Iterator[str]:
        """Yield warnings for the user."""
        if self.dead:
            yield (f"{self.dead:,} records are not {STATIC_ORDER}-grams: llama.cpp never queries them")
        if self.repeated:
            yield f"{self.repeated:,} records repeat an n-gram: llama.cpp uses only the first"
        if self.crowd >= _CROWDED:
            yield (
                f"{self.crowd:,} n-grams have the same hash in llama.cpp (as do all 2-grams of a token twice "
                "and n-grams of the same tokens in another order): each lookup among them scans a list"
            )
        if self.widest >= _WIDE:
            yield (
                f"an n-gram has {self.widest:,} followers: llama.cpp copies them all for each token it drafts"
            )
        if self.overflowing:
            yield (
                f"{self.overflowing:,} records have counts that overflow int32 when llama.cpp multiplies them"
            )
        elif self.static and self.safe_count < _CONTEXT_COUNT:
            yield (
                f"the largest count overflows int32 once a context has counted more than {self.safe_count:,} "
                "of the same"
            )
        if self.tied:
            yield (
                f"{self.tied:,} n-grams have two best followers: which is drafted depends on the C++ library "
                "that llama.cpp was built with"
            )


def inspect_table(table: LookupTable, *, static: bool, top: int = 0) -> Inspection:
    """Compute the statistics of a table.

    Args:
        table: the records.
        static: inspect it as a static cache, else as a dynamic one.
        top: length limit of ``Inspection.top``.
    """
    orders, sizes, repeated = table.orders(), table.sizes(), repeated_rows(table.ngrams)
    totals, most, best = _sums(table)
    rules = np.array(LAX if static else STRICT, np.int64)
    least, percent = rules[np.clip(orders, 1, len(rules)) - 1].T
    used = (orders == STATIC_ORDER) if static else np.ones(len(table), bool)
    fires = used & ~repeated & (totals >= least) & (100 * most >= percent * totals)
    by_order, records = np.unique(orders, return_counts=True)
    return Inspection(
        static=static,
        bytes=table.file_bytes(),
        ngrams=dict(zip(by_order.tolist(), records.tolist(), strict=True)),
        pairs=len(table.tokens),
        count=int(table.counts.sum(dtype=np.int64)),
        largest_token=table.largest_token,
        firing=int(np.count_nonzero(fires)),
        tied=int(np.count_nonzero(fires & (best > 1))),
        dead=int(np.count_nonzero(~used)),
        repeated=int(np.count_nonzero(repeated)),
        widest=int(sizes.max(initial=0)),
        crowd=_most_collisions(table.ngrams[~repeated]),
        overflowing=int(np.count_nonzero((100 * most > _INT32) | (percent * totals > _INT32))),
        safe_count=_INT32 // (100 * int(most.max(initial=1))),
        top=tuple(_record(table, record) for record in np.argsort(-totals, kind="stable")[:top].tolist()),
    )


def _sums(table: LookupTable) -> tuple[Int64s, Int64s, Int64s]:
    """Sum of each record's counts, the largest count, number of followers with that count; int64[m] each."""
    if not len(table):
        none = np.empty(0, np.int64)
        return none, none, none
    heads, counts = table.starts[:-1], table.counts.astype(np.int64)
    most = np.maximum.reduceat(counts, heads)
    best = np.add.reduceat((counts == np.repeat(most, table.sizes())).astype(np.int64), heads)
    return np.add.reduceat(counts, heads), most, best


def _most_collisions(ngrams: Int32s) -> int:
    """Largest number of n-grams with the same hash in llama.cpp."""
    hashes = np.zeros(len(ngrams), np.uint64)
    for column in ngrams.T:
        hashes ^= column.astype(np.int64).view(np.uint64) * _FIBONACCI
    return int(np.unique(hashes, return_counts=True)[1].max(initial=0))


def _record(table: LookupTable, record: int) -> Record:
    part = slice(int(table.starts[record]), int(table.starts[record + 1]))
    tokens, counts = table.tokens[part], table.counts[part]
    best = np.argsort(-counts.astype(np.int64), kind="stable")[:_SHOWN]
    return Record(
        tuple(token for token in table.ngrams[record].tolist() if token != FREE),
        tuple(zip(tokens[best].tolist(), counts[best].tolist(), strict=True)),
        int(counts.sum(dtype=np.int64)),
    )
