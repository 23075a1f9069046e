"""Files of records that merging leaves, and what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from suffixsvc.types import RecordFile, TalliedFile

__all__ = ["RecordFile", "Records"]


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one order, sorted by n-gram: the parts one behind the other.

    Attributes:
        count_sum: of the counts as written.
        occurrences: of n-grams with a follower, before any cut.
    """

    wanted: RecordFile
    parts: Sequence[Path]
    records: int
    pairs: int
    size_bytes: int
    count_sum: int
    occurrences: int

    @classmethod
    def of(cls, wanted: RecordFile, parts: Sequence[TalliedFile]) -> Self:
        """Of the files that hold them, in order."""
        return cls(
            wanted,
            [part.path for part in parts],
            sum(part.records for part in parts),
            sum(part.pairs for part in parts),
            sum(part.size_bytes for part in parts),
            sum(part.count_sum for part in parts),
            sum(part.occurrences for part in parts),
        )
