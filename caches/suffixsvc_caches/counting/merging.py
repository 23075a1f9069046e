"""Merging of runs to records, in parallel: each worker merges a range of first tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

from suffixsvc.core.ngram_count import SegmentJob, combine_runs, split_runs, tally_files
from suffixsvc.lookup_records import TalliedFile
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
]

#: runs merged at a time; more would need too many open files and too small buffers
FAN_IN: Final = 64
MERGE_BYTES: Final = 48 << 20  # buffers of all workers together

#: first token, end token, and paths of the output files
MergePart = tuple[int, int, tuple[str, ...]]

T = TypeVar("T")


def parts_of(
    runs: Sequence[Path], folder: Path, wanted: Sequence[RecordFile], workers: int
) -> list[MergePart]:
    """Divide merging into token ranges for workers; the records do not depend on the division."""
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
) -> list[TalliedFile]:
    """Merge one token range; write a file for each of ``wanted``."""
    first, end, names = part
    return tally_files(
        runs,
        wanted,
        [Path(name) for name in names],
        first_token=first,
        end_token=end,
        memory_bytes=memory_bytes,
        job=job,
    )


def merge_runs(
    journal: Journal,
    wanted: Sequence[RecordFile],
    workers: int,
    on_progress: Callable[[float], None] | None = None,
) -> list[Records]:
    """Merge the runs of a build to records.

    Args:
        journal: the work folder.
        wanted: the merge outputs.
        workers: number of threads.
        on_progress: progress callback, 0 .. 1.

    Returns:
        The records of each of ``wanted``.

    Raises:
        InvalidInputError: an order that was not counted. StoreError: a file cannot be written.
    """
    with ThreadPoolExecutor(max(1, workers)) as pool:
        while len(runs := journal.runs()) > FAN_IN:
            _merge_groups(pool, journal, runs, MERGE_BYTES // max(1, workers))
        parts = parts_of(runs, journal.folder, wanted, workers)
        share = MERGE_BYTES // max(1, len(parts))
        found = _run_tasks(
            pool, [partial(merge_part, runs, wanted, part, share) for part in parts], on_progress
        )
    return as_records(wanted, found)


def _merge_groups(
    pool: ThreadPoolExecutor, journal: Journal, runs: Sequence[Path], memory_bytes: int
) -> None:
    """Merge groups of runs to one run each, in parallel; record each result in the journal."""

    def merge(some: Sequence[Path], merged: Path, job: SegmentJob) -> None:
        combine_runs(some, merged, memory_bytes=memory_bytes, job=job)
        journal.replace_runs(merged, some)

    # An incomplete last group is left for the next round.
    groups = [runs[i : i + FAN_IN] for i in range(0, len(runs) - FAN_IN + 1, FAN_IN)]
    _run_tasks(pool, [partial(merge, some, journal.new_run()) for some in groups], None)


def _run_tasks(
    pool: ThreadPoolExecutor,
    tasks: Sequence[Callable[[SegmentJob], T]],
    on_progress: Callable[[float], None] | None,
) -> list[T]:
    """Run tasks and return their results; the first error or interrupt cancels all of them."""
    jobs = [SegmentJob() for _ in tasks]
    futures = [pool.submit(task, job) for task, job in zip(tasks, jobs, strict=True)]
    try:
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, timeout=0.1)
            for future in done:
                future.result()
            if on_progress is not None:
                on_progress(sum(job.done for job in jobs) / len(jobs))
    except BaseException:
        for job in jobs:
            job.cancel()
        raise
    return [future.result() for future in futures]


def as_records(wanted: Sequence[RecordFile], parts: Sequence[Sequence[TalliedFile]]) -> list[Records]:
    """Combine the files of all parts to the records of each of ``wanted``."""
    return [Records(each, [part[i] for part in parts]) for i, each in enumerate(wanted)]
