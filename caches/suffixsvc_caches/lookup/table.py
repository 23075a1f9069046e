"""Array representation of a lookup cache: n-grams, their followers and counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import InvalidInputError
from suffixsvc.values import MAX_TOKEN_ID

__all__ = ["MAX_ORDER", "STATIC_ORDER", "LookupTable", "merge_tables"]

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

    @classmethod
    def of(cls, records: Mapping[Sequence[int], Mapping[int, int]]) -> Self:
        """Build a small table from dictionaries.

        Raises:
            InvalidInputError: an n-gram, a token or a count is out of range.
        """
        ngrams = np.full((len(records), MAX_ORDER), FREE, np.int32)
        sizes, tokens, counts = [0], list[int](), list[int]()
        for i, (ngram, followers) in enumerate(records.items()):
            if not 1 <= len(ngram) <= MAX_ORDER or not followers:
                raise InvalidInputError(
                    f"a record must have 1 to {MAX_ORDER} tokens and 1 or more followers",
                    got=f"{tuple(ngram)}: {dict(followers)}"[:80],
                )
            _require(ngram, 0, "a token of an n-gram")
            _require(followers.keys(), 0, "a follower")
            _require(followers.values(), 1, "a count")
            ngrams[i, : len(ngram)] = ngram
            sizes.append(len(followers))
            tokens += followers.keys()
            counts += followers.values()
        return cls(
            ngrams, np.cumsum(sizes, dtype=np.int64), np.array(tokens, np.int32), np.array(counts, np.int32)
        )

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

    def as_dict(self) -> dict[tuple[int, ...], dict[int, int]]:
        """Return {n-gram: {follower: count}} as llama.cpp's loader builds it.

        Of equal n-grams, and of equal tokens in one record, the first counts.
        """
        found: dict[tuple[int, ...], dict[int, int]] = {}
        for ngram, a, b in zip(
            self.ngrams.tolist(), self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True
        ):
            key = tuple(token for token in ngram if token != FREE)
            if key not in found:
                found[key] = {}
                for token, count in zip(self.tokens[a:b].tolist(), self.counts[a:b].tolist(), strict=True):
                    found[key].setdefault(token, count)
        return found

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
        _, first = np.unique(self.ngrams, axis=0, return_index=True)
        keep = np.zeros(len(self), bool)
        keep[first] = True
        kept = self.selected(keep & are_ngrams(self.ngrams))
        record_of = np.repeat(np.arange(len(kept)), kept.sizes())
        _, first = np.unique(
            np.stack([record_of, kept.tokens.astype(np.int64)], axis=1), axis=0, return_index=True
        )
        pairs = np.zeros(len(kept.tokens), bool)
        pairs[first] = True
        pairs &= kept.tokens >= 0
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


def merge_tables(tables: Iterable[LookupTable]) -> LookupTable:
    """Return the sum of tables, sorted (:meth:`LookupTable.in_order`).

    Equal n-grams within one table are added, too, unlike in llama.cpp's loader. Sums saturate at the largest
    int32.
    """
    given = list(tables)
    if not given:
        return LookupTable.of({})
    ngrams = np.concatenate([table.ngrams for table in given])
    offsets = np.cumsum([0, *map(len, given)])
    record_of = np.concatenate(
        [np.repeat(np.arange(len(t)), t.sizes()) + first for t, first in zip(given, offsets, strict=False)]
    )
    unique, numbers = unique_rows(ngrams)
    keys = np.stack([numbers[record_of], np.concatenate([table.tokens for table in given]).astype(np.int64)])
    order = np.lexsort((keys[1], keys[0]))
    keys, counts = keys[:, order], np.concatenate([t.counts for t in given]).astype(np.int64)[order]
    first = np.ones(keys.shape[1], bool)
    first[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    sums = np.minimum(np.add.reduceat(counts, np.flatnonzero(first)), _MOST) if len(counts) else counts
    sizes = np.bincount(keys[0, first], minlength=len(unique))
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return LookupTable(
        unique.astype(np.int32), starts, keys[1, first].astype(np.int32), sums.astype(np.int32)
    ).in_order()


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


def _require(values: Iterable[int], least: int, what: str) -> None:
    for value in values:
        if isinstance(value, bool) or not least <= value <= MAX_TOKEN_ID:
            raise InvalidInputError(f"{what} must be {least} .. {MAX_TOKEN_ID}", got=value)
