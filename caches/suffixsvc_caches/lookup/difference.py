"""Comparison of two lookup caches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from suffixsvc_caches.lookup.table import FREE, LookupTable, repeated_rows, unique_rows


@dataclass(frozen=True, slots=True)
class Change:
    """A follower whose count differs between two tables; a count of 0 means absent."""

    ngram: tuple[int, ...]
    token: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Differences between two tables.

    Attributes:
        ngrams: number of records only in the first table, in both, only in the second.
        pairs: number of followers only in the first table, in both, only in the second.
        changed: number of followers in both tables whose counts differ.
        largest: the followers with the largest differences, including those in one table only.
    """

    ngrams: tuple[int, int, int]
    pairs: tuple[int, int, int]
    changed: int
    largest: tuple[Change, ...]

    @property
    def equal(self) -> bool:
        """Whether both tables have the same counts, in any order."""
        return not (self.pairs[0] or self.pairs[2] or self.changed)


def compare_tables(first: LookupTable, second: LookupTable, *, top: int = 10) -> Difference:
    """Compare two tables as llama.cpp reads them: of equal n-grams, and of equal tokens in one record, the
    first counts.

    Args:
        first, second: the tables.
        top: length limit of ``Difference.largest``.
    """
    tables = [table.selected(~repeated_rows(table.ngrams)) for table in (first, second)]
    ngrams, numbers = unique_rows(np.concatenate([table.ngrams for table in tables]))
    split = len(tables[0])
    in_table = np.zeros((2, len(ngrams)), bool)
    in_table[0, numbers[:split]] = in_table[1, numbers[split:]] = True
    records = np.repeat(numbers, np.concatenate([table.sizes() for table in tables]))
    tokens = np.concatenate([table.tokens for table in tables])
    pairs, places = unique_rows(np.stack([records, tokens], axis=1))
    counts = np.zeros((2, len(pairs)), np.int64)
    split = len(tables[0].tokens)
    for row, at, table in zip(counts, (places[:split], places[split:]), tables, strict=True):
        row[at[::-1]] = table.counts[::-1]
    largest = np.argsort(-np.abs(counts[1] - counts[0]), kind="stable")[:top]
    return Difference(
        _parts(in_table),
        _parts(counts > 0),
        int(np.count_nonzero((counts > 0).all(axis=0) & (counts[0] != counts[1]))),
        tuple(
            Change(
                tuple(token for token in ngrams[pairs[i, 0]].tolist() if token != FREE),
                int(pairs[i, 1]),
                int(counts[0, i]),
                int(counts[1, i]),
            )
            for i in largest.tolist()
            if counts[0, i] != counts[1, i]
        ),
    )


def _parts(in_table: npt.NDArray[np.bool_]) -> tuple[int, int, int]:
    """Counts of the columns of bool[2, n] that are set only in the first row, in both, only in the second."""
    a, b = in_table
    return int((a & ~b).sum()), int((a & b).sum()), int((b & ~a).sum())
