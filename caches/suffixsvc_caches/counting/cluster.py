"""Counting on a Ray cluster: a task counts a log, with the worker that counts on one machine.

    logs ── a task each ──> runs in the work folder ── a task a group, while many ──> fewer runs
                                                    ── a task a range of tokens ────> records

Logs, tokenizer and work folder lie on storage that all machines see under the same paths, and this package is
installed on all of them. Tasks answer names and numbers; the journal is kept by the process that asked. Runs
of a task that failed are in no line of the journal: they are removed, and the log is counted again.

Ray hands the arguments of a task from process to process by its own means, pickle among them; nothing of that
is written or read here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from suffixsvc.core.ngram_count import SegmentJob, combine_runs
from suffixsvc.errors import MissingExtraError
from suffixsvc.lookup_records import TalliedFile
from suffixsvc_caches.counting.batches import BatchReader, digest_of
from suffixsvc_caches.counting.journal import Journal
from suffixsvc_caches.counting.local import counter_bytes, open_spool
from suffixsvc_caches.counting.merging import FAN_IN, MERGE_BYTES, MergePart, as_records, merge_part, parts_of
from suffixsvc_caches.counting.plan import Counted, CountPlan, Progress
from suffixsvc_caches.counting.records import RecordFile, Records
from suffixsvc_caches.counting.worker import Worker
from suffixsvc_caches.logs import LogTally
from suffixsvc_caches.tokenizers import Tokenizer, TokenizerSource, require_fingerprint

__all__ = ["count_on_cluster", "merge_on_cluster"]

_WAIT_SECONDS = 0.2


def count_on_cluster(
    plan: CountPlan,
    source: TokenizerSource | None,
    journal: Journal,
    on_progress: Callable[[Progress], None] | None = None,
) -> Counted:
    """As :func:`suffixsvc_caches.counting.count_logs`, by the same batches: either goes on with
    what the other left.

    Args:
        source: the tokenizer, for the tasks to load; None for logs of token ids.

    Raises:
        MissingExtraError: Ray is not installed. Otherwise as ``count_logs``.
    """
    resumed = journal.tokens
    progress = Progress(0, sum(file.size for file in plan.files), resumed, journal.calls)
    tally = LogTally()
    # A tokenizer does not travel: every process of the cluster loads it once. Their folder need not be ours.
    files = [replace(file, path=file.path.absolute()) for file in plan.files]
    bare = replace(plan, tokenizer=None, files=files)
    source = source and replace(source, path=source.path.absolute())
    folder = journal.folder.absolute()
    with _cluster(plan.options.workers) as ray:
        skips = _skips(ray, bare) if plan.options.dedupe else {}
        count = ray.remote(num_cpus=1, max_retries=0)(_count_log)
        pending: dict[Any, int] = {}
        for index, file in enumerate(plan.files):
            if (end := journal.end_of(index)) is not None and journal.is_whole(index):
                tally.merge(LogTally.from_dict(end[1]))
                progress.bytes_read += file.size
                continue
            done = journal.batches_of(index)
            pending[count.remote(bare, source, folder, index, done, skips.get(index))] = index
        known = plan.tokenizer.fingerprint if plan.tokenizer else journal.fingerprint
        for index, answer in _finished(ray, pending, lambda: _tell(on_progress, progress)):
            if known and answer.fingerprint:  # each task saw its own log only
                require_fingerprint(answer.fingerprint, known, str(plan.files[index].path))
            known = known or answer.fingerprint
            journal.add_runs(map(Path, answer.runs), answer.batches, answer.tokens, answer.calls)
            if journal.end_of(index) is None:
                journal.add_end(index, answer.ends, answer.tally, answer.fingerprint)
            tally.merge(LogTally.from_dict(answer.tally))
            progress.bytes_read += plan.files[index].size
            progress.tokens += answer.tokens
            progress.calls += answer.calls
    duplicates = sum(int(np.count_nonzero(skip)) for skip in skips.values())
    return Counted(journal.runs(), tally, journal.calls, journal.tokens, duplicates, known, resumed)


def merge_on_cluster(
    journal: Journal,
    wanted: Sequence[RecordFile],
    workers: int,
    on_progress: Callable[[float], None] | None = None,
) -> list[Records]:
    """As :func:`suffixsvc_caches.counting.merge_runs`."""
    folder = journal.folder.absolute()
    with _cluster(workers) as ray:
        combine = ray.remote(num_cpus=1, max_retries=0)(_combine)
        while len(runs := journal.runs()) > FAN_IN:
            groups = [runs[i : i + FAN_IN] for i in range(0, len(runs), FAN_IN)]
            names = {
                combine.remote(_absolute(group), (run := journal.new_run()).absolute()): (run, group)
                for group in groups
            }
            for (run, group), _ in _finished(ray, names, lambda: None):
                journal.replace_runs(run, group)
        parts = parts_of(runs, folder, wanted, workers)
        merge = ray.remote(num_cpus=1, max_retries=0)(_merge)
        tasks = {merge.remote(_absolute(runs), list(wanted), part): i for i, part in enumerate(parts)}
        found: list[Sequence[TalliedFile]] = [() for _ in parts]
        for done, (i, answer) in enumerate(_finished(ray, tasks, lambda: None), 1):
            found[i] = answer
            if on_progress is not None:
                on_progress(done / len(parts))
    return as_records(wanted, found)


# ------------------------------------------------------------------------------------------------- in a task


@dataclass(slots=True)
class _Answer:
    """What a task says of its log: runs, and the (file, batch) in them; how many batches the log has."""

    runs: list[str] = field(default_factory=list)
    batches: list[tuple[int, int]] = field(default_factory=list)
    tokens: int = 0
    calls: int = 0
    ends: int = 0
    tally: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""


class _TaskFolder:
    """The work folder as a task sees it: it writes runs and leaves the journal alone."""

    def __init__(self, folder: Path, answer: _Answer) -> None:
        self._folder = folder
        self._answer = answer

    def new_run(self) -> Path:
        return self._folder / f"{uuid.uuid4().hex}.run"

    def add_runs(
        self, runs: Iterable[Path], batches: Iterable[tuple[int, int]], tokens: int, calls: int
    ) -> None:
        self._answer.runs += map(str, runs)
        self._answer.batches += batches
        self._answer.tokens += tokens
        self._answer.calls += calls


class _Skip:
    """Stands for the responses that came before: which calls of a log are duplicates is known already."""

    def __init__(self, skip: npt.NDArray[np.bool_]) -> None:
        self._skip = iter(skip.tolist())

    def add(self, digest: bytes) -> bool:
        del digest  # the calls come in the order in which they were compared
        return not next(self._skip)


@cache
def _loaded(source: TokenizerSource) -> Tokenizer:
    return source.load()


def _count_log(
    bare: CountPlan,
    source: TokenizerSource | None,
    folder: Path,
    index: int,
    done: set[int],
    skip: npt.NDArray[np.bool_] | None,
) -> _Answer:
    plan = replace(bare, tokenizer=_loaded(source) if source else None)
    answer = _Answer()
    share = counter_bytes(replace(plan.options, workers=1), encodes=plan.tokenizer is not None)
    worker = Worker(plan, _TaskFolder(folder, answer), share, open_spool(plan, folder))
    reader = BatchReader(plan, None if skip is None else _Skip(skip))
    tally = LogTally()
    for batch in reader.batches(index, plan.files[index], tally):
        answer.ends += 1
        if batch.number not in done:
            worker.take(batch)
    worker.flush()
    answer.tally = tally.as_dict()
    answer.fingerprint = reader.fingerprint
    return answer


def _digests(bare: CountPlan, index: int) -> npt.NDArray[np.void]:
    """Digests of the responses of a log, void16[calls]."""
    raw = b"".join(digest_of(call.response) for call in bare.calls(bare.files[index], LogTally()))
    return np.frombuffer(raw, np.dtype("V16"))


def _combine(runs: Sequence[Path], merged: Path) -> None:
    combine_runs(runs, merged, memory_bytes=MERGE_BYTES)


def _merge(runs: Sequence[Path], wanted: Sequence[RecordFile], part: MergePart) -> list[TalliedFile]:
    return merge_part(runs, wanted, part, MERGE_BYTES, SegmentJob())


# ------------------------------------------------------------------------------------------ in this process


@contextlib.contextmanager
def _cluster(workers: int) -> Iterator[Any]:
    """Ray, connected: to the cluster that this process or RAY_ADDRESS names, else to one of its own."""
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
    """What tasks were started for, and their answers, as they come. An error of a task is raised as it is,
    and ends the others."""
    waiting = list(pending)
    try:
        while waiting:
            done, waiting = ray.wait(waiting, timeout=_WAIT_SECONDS)
            meanwhile()
            for each in done:
                try:
                    answer = ray.get(each)
                except ray.exceptions.RayTaskError as error:
                    raise (error.cause or error) from None
                yield pending[each], answer
    except BaseException:
        for each in waiting:
            ray.cancel(each)
        raise


def _skips(ray: Any, bare: CountPlan) -> dict[int, npt.NDArray[np.bool_]]:
    """Of each log, which of its calls have a response that an earlier call, or log, has as well."""
    look = ray.remote(num_cpus=1)(_digests)
    found = ray.get([look.remote(bare, index) for index in range(len(bare.files))])
    every = np.concatenate([np.empty(0, np.dtype("V16")), *found])
    _, first = np.unique(every, return_index=True)
    again = np.ones(len(every), bool)
    again[first] = False
    parts = np.split(again, np.cumsum([len(each) for each in found])[:-1])
    return dict(enumerate(parts))


def _absolute(paths: Sequence[Path]) -> list[Path]:
    return [path.absolute() for path in paths]


def _tell(on_progress: Callable[[Progress], None] | None, progress: Progress) -> None:
    if on_progress is not None:
        on_progress(progress)
