"""Background thread that builds the published runs of namespaces (docs/security.md).

    schedule ──┐                 ┌─ outputs of the namespace and of those below it, by principal
    deletion ──┼──> due ──> build┤
    policies ──┘                 └─ runs of k principals ──> file ──> Published.publish

The runs are derived from the log alone, and are not stored: after a start they are built again. Until then,
and after a deletion, readers without a full grant draft from their own text.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import structlog

from suffixsvc.core import _ext
from suffixsvc.core.segments import Segment, SegmentJob, SegmentText, build_segment
from suffixsvc.engine.catalog import Catalog
from suffixsvc.engine.publishing.files import PublishedFiles
from suffixsvc.engine.publishing.texts import PrincipalTexts, read_texts
from suffixsvc.errors import SegmentCancelledError, StoreClosedError, SuffixError, UnknownNamespaceError
from suffixsvc.index import NamespaceIndex
from suffixsvc.index.published import PublishedSegment
from suffixsvc.policies import PublishTerms
from suffixsvc.runtime.background import PeriodicTask, TaskStats
from suffixsvc.runtime.low_priority import low_priority
from suffixsvc.runtime.sync_points import SyncPoint
from suffixsvc.store.base import Store
from suffixsvc.types import SegmentRecord

log = structlog.get_logger(__name__)

_PERIOD_SECONDS: Final = 1.0
#: back-off of a namespace after a failure, doubled up to the maximum
_FIRST_PAUSE_SECONDS: Final = 1.0
_MAX_PAUSE_SECONDS: Final = 300.0
#: of a deletion that withdraws runs, usually
_DELETION_SECONDS: Final = 0.01
#: after a build, time until the next one of the same namespace, in multiples of its duration
_PAUSE_SHARE: Final = 4.0


#: of runs, where outputs have their ids: no output has one of these
_FIRST_ID: Final = 1 << 62


@dataclass(slots=True, eq=False)
class _Target:
    """A namespace with published runs. Times are those of time.monotonic()."""

    index: NamespaceIndex  #: held, because the log need not have it
    edition: int = -1  #: of its runs after the last build
    built_from: object = None  #: what the last build read
    built_at: float = 0.0
    not_before: float = 0.0
    pause_seconds: float = 0.0


class Publisher:
    """Builds the published runs of one cache. Thread-safe.

    Args:
        store: the log.
        catalog: the namespaces of the cache.
        files: the files of the runs.
        changed: called after runs were published or withdrawn.
        sync_point: see :mod:`suffixsvc.runtime.sync_points`.
        background: build in a thread, which is started when a policy has ``min_principals``.
    """

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        files: PublishedFiles,
        changed: Callable[[], object],
        sync_point: SyncPoint,
        *,
        background: bool = True,
    ) -> None:
        self._store, self._catalog = store, catalog
        self.files, self._changed = files, changed
        self._sync_point = sync_point
        self._build_lock = threading.Lock()  # one build at a time
        self._lock = threading.Lock()  # guards the targets
        self._targets: dict[str, _Target] = {}
        self._members_of: tuple[object, dict[str, list[NamespaceIndex]]] = (None, {})
        self._job = SegmentJob()
        self._stopping = False
        self._pid = os.getpid()
        self._failures = self._failures_in_a_row = 0  # of namespaces
        self._last_success, self._last_error = 0.0, ""
        self._task = PeriodicTask("suffixsvc-publish", self.run_once, period_seconds=_PERIOD_SECONDS)
        self._background, self._started = background, False
        self._begin()

    def _begin(self) -> None:
        """Find the namespaces to publish, and start the thread, if there are any."""
        self._set_targets(self._members())
        if self._background and self._catalog.publishes:
            with self._lock:
                first, self._started = not self._started, True
            if first:
                self._task.start()
        self._task.wake()

    def stop(self) -> None:
        """Cancel the build in progress, end the thread, and remove the files. Idempotent."""
        if os.getpid() != self._pid:  # a forked child has neither the thread nor its locks
            return
        self._stopping = True
        self._job.cancel()
        self._task.stop()
        with self._build_lock:
            self.files.close()

    def stats(self) -> TaskStats | None:
        """Counters of the thread; None: it was never needed.

        A success is a run in which no namespace failed or waits after a failure.
        """
        if not self._started:
            return None
        task = self._task.stats()
        return replace(
            task,
            failures=task.failures + self._failures,
            failures_in_a_row=task.failures_in_a_row + self._failures_in_a_row,
            last_success=self._last_success,
            last_error=self._last_error if self._failures else task.last_error,
        )

    # ------------------------------------------------------------------------------------------ withdrawal

    @contextmanager
    def withdrawn(self, path: str) -> Iterator[None]:
        """Take runs out of use that may contain text of a namespace, before the block deletes it.

        Steps that begin after the block do not draft from them; they are built again after it. Before the
        rows are deleted, because followers report positions of the log: none must have the deletion while
        the runs are in use.
        """
        if not self._catalog.publishes:
            yield
            return
        at_or_above = [self._catalog.get(each) for each in _at_or_above(path)]
        found = [index.published for index in at_or_above if index is not None]
        for each in found:
            each.block()
        self._changed()
        try:
            yield
        finally:
            for each in found:
                each.unblock()
                each.unlearn()
            self._changed()
            self._task.wake()

    def published_above(self, paths: Iterable[str]) -> list[str]:
        """These paths, and those above them that publish runs."""
        found = dict.fromkeys(paths)
        for path in list(found):
            above = (each for each in _at_or_above(path) if self._catalog.policies.of(each).publishing)
            found |= dict.fromkeys(above)
        return list(found)

    def apply_policies(self) -> None:
        """Take runs out of use whose terms have changed, or of which a source is not drafted from any more.

        They are built again.
        """
        sources, members = self._members_of[1], self._members()
        for path, target in self._copy_of_targets():
            target.index.published.withdraw_unless(self._terms(target))
            if not all(each in members.get(path, ()) for each in sources.get(path, ())):
                target.index.published.withdraw()
        self._begin()
        self._changed()

    # -------------------------------------------------------------------------------------------- building

    def run_once(self) -> None:
        """Build what is due."""
        members = self._members()
        self._set_targets(members)
        for path, target in self._copy_of_targets():
            if self._stopping:
                return
            own = members.get(path)
            if own is not None and self._due(target, _signature(own)):
                self._try(target, own)
        if not any(target.pause_seconds for _, target in self._copy_of_targets()):
            self._failures_in_a_row, self._last_success = 0, time.time()

    def publish(self) -> None:
        """Build the runs of all namespaces now.

        Raises:
            StoreError: the log or a file failed.
            SegmentCancelledError: the cache was closed concurrently.
        """
        members = self._members()
        self._set_targets(members)
        for path, target in self._copy_of_targets():
            while not self._build(target, members.get(path, [])):
                time.sleep(_DELETION_SECONDS)  # it was withdrawn meanwhile

    def _members(self) -> dict[str, list[NamespaceIndex]]:
        """The namespaces of the log at or below each path whose policy has terms, by path.

        Those whose drafting is turned off are left out.
        """
        if not self._catalog.publishes:
            return {}
        indexes, policies = self._catalog.stored(), self._catalog.policies
        if self._members_of[0] != (indexes, policies):
            found: dict[str, list[NamespaceIndex]] = {}
            for index in indexes:
                if policies.of(index.path).drafting is False:
                    continue
                for path in _at_or_above(index.path):
                    if policies.of(path).publishing is not None:
                        found.setdefault(path, []).append(index)
            self._members_of = ((indexes, policies), found)
        return self._members_of[1]

    def _set_targets(self, members: dict[str, list[NamespaceIndex]]) -> None:
        """Add and remove targets. A path whose namespace was deleted has a new index."""
        indexes = {path: self._open(path) for path in members}
        gone: list[_Target] = []
        with self._lock:
            for path, target in list(self._targets.items()):
                if indexes.get(path) is not target.index:
                    gone.append(self._targets.pop(path))
            for path, index in indexes.items():
                if index is not None and path not in self._targets:
                    self._targets[path] = _Target(index)
        for target in gone:
            target.index.published.withdraw()
            target.index.published.unlearn()
        if gone:
            self._changed()

    def _open(self, path: str) -> NamespaceIndex | None:
        try:
            return self._catalog.open(path, "")
        except SuffixError as error:  # being deleted, or too many namespaces
            if self._catalog.get(path) is None:
                self._note_failure(path, error)
            return None

    def _copy_of_targets(self) -> list[tuple[str, _Target]]:
        with self._lock:
            return sorted(self._targets.items(), key=lambda each: each[0])

    def _due(self, target: _Target, now_from: object) -> bool:
        terms, now = self._terms(target), time.monotonic()
        if terms is None or now < target.not_before:
            return False
        if target.edition != target.index.published.edition:  # never built, or withdrawn
            return True
        return target.built_from != now_from and now >= target.built_at + terms.every_seconds

    def _terms(self, target: _Target) -> PublishTerms | None:
        return self._catalog.policies.of(target.index.path).publishing

    def _try(self, target: _Target, members: list[NamespaceIndex]) -> None:
        """Build; a failure is counted, logged and repeated with a back-off."""
        try:
            self._build(target, members)
        except (SegmentCancelledError, StoreClosedError):
            raise
        except Exception as error:
            target.pause_seconds = min(2 * target.pause_seconds or _FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
            target.not_before = time.monotonic() + target.pause_seconds
            self._note_failure(target.index.path, error)
        else:
            target.pause_seconds = 0.0

    def _note_failure(self, path: str, error: Exception) -> None:
        self._failures += 1
        self._failures_in_a_row += 1
        self._last_error = f"{type(error).__name__}: {error}"
        log.error(
            "runs could not be published; it is retried",
            namespace=path,
            error=str(error),
            exc_info=not isinstance(error, SuffixError),
        )

    def _build(self, target: _Target, members: list[NamespaceIndex]) -> bool:
        """Build the runs of a namespace; False: they were withdrawn meanwhile, and have to be built again."""
        with self._build_lock:
            terms = self._terms(target)
            if terms is None or target.index.deleted:
                return True
            began = time.monotonic()
            edition = target.index.published.begin(terms)
            current = self._terms(target)
            if current is None or not current.same_runs(terms):
                return False  # they changed before the build was known to apply_policies
            built_from = _signature(members)  # before the log is read: a later change is found
            found, segment = self._runs(target.index, members, terms)
            self._sync_point("publish-built")
            published = target.index.published.publish(edition, found, segment)
            self._changed()
            now = time.monotonic()
            target.not_before = now + _PAUSE_SHARE * (now - began)
            if not published:
                if found is not None:
                    self.files.remove(found.path)
                return False
            target.edition, target.built_from, target.built_at = edition + 1, built_from, now
            log.info(
                "runs were published",
                namespace=target.index.path,
                runs=0 if found is None else found.record.outputs,
                tokens=0 if found is None else found.record.tokens,
                seconds=round(now - began, 3),
            )
            return True

    def _runs(
        self, index: NamespaceIndex, members: list[NamespaceIndex], terms: PublishTerms
    ) -> tuple[PublishedSegment | None, Segment | None]:
        """Find the runs of a namespace and write their segment; None: there are none."""
        by_tokenizer: dict[str, list[str]] = {}
        for member in members:
            own = self._catalog.policies.of(member.path).publishing
            if own is None or own.permit(terms):
                by_tokenizer.setdefault(member.tokenizer, []).append(member.path)
        tokenizer, texts = index.tokenizer, None
        if index.stored:
            texts = self._read(by_tokenizer.get(tokenizer, []), terms)
        else:  # only namespaces below it have outputs: the tokenizer that most principals use
            for each, paths in sorted(by_tokenizer.items()):
                read = self._read(paths, terms)
                if read is not None and (texts is None or read.count > texts.count):
                    tokenizer, texts = each, read
        if texts is None:
            return None, None
        self._catalog.adopt(index, tokenizer)
        self._sync_point("publish-read")
        self._job = job = SegmentJob()
        if self._stopping:
            job.cancel()
        tokens, lengths, dropped = low_priority(
            _ext.shared_runs,
            texts.tokens,
            texts.lengths,
            texts.principals,
            terms.min_principals,
            terms.match,
            job,
        )
        if dropped:
            log.warning("the shortest runs are not published: too many", namespace=index.path, runs=dropped)
        if not len(lengths):
            return None, None
        return self._write(index.path, list(_texts(tokens, lengths)), terms, tokenizer, job)

    def _read(self, paths: list[str], terms: PublishTerms) -> PrincipalTexts | None:
        while True:
            try:
                return read_texts(
                    self._store, paths, terms.min_principals, terms.match, _ext.MAX_SHARED_TOKENS
                )
            except UnknownNamespaceError:  # deleted meanwhile
                stored = {each.path for each in self._catalog.stored()}
                if stored.issuperset(paths):
                    raise
                paths = [path for path in paths if path in stored]

    def _write(
        self, path: str, texts: list[SegmentText], terms: PublishTerms, tokenizer: str, job: SegmentJob
    ) -> tuple[PublishedSegment, Segment]:
        file = self.files.new_path(path)
        try:
            build_segment(file, texts, job=job)
            segment = Segment(file)
            stats = segment.stats()
        except BaseException:
            self.files.remove(file)
            raise
        first, last = texts[0].output_id, texts[-1].output_id
        record = SegmentRecord(file.name, first, last, len(texts), stats.tokens, stats.file_bytes)
        return PublishedSegment(record, file, terms, tokenizer, time.time()), segment


def _texts(tokens: np.ndarray, lengths: np.ndarray) -> Iterator[SegmentText]:
    """The runs as texts of a segment: each once, numbered in their order, which discloses no writer."""
    start = 0
    for number, length in enumerate(lengths.tolist()):
        yield SegmentText(tokens[start : start + length], 0, _FIRST_ID + number)
        start += length


def _signature(members: list[NamespaceIndex]) -> tuple[tuple[str, int], ...]:
    """What changes when an output of a namespace is written or deleted."""
    return tuple(sorted((index.path, index.changes) for index in members))


def _at_or_above(path: str) -> Iterator[str]:
    """A path and those of all namespaces above it."""
    parts = path.split("/")
    return ("/".join(parts[:end]) for end in range(len(parts), 0, -1))
