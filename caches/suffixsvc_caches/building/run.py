"""Execution of a build: read and count logs, merge counts, write lookup caches, load the corpus."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidConfigError, InvalidInputError, StoreFullError, TokenizerMismatchError
from suffixsvc.runtime.atomic_file import remove_stale_temporaries
from suffixsvc_caches.atomic import require_file_path, require_new
from suffixsvc_caches.building.lookup_caches import LookupFiles
from suffixsvc_caches.building.spec import BuildSpec
from suffixsvc_caches.counting.journal import Journal
from suffixsvc_caches.counting.local import count_logs, open_spool
from suffixsvc_caches.counting.memory import resident_bytes
from suffixsvc_caches.counting.merging import Records, merge_runs
from suffixsvc_caches.counting.plan import CountOptions, CountPlan, CountResult, Progress, as_plain
from suffixsvc_caches.counting.spool import SpooledCall, TokenSpool
from suffixsvc_caches.logs import LogFile, ReadOptions, find_logs
from suffixsvc_caches.lookup.table import MAX_ORDER, STATIC_ORDER
from suffixsvc_caches.manifest import SourceFile, TokenizerNote

#: minimum memory for the selection of records
_MIN_SELECTION_BYTES: Final = 32 << 20


class BuildObserver:
    """Base class of receivers of a build's progress; its methods do nothing."""

    def on_work_folder(self, folder: Path) -> None:
        """Receive the work folder."""

    def on_count_progress(self, progress: Progress) -> None:
        """Receive the progress of counting, ten times a second."""

    def on_merge_progress(self, share: float) -> None:
        """Receive the progress of merging, 0..1."""

    def on_load_progress(self, outputs: int) -> None:
        """Receive the number of loaded outputs."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """Result of a build.

    Attributes:
        files: the logs.
        counted: result of reading and counting.
        caches: lookup caches written.
        corpus_outputs: number of outputs of the corpus.
    """

    files: Sequence[LogFile]
    counted: CountResult
    caches: LookupFiles
    corpus_outputs: int = 0


def build(spec: BuildSpec, observer: BuildObserver | None = None) -> BuildResult:
    """Read logs and write caches.

    If the build is interrupted, its progress stays in the work folder; the same call resumes it and writes
    the same bytes. Unusable logs leave no work folder.

    Args:
        spec: the build.
        observer: receives progress.

    Raises:
        InvalidInputError: a file to be written exists, not ``force``; the logs cannot be read or are empty;
            the work folder belongs to another build.
        TokenizerMismatchError, InvalidTokensError: ids of another tokenizer, or beyond its vocabulary.
        StoreError: a file cannot be written.
    """
    observer = observer or BuildObserver()
    for path in spec.caches.paths:
        require_file_path(path)
    files = find_logs(spec.logs, spec.reading)
    _require_not_input(spec, files)
    tokenizer = spec.tokenizer.load(spec.workers) if spec.tokenizer else None
    plan = CountPlan(files, spec.reading, tokenizer, _count_options(spec), spec.corpus is not None)
    work = spec.work or work_folder(spec, plan.key())
    observer.on_work_folder(work)
    journal = Journal(work, plan.key())
    try:
        _require_new(spec, journal)
        if spec.corpus is not None and journal.base is None:
            from suffixsvc_caches.building.corpus import require_loadable  # noqa: PLC0415 - loads engine and client

            require_loadable(spec.corpus, tokenizer.fingerprint if tokenizer else "")
        counted = _count_or_clear(spec, plan, journal, observer)
        caches = _write_caches(spec, plan, journal, counted, observer)
        outputs = _load(spec, plan, journal, counted, observer)
    except StoreFullError as error:
        then = (
            f"The counts are kept in {work}: the same command resumes the build."
            if journal.close_or_remove()
            else "No counts were stored yet: the same command starts over."
        )
        raise error.with_remedy(f"{error.remedy or 'Free space on the disk.'} {then}") from error
    except BaseException:
        journal.close_or_remove()
        raise
    journal.remove()
    return BuildResult(files, counted, caches, outputs)


def work_folder(spec: BuildSpec, key: str) -> Path:
    """Return the default work folder: beside the first output, with a name that depends on the plan."""
    corpus = [spec.corpus.data] if spec.corpus and spec.corpus.data else []
    first = [*spec.caches.paths, *corpus, Path("suffixsvc-build")][0]
    beside = Path(os.path.abspath(first))  # with_name() fails for "."
    return beside.with_name(f"{beside.name}.work-{key[:8]}")


def _require_not_input(spec: BuildSpec, files: Sequence[LogFile]) -> None:
    """Check that no output is an input, even with ``force``. InvalidInputError: one is."""
    inputs = {file.path.resolve() for file in files}
    if spec.tokenizer is not None:
        inputs.add(spec.tokenizer.path.resolve())
    for path in spec.caches.output_paths:
        if path.resolve() in inputs:
            raise InvalidInputError(
                f"output {path} must not be an input", remedy="Give the cache another name."
            )


def _require_new(spec: BuildSpec, journal: Journal) -> None:
    """Check that outputs do not exist, except for those that an earlier run of this build wrote."""
    for path in spec.caches.paths:
        require_new(path, force=spec.force or journal.is_own_output(path))


def _count_or_clear(
    spec: BuildSpec, plan: CountPlan, journal: Journal, observer: BuildObserver
) -> CountResult:
    try:
        return _count(spec, plan, journal, observer)
    except InvalidConfigError:
        raise  # too little memory, for example: a build with other settings resumes from here
    except (InvalidInputError, TokenizerMismatchError):
        # The logs must change, which makes another plan, so that this work folder cannot be resumed.
        journal.remove()
        raise


def _count_options(spec: BuildSpec) -> CountOptions:
    orders = (1, MAX_ORDER) if spec.dynamic else (STATIC_ORDER, STATIC_ORDER)
    return CountOptions(
        *orders, spec.context_tokens, spec.dedupe, spec.workers, spec.memory_bytes, spec.checkpoint_seconds
    )


def _count(spec: BuildSpec, plan: CountPlan, journal: Journal, observer: BuildObserver) -> CountResult:
    if spec.engine == "local":
        counted = count_logs(plan, journal, observer.on_count_progress)
    else:
        from suffixsvc_caches.counting.cluster import count_on_cluster  # noqa: PLC0415 - needs ray

        counted = count_on_cluster(plan, journal, observer.on_count_progress, source=spec.tokenizer)
    if not counted.tokens:
        raise InvalidInputError("the logs must have responses", got=counted.report.describe())
    return counted


def _write_caches(
    spec: BuildSpec, plan: CountPlan, journal: Journal, counted: CountResult, observer: BuildObserver
) -> LookupFiles:
    if not spec.caches.paths:
        return LookupFiles()
    found = _merge(spec, journal, observer)
    _require_new(spec, journal)  # again, because counting takes a while
    journal.begin_write(spec.caches.paths)
    for path in spec.caches.paths:
        remove_stale_temporaries(path)
    memory = max(_MIN_SELECTION_BYTES, spec.memory_bytes - resident_bytes())
    written = spec.caches.write(found, force=True, memory_bytes=memory, **_origin(spec, plan, counted))
    for records in found:
        for part in records.parts:
            part.unlink(missing_ok=True)
    return written


def _origin(spec: BuildSpec, plan: CountPlan, counted: CountResult) -> dict[str, Any]:
    """Origin of the counts, for the manifests."""
    tokenizer = plan.tokenizer
    note = TokenizerNote(
        counted.fingerprint,
        tokenizer.vocab_size if tokenizer else 0,
        spec.tokenizer.path.name if spec.tokenizer else "",
    )
    requests = spec.reading.batch_input
    reading = replace(spec.reading, batch_input=tuple(Path(path.name) for path in requests))
    defaults = as_plain(ReadOptions())
    options: dict[str, Any] = {
        "reading": {name: value for name, value in as_plain(reading).items() if value != defaults[name]},
        "context_tokens": spec.context_tokens,
        "dedupe": spec.dedupe,
        "calls": counted.calls,
        "tokens": counted.tokens,
    }
    sources = tuple(SourceFile.of(file.path, file.name) for file in plan.files)
    grown = [file.name for file, source in zip(plan.files, sources, strict=True) if source.bytes != file.size]
    if grown:  # the log is still being written: the hashed bytes are not the counted ones
        options["changed_meanwhile"] = grown
    sources += tuple(SourceFile.of(path) for path in requests)
    return {"tokenizer": note, "sources": sources, "options": options}


def _merge(spec: BuildSpec, journal: Journal, observer: BuildObserver) -> list[Records]:
    wanted = spec.caches.wanted
    if spec.engine == "local":
        return merge_runs(journal, wanted, spec.workers, observer.on_merge_progress)
    from suffixsvc_caches.counting.cluster import merge_on_cluster  # noqa: PLC0415 - needs ray

    return merge_on_cluster(journal, wanted, spec.workers, observer.on_merge_progress)


def _load(
    spec: BuildSpec, plan: CountPlan, journal: Journal, counted: CountResult, observer: BuildObserver
) -> int:
    spool = open_spool(plan, journal.folder)
    if spec.corpus is None or spool is None:
        return 0
    from suffixsvc_caches.building.corpus import load_corpus  # noqa: PLC0415 - loads engine and client

    calls = _spooled_calls(plan, journal, spool)
    return load_corpus(spec.corpus, calls, counted.fingerprint, journal, observer.on_load_progress)


def _spooled_calls(plan: CountPlan, journal: Journal, spool: TokenSpool) -> Iterator[SpooledCall]:
    for index in range(len(plan.files)):
        end = journal.end_of(index)
        for batch in range(end[0] if end else 0):
            yield from spool.read(index, batch)
