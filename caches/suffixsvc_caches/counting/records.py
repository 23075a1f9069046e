"""Files of records that merging leaves, and what is in them."""

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
        files: that hold them, one behind the other.
    """

    wanted: RecordFile
    files: Sequence[TalliedFile]

    @property
    def parts(self) -> list[Path]:
        """The files, in order."""
        return [file.path for file in self.files]

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def pairs(self) -> int:
        """Followers of all records."""
        return sum(file.pairs for file in self.files)

    @property
    def count_sum(self) -> int:
        """Of the counts as written."""
        return sum(file.count_sum for file in self.files)
