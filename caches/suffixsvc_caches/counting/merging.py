"""Merging of runs to records, in parallel: each worker merges a range of first tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from suffixsvc.core.ngram_count import SegmentJob, combine_runs, split_runs, tally_files
from suffixsvc.lookup_records import RecordFile, TalliedFile
from suffixsvc.runtime.signal_guard import JoinedThreads
from suffixsvc.values import MAX_TOKEN_ID
from suffixsvc_caches.counting.journal import Journal
from suffixsvc_caches.counting.plan import ignore

#: runs merged at a time; more would need too many open files and too small buffers
FAN_IN: Final = 64
_MERGE_BYTES: Final = 48 << 20  # buffers of all workers of a process together

#: a task, called with ``job=``, a SegmentJob that cancels it and has its progress
Task = Callable[..., Any]
#: progress callback, 0 .. 1
OnProgress = Callable[[float], None]
#: runs tasks in parallel: yields (index, result) as they finish; an error cancels the others
RunTasks = Callable[[Sequence[Task], OnProgress], Iterator[tuple[int, Any]]]


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


def merge_runs(
    journal: Journal,
    wanted: Sequence[RecordFile],
    workers: int,
    on_progress: OnProgress = ignore,
) -> list[Records]:
    """Merge the runs of a build to records.

    Args:
        journal: the work folder.
        wanted: the merge outputs.
        workers: number of threads.
        on_progress: see :data:`OnProgress`.

    Returns:
        The records of each of ``wanted``.

    Raises:
        InvalidInputError: an order that was not counted. StoreError: a file cannot be written.
    """
    with JoinedThreads(max(1, workers)) as pool:
        share = _MERGE_BYTES // max(1, workers)
        return merge_with(partial(run_tasks, pool), journal, wanted, workers, on_progress, share)


def merge_with(
    run: RunTasks,
    journal: Journal,
    wanted: Sequence[RecordFile],
    workers: int,
    on_progress: OnProgress,
    memory_bytes: int = _MERGE_BYTES,
) -> list[Records]:
    """Merge as :func:`merge_runs` does, by tasks with ``memory_bytes`` each."""
    while len(runs := _runs(journal)) > FAN_IN:
        # An incomplete last group is left for the next round.
        groups = [runs[i : i + FAN_IN] for i in range(0, len(runs) - FAN_IN + 1, FAN_IN)]
        merged = [journal.new_run().absolute() for _ in groups]
        tasks: list[Task] = [
            partial(_combine, *each, memory_bytes=memory_bytes) for each in zip(groups, merged, strict=True)
        ]
        for i, _ in run(tasks, ignore):
            journal.replace_runs(merged[i], groups[i])
    bounds = [0, *(split_runs(runs, workers) if workers > 1 and runs else ()), MAX_TOKEN_ID + 1]
    ranges = [(first, end) for first, end in pairwise(bounds) if first < end] if runs else []
    paths = [
        [journal.folder.absolute() / f"{i}-{part}.records" for i in range(len(wanted))]
        for part in range(len(ranges))
    ]
    # The records do not depend on the division into token ranges.
    tasks = [
        partial(
            tally_files,
            runs,
            list(wanted),
            names,
            first_token=first,
            end_token=end,
            memory_bytes=memory_bytes,
        )
        for names, (first, end) in zip(paths, ranges, strict=True)
    ]
    parts: dict[int, list[TalliedFile]] = dict(run(tasks, on_progress))
    return [Records(each, [parts[part][i] for part in sorted(parts)]) for i, each in enumerate(wanted)]


def run_tasks(pool: Executor, tasks: Sequence[Task], on_progress: OnProgress) -> Iterator[tuple[int, Any]]:
    """Run tasks on threads; see :data:`RunTasks`."""
    jobs = [SegmentJob() for _ in tasks]
    futures = {pool.submit(task, job=job): i for i, (task, job) in enumerate(zip(tasks, jobs, strict=True))}
    waiting = set(futures)
    try:
        while waiting:
            done, waiting = wait(waiting, timeout=0.1)
            for future in done:
                yield futures[future], future.result()
            on_progress(sum(job.done for job in jobs) / len(jobs))
    except BaseException:
        for job in jobs:
            job.cancel()
        raise


def _runs(journal: Journal) -> list[Path]:
    return [run.absolute() for run in journal.runs()]


def _combine(runs: Sequence[Path], merged: Path, **options: Any) -> None:
    """As ``combine_runs``, which is native: Ray cannot serialize it."""
    combine_runs(runs, merged, **options)
