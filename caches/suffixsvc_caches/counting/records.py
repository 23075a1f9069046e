"""Record files written by merging, and their totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from suffixsvc.lookup_records import RecordFile, TalliedFile

__all__ = ["RecordFile", "Records"]


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one order, sorted by n-gram.

    Attributes:
        wanted: the merge output.
        files: their files, in order.
    """

    wanted: RecordFile
    files: Sequence[TalliedFile]

    @property
    def parts(self) -> list[Path]:
        """The files, in order."""
        return [file.path for file in self.files]

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(file.records for file in self.files)

    @property
    def pairs(self) -> int:
        """Number of followers of all records."""
        return sum(file.pairs for file in self.files)

    @property
    def count_sum(self) -> int:
        """Sum of the counts as written."""
        return sum(file.count_sum for file in self.files)
