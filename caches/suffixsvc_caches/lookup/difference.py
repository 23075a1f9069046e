"""Two lookup caches side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from suffixsvc_caches.lookup.table import FREE, LookupTable, repeated_rows, unique_rows

__all__ = ["Change", "Difference", "compare_tables"]


@dataclass(frozen=True, slots=True)
class Change:
    """A follower whose count differs; 0 = not there."""

    ngram: tuple[int, ...]
    token: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Difference:
    """What lies between two tables.

    Attributes:
        ngrams: records only in the first, in both, only in the second.
        pairs: followers only in the first, in both, only in the second.
        changed: followers in both whose counts differ.
        largest: the followers whose counts differ most, those of one table among them.
    """

    ngrams: tuple[int, int, int]
    pairs: tuple[int, int, int]
    changed: int
    largest: tuple[Change, ...]

    @property
    def equal(self) -> bool:
        """Whether both count the same, in whatever order."""
        return not (self.pairs[0] or self.pairs[2] or self.changed)


def compare_tables(first: LookupTable, second: LookupTable, *, top: int = 10) -> Difference:
    """Compare what two tables count, as llama.cpp reads them: of equal n-grams, and of equal tokens in one
    record, the first counts."""
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
    """Of bool[2, n]: only in the first, in both, only in the second."""
    a, b = in_table
    return int((a & ~b).sum()), int((a & b).sum()), int((b & ~a).sum())
