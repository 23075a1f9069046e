"""What is in a lookup cache, and what llama.cpp will make of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from suffixsvc_caches.lookup.algorithm import LAX, STRICT
from suffixsvc_caches.lookup.table import FREE, STATIC_ORDER, Int32s, Int64s, LookupTable, repeated_rows

__all__ = ["Inspection", "Record", "inspect_table"]

_INT32: Final = 2**31 - 1
#: what llama.cpp multiplies each token of an n-gram with before it combines them
_FIBONACCI: Final = np.uint64(11400714819323198485)
#: followers of an n-gram beyond which drafting becomes slow: llama.cpp copies all of them for every token
_WIDE: Final = 1000
#: n-grams of one hash beyond which they are worth a word
_CROWDED: Final = 16
#: a context may count so much of its own; beyond it the product with a static count must still fit
_CONTEXT_COUNT: Final = 4096
#: followers of a record that are shown
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Record:
    """An n-gram with its best followers, (token, count), and how often it was seen."""

    ngram: tuple[int, ...]
    followers: tuple[tuple[int, int], ...]
    total: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a table holds.

    Attributes:
        static: whether it is judged as a static cache.
        bytes: size of the file.
        ngrams: records by the number of tokens of their n-gram.
        pairs, count: followers of all records, sum of their counts.
        largest_token: -1 where the table is empty.
        firing: records that can make a draft by themselves: seen often enough, and one follower has enough.
        tied: of those the ones with two best followers, between which llama.cpp's hash map decides.
        dead: records that a static cache is never asked for.
        repeated: records of an n-gram that stands further up; ignored.
        widest: followers of the record that has the most.
        crowd: n-grams of the hash that has the most; they are looked through one by one.
        overflowing: records with a product that int32 does not hold, whatever the context.
        safe_count: the largest count of a context cache whose product with a static count here fits int32.
        top: records seen most often.
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
        """What a user may want to put right, in words."""
        if self.dead:
            yield (
                f"{self.dead:,} records are no {STATIC_ORDER}-grams: a static cache is never asked for them"
            )
        if self.repeated:
            yield f"{self.repeated:,} records repeat an n-gram: llama.cpp takes the first, drops the others"
        if self.crowd >= _CROWDED:
            yield (
                f"{self.crowd:,} n-grams have the same hash in llama.cpp (all 2-grams of a token twice do, "
                "and those of the same tokens in another order): each look-up among them walks a list"
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
    """Look through a table.

    Args:
        static: judge it as a static cache, else as a dynamic one.
        top: so many records are shown.
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
        crowd=_crowd(table.ngrams[~repeated]),
        overflowing=int(np.count_nonzero((100 * most > _INT32) | (percent * totals > _INT32))),
        safe_count=_INT32 // (100 * int(most.max(initial=1))),
        top=tuple(_record(table, record) for record in np.argsort(-totals, kind="stable")[:top].tolist()),
    )


def _sums(table: LookupTable) -> tuple[Int64s, Int64s, Int64s]:
    """Of each record: the sum of its counts, the largest, and how many followers have it. int64[m]."""
    if not len(table):
        none = np.empty(0, np.int64)
        return none, none, none
    heads, counts = table.starts[:-1], table.counts.astype(np.int64)
    most = np.maximum.reduceat(counts, heads)
    best = np.add.reduceat((counts == np.repeat(most, table.sizes())).astype(np.int64), heads)
    return np.add.reduceat(counts, heads), most, best


def _crowd(ngrams: Int32s) -> int:
    """How many n-grams have the most common of llama.cpp's hashes."""
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
