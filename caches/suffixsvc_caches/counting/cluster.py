"""Counting on a Ray cluster: each task counts one log with the worker of local counting.

    logs ── one task each ──> runs in the work folder ── one task per group, while many ──> fewer runs
                                                      ── one task per token range ────────> records

Logs, tokenizer and work folder must be on shared storage with the same paths on all machines, and this
package must be installed on all of them. Tasks return file names and counts; the calling process writes the
journal. Runs of a failed task have no journal entry: they are removed, and the log is counted again.

Ray serializes task arguments by its own means, including pickle; this module reads and writes no pickles.
"""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from suffixsvc.core.ngram_count import SegmentJob
from suffixsvc.errors import MissingExtraError
from suffixsvc.lookup_records import RecordFile
from suffixsvc_caches.counting.batches import BatchReader, response_digest
from suffixsvc_caches.counting.journal import Journal
from suffixsvc_caches.counting.local import counter_bytes, open_spool
from suffixsvc_caches.counting.merging import OnProgress, Records, Task, merge_with
from suffixsvc_caches.counting.plan import CountPlan, CountResult, Progress, ignore
from suffixsvc_caches.counting.worker import Worker
from suffixsvc_caches.logs import ReadReport
from suffixsvc_caches.tokenizers.base import Tokenizer
from suffixsvc_caches.tokenizers.load import TokenizerSource, require_fingerprint

_WAIT_SECONDS = 0.2


def count_on_cluster(
    plan: CountPlan,
    journal: Journal,
    on_progress: Callable[[Progress], None] = ignore,
    *,
    source: TokenizerSource | None = None,
) -> CountResult:
    """Count as :func:`suffixsvc_caches.counting.local.count_logs` does, with the same batches: each can
    resume the other's builds.

    Args:
        plan: the build.
        journal: the work folder.
        on_progress: progress callback.
        source: the tokenizer that tasks load; None for logs of token ids.

    Raises:
        MissingExtraError: Ray is not installed. Otherwise as ``count_logs``.
    """
    resumed = journal.tokens
    progress = Progress(0, sum(file.size for file in plan.files), resumed)
    report = ReadReport()
    # Tokenizers are not serialized: each process loads its own. Paths are absolute, because the working
    # directory of a task may differ.
    files = [replace(file, path=file.path.absolute()) for file in plan.files]
    bare = replace(plan, tokenizer=None, files=files)
    source = source and replace(source, path=source.path.absolute())
    folder = journal.folder.absolute()
    with _cluster(plan.options.workers) as ray:
        skips = _skips(ray, bare) if plan.options.dedupe else {}
        count = ray.remote(num_cpus=1, max_retries=0)(_count_log)
        pending: dict[Any, int] = {}
        for index, file in enumerate(plan.files):
            if (complete := journal.report_of(index)) is not None:
                report.merge(ReadReport.from_dict(complete))
                progress.bytes_read += file.size
                continue
            done = journal.batches_of(index)
            pending[count.remote(bare, source, folder, index, done, skips.get(index))] = index
        known = plan.tokenizer.fingerprint if plan.tokenizer else journal.fingerprint
        for index, result in _finished(ray, pending, partial(on_progress, progress)):
            if known and result.fingerprint:  # each task has checked its own log only
                require_fingerprint(result.fingerprint, known, str(plan.files[index].path))
            known = known or result.fingerprint
            journal.add_runs(result.runs, result.batches, result.tokens, result.calls)
            if journal.end_of(index) is None:
                journal.add_end(index, result.ends, result.report.as_dict(), result.fingerprint)
            report.merge(result.report)
            progress.bytes_read += plan.files[index].size
            progress.tokens += result.tokens
    duplicates = sum(int(np.count_nonzero(skip)) for skip in skips.values())
    return CountResult(journal.runs(), report, journal.calls, journal.tokens, duplicates, known, resumed)


def merge_on_cluster(
    journal: Journal,
    wanted: Sequence[RecordFile],
    workers: int,
    on_progress: OnProgress = ignore,
) -> list[Records]:
    """Merge as :func:`suffixsvc_caches.counting.merging.merge_runs` does."""
    with _cluster(workers) as ray:
        remote = ray.remote(num_cpus=1, max_retries=0)(_run)

        def run(tasks: Sequence[Task], on_progress: OnProgress) -> Iterator[tuple[int, Any]]:
            pending = {remote.remote(task): i for i, task in enumerate(tasks)}
            for done, found in enumerate(_finished(ray, pending, lambda: None), 1):
                yield found
                on_progress(done / len(tasks))

        return merge_with(run, journal, wanted, workers, on_progress)


