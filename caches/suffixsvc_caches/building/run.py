"""A build from logs to caches."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from suffixsvc.errors import InvalidConfigError, InvalidInputError, StoreFullError, TokenizerMismatchError
from suffixsvc_caches.atomic import remove_leftovers, require_new, require_place
from suffixsvc_caches.building.files import Written
from suffixsvc_caches.building.lookup_caches import LookupCaches, LookupFiles, Provenance, output_paths
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
from suffixsvc_caches.counting.memory import resident_bytes
from suffixsvc_caches.counting.plan import as_plain
from suffixsvc_caches.logs import LogFile, ReadOptions, find_logs
from suffixsvc_caches.lookup.table import MAX_ORDER, STATIC_ORDER
from suffixsvc_caches.manifest import SourceFile, TokenizerNote

__all__ = ["BuildResult", "BuildWatch", "build"]


#: to choose records in, however little is left
_LEAST_CHOICE: Final = 32 << 20


class BuildWatch(Protocol):
    """Is told how far a build is."""

    def working_in(self, folder: Path) -> None: ...

    def counting(self, progress: Progress) -> None: ...

    def merging(self, share: float) -> None: ...

    def loading(self, outputs: int) -> None: ...


class _NoWatch:
    def working_in(self, folder: Path) -> None: ...

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
    """Read logs, write caches. What was done is kept in the work folder if anything stops it: the same call
    goes on from there, and makes the same bytes. Logs that cannot be used leave no work folder.

    Raises:
        InvalidInputError: a file exists that is not to be replaced, logs that cannot be read or hold nothing,
            a work folder of another build. TokenizerMismatchError, InvalidTokensError: ids that do not fit.
        StoreError: the disk.
    """
    watch = watch or _NoWatch()
    for path in spec.cache_paths:
        require_place(path)
    files = find_logs(spec.logs, spec.reading)
    _require_no_input(spec, files)
    tokenizer = spec.tokenizer.load(spec.workers) if spec.tokenizer else None
    plan = CountPlan(files, spec.reading, tokenizer, _count_options(spec), spec.corpus is not None)
    work = spec.work or work_folder(spec, plan.key())
    watch.working_in(work)
    journal = Journal(work, plan.key())
    try:
        _require_new(spec, journal)
        if spec.corpus is not None and journal.base is None:
            from suffixsvc_caches.building.corpus import require_room  # noqa: PLC0415 - loads engine and client

            require_room(spec.corpus, tokenizer.fingerprint if tokenizer else "")
        counted = _count_or_clear(spec, plan, journal, watch)
        caches = _write_caches(spec, plan, journal, counted, watch)
        outputs = _load(spec, plan, journal, counted, watch)
    except StoreFullError as error:
        raise _of_full_disk(error, work, kept=journal.close_or_remove()) from error
    except BaseException:
        journal.close_or_remove()
        raise
    journal.remove()
    return BuildResult(files, counted, caches.static, caches.dynamic, outputs)


def _of_full_disk(error: StoreFullError, work: Path, *, kept: bool) -> StoreFullError:
    """The same error, which says what becomes of the work that was done."""
    then = (
        f"What was counted is kept in {work}: the same command goes on from there."
        if kept
        else "Nothing was written down yet: the same command begins anew."
    )
    remedy = f"{error.remedy or 'Free space on the disk.'} {then}"
    return StoreFullError(error.message, expected=error.expected, got=error.got, remedy=remedy)


def work_folder(spec: BuildSpec, key: str) -> Path:
    """Beside the first output, a folder for each plan: a build with other options does not meet it."""
    corpus = [spec.corpus.data] if spec.corpus and spec.corpus.data else []
    first = [*spec.cache_paths, *corpus, Path("suffixsvc-build")][0]
    beside = Path(os.path.abspath(first))  # "." has no name
    return beside.with_name(f"{beside.name}.work-{key[:8]}")


def _require_no_input(spec: BuildSpec, files: Sequence[LogFile]) -> None:
    """Refuse to write over what is read, --force or not."""
    inputs = {file.path.resolve() for file in files}
    if spec.tokenizer is not None:
        inputs.add(spec.tokenizer.path.resolve())
    for path in output_paths((spec.static, spec.dynamic)):
        if path.resolve() in inputs:
            raise InvalidInputError(f"{path} is read by this build", remedy="Give the cache another name.")


def _require_new(spec: BuildSpec, journal: Journal) -> None:
    """Refuse to replace files, but for those that an earlier start of this build made."""
    for path in spec.cache_paths:
        require_new(path, force=spec.force or journal.has_made(path))


def _count_or_clear(spec: BuildSpec, plan: CountPlan, journal: Journal, watch: BuildWatch) -> Counted:
    try:
        counted = _count(spec, plan, journal, watch)
        _require_tokens(counted)
    except InvalidConfigError:
        raise  # too little memory, say: other settings go on from here
    except (InvalidInputError, TokenizerMismatchError):
        # Other logs are another plan: nothing could go on from here.
        journal.remove()
        raise
    return counted


def _require_tokens(counted: Counted) -> None:
    if not counted.tokens:
        raise InvalidInputError(
            "the logs hold nothing to count", expected="responses", got=counted.tally.describe()
        )


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


def _write_caches(
    spec: BuildSpec, plan: CountPlan, journal: Journal, counted: Counted, watch: BuildWatch
) -> LookupFiles:
    caches = LookupCaches(spec.static, spec.dynamic)
    if not caches.wanted:
        return LookupFiles()
    found = _merge(spec, journal, caches.wanted, watch)
    _require_new(spec, journal)  # again: counting takes a while
    journal.begin_write(spec.cache_paths)
    for path in spec.cache_paths:
        remove_leftovers(path)
    memory = max(_LEAST_CHOICE, spec.memory_bytes - resident_bytes())
    written = caches.write(found, _provenance(spec, plan, counted), force=True, memory_bytes=memory)
    for records in found:
        for part in records.parts:
            part.unlink(missing_ok=True)
    return written


def _provenance(spec: BuildSpec, plan: CountPlan, counted: Counted) -> Provenance:
    tokenizer = plan.tokenizer
    note = TokenizerNote(
        counted.fingerprint,
        tokenizer.vocab_size if tokenizer else 0,
        spec.tokenizer.path.name if spec.tokenizer else "",
    )
    requests = spec.reading.batch_input
    reading = replace(spec.reading, batch_input=tuple(Path(path.name) for path in requests))
    usual = as_plain(ReadOptions())
    options: dict[str, Any] = {
        "reading": {name: value for name, value in as_plain(reading).items() if value != usual[name]},
        "context_tokens": spec.context_tokens,
        "dedupe": spec.dedupe,
        "calls": counted.calls,
        "tokens": counted.tokens,
    }
    sources = tuple(SourceFile.of(file.path, file.name) for file in plan.files)
    grown = [file.name for file, source in zip(plan.files, sources, strict=True) if source.bytes != file.size]
    if grown:  # a log that is still written: what is hashed is not what was counted
        options["changed_meanwhile"] = grown
    sources += tuple(SourceFile.of(path) for path in requests)
    return Provenance(note, sources, options)


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
    from suffixsvc_caches.building.corpus import load_corpus  # noqa: PLC0415 - loads engine and client

    calls = _spooled(plan, journal, spool)
    return load_corpus(spec.corpus, calls, counted.fingerprint, journal, watch.loading)


def _spooled(plan: CountPlan, journal: Journal, spool: TokenSpool) -> Iterator[SpooledCall]:
    for index in range(len(plan.files)):
        end = journal.end_of(index)
        for batch in range(end[0] if end else 0):
            yield from spool.read(index, batch)
