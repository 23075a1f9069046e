"""Files of records that merging leaves, and what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["RecordFile", "Records"]


@dataclass(frozen=True, slots=True)
class RecordFile:
    """Which records of one order are wanted; the fields of ``suffixsvc.core.ngram_count.TallyOutput``.

    Attributes:
        order: tokens of the n-grams.
        slots: of a record, >= order; 4 in llama.cpp's files.
        min_count: rarer followers are left out.
        top: followers of an n-gram at most; 0 = all.
        max_count: of the best follower, the others are scaled with it; 0 = what int32 holds.
        least, percent: an n-gram fires where it was seen so often and its best follower has so much of it.
        firing: only n-grams that fire.
        unique: the smaller of two best followers gets one more.
        totals: the last slot holds how often the n-gram was seen.
    """

    order: int
    slots: int = 4
    min_count: int = 1
    top: int = 0
    max_count: int = 0
    least: int = 0
    percent: int = 0
    firing: bool = False
    unique: bool = False
    totals: bool = False


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one order, sorted by n-gram: the parts one behind the other.

    Attributes:
        occurrences: of n-grams with a follower, before any cut.
    """

    wanted: RecordFile
    parts: Sequence[Path]
    records: int
    pairs: int
    size_bytes: int
    occurrences: int