# ------------------------------------------------------------------------------------------------- in a task


@dataclass(slots=True)
class _TaskRuns:
    """Result of a counting task, and its destination of runs.

    Attributes:
        folder: the work folder.
        runs, batches, tokens, calls: what the journal is to record.
        ends: number of batches of the log.
        report: counts and faults of reading.
        fingerprint: tokenizer of the ids; "" = unknown.
    """

    folder: Path
    runs: list[Path] = field(default_factory=list)
    batches: list[tuple[int, int]] = field(default_factory=list)
    tokens: int = 0
    calls: int = 0
    ends: int = 0
    report: ReadReport = field(default_factory=ReadReport)
    fingerprint: str = ""

    def new_run(self) -> Path:
        return self.folder / f"{uuid.uuid4().hex}.run"

    def add_runs(
        self, runs: Iterable[Path], batches: Iterable[tuple[int, int]], tokens: int, calls: int
    ) -> None:
        self.runs += runs
        self.batches += batches
        self.tokens += tokens
        self.calls += calls


@cache
def _load_tokenizer(source: TokenizerSource) -> Tokenizer:
    return source.load()


def _count_log(
    bare: CountPlan,
    source: TokenizerSource | None,
    folder: Path,
    index: int,
    done: set[int],
    skip: npt.NDArray[np.bool_] | None,
) -> _TaskRuns:
    plan = replace(bare, tokenizer=_load_tokenizer(source) if source else None)
    result = _TaskRuns(folder)
    share = counter_bytes(replace(plan.options, workers=1), encodes=plan.tokenizer is not None)
    worker = Worker(plan, result, share, open_spool(plan, folder))
    again = iter(() if skip is None else skip.tolist())  # calls arrive in the order of the mask
    reader = BatchReader(plan, None if skip is None else lambda _digest: not next(again))
    for batch in reader.batches(index, plan.files[index], result.report):
        result.ends += 1
        if batch.number not in done:
            worker.count(batch)
    worker.flush()
    result.fingerprint = reader.fingerprint
    return result


def _digests(bare: CountPlan, index: int) -> npt.NDArray[np.void]:
    """Digests of the responses of a log, V16[calls]."""
    raw = b"".join(response_digest(call.response) for call in bare.calls(bare.files[index], ReadReport()))
    return np.frombuffer(raw, np.dtype("V16"))


def _run(task: Task) -> Any:
    return task(job=SegmentJob())


# ------------------------------------------------------------------------------------------ in this process


@contextlib.contextmanager
def _cluster(workers: int) -> Iterator[Any]:
    """Connect to Ray: the cluster of this process or of RAY_ADDRESS, else a new local one."""
    try:
        import ray  # noqa: PLC0415 - optional, and slow to load
    except ModuleNotFoundError:
        raise MissingExtraError("cluster", "ray") from None
    if ray.is_initialized():
        yield ray
        return
    named = os.environ.get("RAY_ADDRESS")
    own: dict[str, Any] = {} if named else {"num_cpus": workers, "include_dashboard": False}
    ray.init(logging_level=logging.WARNING, log_to_driver=False, **own)
    try:
        yield ray
    finally:
        ray.shutdown()


def _finished(ray: Any, pending: dict[Any, Any], meanwhile: Callable[[], None]) -> Iterator[tuple[Any, Any]]:
    """Yield (key, result) of tasks as they finish; the first error is unwrapped and cancels the others."""
    waiting = list(pending)
    try:
        while waiting:
            done, waiting = ray.wait(waiting, timeout=_WAIT_SECONDS)
            meanwhile()
            for each in done:
                try:
                    result = ray.get(each)
                except ray.exceptions.RayTaskError as error:
                    raise (error.cause or error) from None
                yield pending[each], result
    except BaseException:
        for each in waiting:
            ray.cancel(each)
        raise


def _skips(ray: Any, bare: CountPlan) -> dict[int, npt.NDArray[np.bool_]]:
    """For each log, the mask of calls whose response an earlier call of any log has; bool[calls]."""
    look = ray.remote(num_cpus=1)(_digests)
    found = ray.get([look.remote(bare, index) for index in range(len(bare.files))])
    every = np.concatenate([np.empty(0, np.dtype("V16")), *found])
    _, first = np.unique(every, return_index=True)
    again = np.ones(len(every), bool)
    again[first] = False
    parts = np.split(again, np.cumsum([len(each) for each in found])[:-1])
    return dict(enumerate(parts))
