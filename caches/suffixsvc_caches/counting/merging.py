"""From runs to records: the runs are merged side by side, each worker a range of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Final

from suffixsvc.core.ngram_count import (
    SegmentJob,
    TallyOutput,
    combine_runs,
    split_runs,
    tally_runs,
)
from suffixsvc.values import MAX_TOKEN_ID
from suffixsvc_caches.counting.journal import Journal
from suffixsvc_caches.counting.records import RecordFile, Records

__all__ = [
    "FAN_IN",
    "MERGE_BYTES",
    "MergePart",
    "as_records",
    "merge_part",
    "merge_runs",
    "parts_of",
    "reduce_runs",
]

#: runs that are merged at a time: more would need too many open files and too small buffers
FAN_IN: Final = 64
MERGE_BYTES: Final = 48 << 20  # buffers of all workers together

#: first token, end token, and the names of the files, one for each that is wanted
MergePart = tuple[int, int, tuple[str, ...]]


def reduce_runs(journal: Journal, job: SegmentJob | None = None) -> list[Path]:
    """Merge the runs of a build until they are few; returns them. StoreError, SegmentCancelledError."""
    while len(runs := journal.runs()) > FAN_IN:
        some = runs[:FAN_IN]
        merged = journal.new_run()
        combine_runs(some, merged, memory_bytes=MERGE_BYTES, job=job)
        journal.replace_runs(merged, some)
    return runs


def parts_of(
    runs: Sequence[Path], folder: Path, wanted: Sequence[RecordFile], workers: int
) -> list[MergePart]:
    """How merging is divided among workers; the records do not depend on it."""
    if not runs:
        return []
    bounds = [0, *(split_runs(runs, workers) if workers > 1 else ()), MAX_TOKEN_ID + 1]
    return [
        (first, end, tuple(str(folder / f"{i}-{part}.records") for i in range(len(wanted))))
        for part, (first, end) in enumerate(pairwise(bounds))
        if first < end
    ]


def merge_part(
    runs: Sequence[Path], wanted: Sequence[RecordFile], part: MergePart, memory_bytes: int, job: SegmentJob
) -> list[tuple[int, ...]]:
    """Write one part; records, pairs, bytes, sum of counts and occurrences of each file that is wanted."""
    first, end, names = part
    outputs = [TallyOutput(name, **asdict(each)) for name, each in zip(names, wanted, strict=True)]
    found = tally_runs(runs, outputs, first_token=first, end_token=end, memory_bytes=memory_bytes, job=job)
    return [(each.records, each.pairs, each.bytes, each.count_sum, each.occurrences) for each in found]


def merge_runs(
    journal: Journal,
    wanted: Sequence[RecordFile],
    workers: int,
    on_progress: Callable[[float], None] | None = None,
) -> list[Records]:
    """Merge the runs of a build into records, for each of ``wanted`` those of its order.

    Args:
        on_progress: told now and then how far it is, 0 .. 1.

    Raises:
        InvalidInputError: an order that was not counted. StoreError: the disk.
    """
    runs = reduce_runs(journal)
    parts = parts_of(runs, journal.folder, wanted, workers)
    jobs = [SegmentJob() for _ in parts]

    def merge(i: int) -> list[tuple[int, ...]]:
        return merge_part(runs, wanted, parts[i], MERGE_BYTES // len(parts), jobs[i])

    with ThreadPoolExecutor(max(1, workers)) as pool:
        futures = [pool.submit(merge, i) for i in range(len(parts))]
        try:
            while not all(future.done() for future in futures):
                wait(futures, timeout=0.1)
                if on_progress is not None:
                    on_progress(sum(job.done for job in jobs) / max(1, len(jobs)))
            found = [future.result() for future in futures]
        except BaseException:
            for job in jobs:
                job.cancel()
            raise
    return as_records(wanted, parts, found)


def as_records(
    wanted: Sequence[RecordFile], parts: Sequence[MergePart], found: Sequence[Sequence[tuple[int, ...]]]
) -> list[Records]:
    """What was found, a file that is wanted each."""
    return [
        Records(
            each,
            [Path(names[i]) for _, _, names in parts],
            *(sum(part[i][field] for part in found) for field in range(5)),
        )
        for i, each in enumerate(wanted)
    ]
