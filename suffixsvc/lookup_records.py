"""Selections of n-gram counts and the files they are written to: records of llama.cpp's lookup caches.

The engine, the client, the service and the offline builder share these types.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A selection of n-grams of one order and of their followers, as records of llama.cpp's lookup caches.

    An n-gram *fires* if its count and the share of its best follower reach ``least`` and ``percent``. Cuts
    preserve whether an n-gram fires.

    Attributes:
        order: tokens of the n-grams.
        slots: token slots of a record, >= order; 4 in llama.cpp's files.
        min_count: minimum count of a follower; rarer ones are dropped.
        top: maximum number of followers per n-gram; 0 = all.
        max_count: maximum count of the best follower, to which all followers are scaled; 0 = int32's maximum.
        least: minimum count of an n-gram that fires.
        percent: minimum share of its best follower, in percent, of an n-gram that fires.
        firing: only n-grams that fire.
        unique: break ties between the two best followers: the smaller token gets one more.
        totals: store the n-gram's count in the last slot, which must be free then.
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
class TalliedFile:
    """A file of records that was written for a :class:`RecordFile`.

    Attributes:
        path: the file.
        records: n-grams in it.
        pairs: (n-gram, follower) pairs in it.
        size_bytes: of the file.
        count_sum: sum of the counts as written.
        occurrences: occurrences of n-grams with a follower, before any cut.
    """

    path: Path
    records: int
    pairs: int
    size_bytes: int
    count_sum: int
    occurrences: int
