"""A build from logs to caches."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.atomic import remove_leftovers, require_new
from suffixsvc_caches.building.corpus import load_corpus
from suffixsvc_caches.building.files import Written
from suffixsvc_caches.building.lookup_caches import LookupCaches, LookupFiles
from suffixsvc_caches.building.spec import BuildSpec
from suffixsvc_caches.counting import (
    Counted,
    CountOptions,
    CountPlan,
    Journal,
    Progress,
    RecordFile,
    Records,
    SpooledCall,
    TokenSpool,
    count_logs,
    merge_runs,
)
from suffixsvc_caches.counting.local import open_spool
from suffixsvc_caches.logs import LogFile, find_logs
from suffixsvc_caches.lookup.table import MAX_ORDER, STATIC_ORDER

__all__ = ["BuildResult", "BuildWatch", "build"]


class BuildWatch(Protocol):
    """Is told how far a build is."""

    def counting(self, progress: Progress) -> None: ...

    def merging(self, share: float) -> None: ...

    def loading(self, outputs: int) -> None: ...


class _NoWatch:
    def counting(self, progress: Progress) -> None: ...

    def merging(self, share: float) -> None: ...

    def loading(self, outputs: int) -> None: ...


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What a build made.

    Attributes:
        files: the logs.
        counted: what was read.
        static, dynamic: the caches written.
        corpus_outputs: outputs of the corpus.
    """

    files: Sequence[LogFile]
    counted: Counted
    static: Written | None = None
    dynamic: Written | None = None
    corpus_outputs: int = 0


def build(spec: BuildSpec, watch: BuildWatch | None = None) -> BuildResult:
    """Read logs, write caches. What was done is kept in ``spec.work`` if anything stops it: the same call
    goes on from there, and makes the same bytes.

    Raises:
        InvalidInputError: a file exists that is not to be replaced, logs that cannot be read or hold nothing,
            a work folder of another build. TokenizerMismatchError, InvalidTokensError: ids that do not fit.
        StoreError: the disk.
    """
    watch = watch or _NoWatch()
    if not spec.work.exists():
        _require_room(spec)  # before anything is read
    files = find_logs(spec.logs, spec.reading)
    tokenizer = spec.tokenizer.load() if spec.tokenizer else None
    plan = CountPlan(files, spec.reading, tokenizer, _count_options(spec), spec.corpus is not None)
    journal = Journal(spec.work, plan.key())
    try:
        _require_room(spec, journal)
        counted = _count(spec, plan, journal, watch)
        if not counted.tokens:
            raise InvalidInputError(
                "the logs hold nothing to count", expected="responses", got=counted.tally.describe()
            )
        caches = _write_caches(spec, journal, watch)
        outputs = _load(spec, plan, journal, counted, watch)
    finally:
        journal.discard_if_empty()
    shutil.rmtree(spec.work)
    return BuildResult(files, counted, caches.static, caches.dynamic, outputs)


def _require_room(spec: BuildSpec, journal: Journal | None = None) -> None:
    """Refuse to replace files, but for those that an earlier start of this build made."""
    for path in spec.cache_paths:
        require_new(path, force=spec.force or (journal is not None and journal.has_made(path)))


def _count_options(spec: BuildSpec) -> CountOptions:
    lowest, highest = (1, MAX_ORDER) if spec.dynamic else (STATIC_ORDER, STATIC_ORDER)
    return CountOptions(
        lowest,
        highest,
        spec.context_tokens,
        spec.dedupe,
        spec.workers,
        spec.memory_bytes,
        spec.checkpoint_seconds,
    )


def _count(spec: BuildSpec, plan: CountPlan, journal: Journal, watch: BuildWatch) -> Counted:
    if spec.engine == "local":
        return count_logs(plan, journal, watch.counting)
    from suffixsvc_caches.counting.cluster import count_on_cluster  # noqa: PLC0415 - needs ray

    return count_on_cluster(plan, spec.tokenizer, journal, watch.counting)


def _write_caches(spec: BuildSpec, journal: Journal, watch: BuildWatch) -> LookupFiles:
    caches = LookupCaches(spec.static, spec.dynamic)
    if not caches.wanted:
        return LookupFiles()
    found = _merge(spec, journal, caches.wanted, watch)
    _require_room(spec, journal)  # again: counting takes a while
    journal.begin_write(spec.cache_paths)
    for path in spec.cache_paths:
        remove_leftovers(path)
    written = caches.write(found, force=True)
    for records in found:
        for part in records.parts:
            part.unlink(missing_ok=True)
    return written


def _merge(
    spec: BuildSpec, journal: Journal, wanted: Sequence[RecordFile], watch: BuildWatch
) -> list[Records]:
    if spec.engine == "local":
        return merge_runs(journal, wanted, spec.workers, watch.merging)
    from suffixsvc_caches.counting.cluster import merge_on_cluster  # noqa: PLC0415 - needs ray

    return merge_on_cluster(journal, wanted, spec.workers, watch.merging)


def _load(spec: BuildSpec, plan: CountPlan, journal: Journal, counted: Counted, watch: BuildWatch) -> int:
    spool = open_spool(plan, journal.folder)
    if spec.corpus is None or spool is None:
        return 0
    calls = _spooled(plan, journal, spool)
    return load_corpus(spec.corpus, calls, counted.fingerprint, journal, watch.loading)


def _spooled(plan: CountPlan, journal: Journal, spool: TokenSpool) -> Iterator[SpooledCall]:
    for index in range(len(plan.files)):
        end = journal.end_of(index)
        for batch in range(end[0] if end else 0):
            yield from spool.read(index, batch)
