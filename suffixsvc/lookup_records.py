"""What an export or a build asks of n-gram counts, and the files that answer: records of llama.cpp's lookup
caches. The engine, the client, the service and the offline builder all speak of it so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["RecordFile", "TalliedFile"]


@dataclass(frozen=True, slots=True)
class RecordFile:
    """Which n-grams of one order, and what of their followers, as records of llama.cpp's lookup caches.

    An n-gram *fires* where it was seen often enough and its best follower has enough of it: no cut makes one
    fire that did not, or silences one that did.

    Attributes:
        order: tokens of the n-grams.
        slots: of a record, >= order; 4 in llama.cpp's files.
        min_count: rarer followers are left out.
        top: followers of an n-gram at most; 0 = all.
        max_count: of the best follower, the others are scaled with it; 0 = what int32 holds.
        least, percent: an n-gram fires where it was seen so often and its best follower has so much of it.
        firing: only n-grams that fire.
        unique: the smaller of two best followers gets one more.
        totals: the last slot, which no order needs then, holds how often the n-gram was seen.
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
        count_sum: of the counts as written.
        occurrences: of n-grams with a follower, before any cut.
    """

    path: Path
    records: int
    pairs: int
    size_bytes: int
    count_sum: int
    occurrences: int
