"""Array representation of a lookup cache: n-grams, their followers and counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

#: n-grams have 1 to 4 tokens (LLAMA_NGRAM_MAX)
MAX_ORDER: Final = 4
#: words of a file record before its followers: the n-gram and the number of followers
HEAD: Final = MAX_ORDER + 1
#: length of the n-grams that llama.cpp queries in a static cache (LLAMA_NGRAM_STATIC)
STATIC_ORDER: Final = 2
#: fills the unused slots of shorter n-grams (LLAMA_TOKEN_NULL)
FREE: Final = -1
_MOST: Final = 2**31 - 1

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Number = TypeVar("Number", np.int32, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class LookupTable:
    """Records of a lookup cache, in the order of the file.

    Attributes:
        ngrams: int32[m, 4], oldest token first, unused slots -1 at the end.
        starts: int64[m + 1]; record i has ``tokens[starts[i]:starts[i + 1]]``.
        tokens: int32[k], followers.
        counts: int32[k], their counts, >= 1.
    """

    ngrams: Int32s
    starts: Int64s
    tokens: Int32s
    counts: Int32s

    def __len__(self) -> int:
        return len(self.ngrams)

    @property
    def largest_token(self) -> int:
        """The highest token id of all n-grams and followers; -1 if the table is empty."""
        return max(int(ids.max(initial=FREE)) for ids in (self.ngrams, self.tokens))

    def orders(self) -> Int64s:
        """Number of tokens of each n-gram, int64[m]."""
        found: Int64s = (self.ngrams != FREE).sum(axis=1, dtype=np.int64)
        return found

    def sizes(self) -> Int64s:
        """Number of followers of each n-gram, int64[m]."""
        return self.starts[1:] - self.starts[:-1]

    def file_bytes(self) -> int:
        """Size of the file in bytes."""
        return 4 * HEAD * len(self) + 8 * len(self.tokens)

    def selected(self, keep: npt.NDArray[np.bool_]) -> LookupTable:
        """Return the records where ``keep``, bool[m], is true, in their order."""
        sizes = self.sizes()
        pairs = np.repeat(keep, sizes)
        starts = np.concatenate([[0], np.cumsum(sizes[keep])]).astype(np.int64)
        return LookupTable(self.ngrams[keep], starts, self.tokens[pairs], self.counts[pairs])

    def as_loaded(self) -> LookupTable:
        """Return the records that llama.cpp uses after loading.

        Of equal n-grams, and of equal tokens in one record, the first; malformed n-grams and negative tokens
        are dropped.
        """
        kept = self.selected(are_ngrams(self.ngrams) & ~repeated_rows(self.ngrams))
        record_of = np.repeat(np.arange(len(kept)), kept.sizes())
        pairs = (kept.tokens >= 0) & ~repeated_rows(np.stack([record_of, kept.tokens], axis=1))
        sizes = np.bincount(record_of[pairs], minlength=len(kept))
        starts = np.concatenate([[0], np.cumsum(sizes[sizes > 0])]).astype(np.int64)
        return LookupTable(kept.ngrams[sizes > 0], starts, kept.tokens[pairs], kept.counts[pairs])

    def in_order(self) -> LookupTable:
        """Return the records sorted by order, then by tokens; followers by falling count, then by token.

        Tables with equal counts are equal byte for byte afterwards.
        """
        record_of = np.repeat(np.arange(len(self)), self.sizes())
        places = np.empty(len(self), np.int64)
        by_ngram = np.lexsort((*self.ngrams.T[::-1], self.orders()))
        places[by_ngram] = np.arange(len(self))
        pairs = np.lexsort((self.tokens, -self.counts.astype(np.int64), places[record_of]))
        starts = np.concatenate([[0], np.cumsum(self.sizes()[by_ngram])]).astype(np.int64)
        return LookupTable(self.ngrams[by_ngram], starts, self.tokens[pairs], self.counts[pairs])


_NONE: Final = np.empty(0, np.int32)
EMPTY: Final = LookupTable(_NONE.reshape(0, MAX_ORDER), np.zeros(1, np.int64), _NONE, _NONE)


def merge_tables(tables: Iterable[LookupTable]) -> LookupTable:
    """Return the sum of tables, sorted (:meth:`LookupTable.in_order`).

    Equal n-grams within one table are added, too, unlike in llama.cpp's loader. Sums saturate at the largest
    int32.
    """
    given = [EMPTY, *tables]
    ngrams, numbers = unique_rows(np.concatenate([table.ngrams for table in given]))
    records = np.repeat(numbers, np.concatenate([table.sizes() for table in given]))
    tokens = np.concatenate([table.tokens for table in given])
    pairs, places = unique_rows(np.stack([records, tokens], axis=1))
    sums = np.zeros(len(pairs), np.int64)
    np.add.at(sums, places, np.concatenate([table.counts for table in given]))
    starts = np.concatenate([[0], np.cumsum(np.bincount(pairs[:, 0], minlength=len(ngrams)))])
    counts = np.minimum(sums, _MOST).astype(np.int32)
    return LookupTable(ngrams, starts.astype(np.int64), pairs[:, 1].astype(np.int32), counts).in_order()


def are_ngrams(ngrams: Int32s) -> npt.NDArray[np.bool_]:
    """Whether rows, int32[m, 4], are 1 to 4 token ids followed by unused slots only; bool[m]."""
    free = ngrams == FREE
    found: npt.NDArray[np.bool_] = (
        ~free[:, 0] & (ngrams >= FREE).all(axis=1) & ~(free[:, :-1] & ~free[:, 1:]).any(axis=1)
    )
    return found


def unique_rows(rows: npt.NDArray[Number]) -> tuple[npt.NDArray[Number], Int64s]:
    """Return the distinct rows of [n, columns], sorted, and each row's index among them, int64[n]."""
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    first = np.ones(len(rows), bool)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    numbers = np.empty(len(rows), np.int64)
    numbers[order] = np.cumsum(first) - 1
    return ordered[first], numbers


def repeated_rows(rows: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    """Whether an earlier row of [n, columns] is equal; bool[n]."""
    order = np.lexsort(rows.T)  # stable: the first of equal rows stays first
    again = np.zeros(len(rows), bool)
    if len(rows):
        again[order[1:]] = (rows[order[1:]] == rows[order[:-1]]).all(axis=1)
    return again
