"""The embedded cache: namespaces, sessions and maintenance over an index and a store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from suffixsvc import store as stores
from suffixsvc.config import Limits, validate_namespace
from suffixsvc.engine.cache_stats import CacheStats, sum_stats
from suffixsvc.engine.checker import check_cache
from suffixsvc.engine.limits.principal_quotas import PrincipalStats
from suffixsvc.engine.log_feed import LogFeed
from suffixsvc.engine.namespace import Namespace
from suffixsvc.engine.parts import open_parts
from suffixsvc.engine.sealing.sealer import Sealer
from suffixsvc.errors import InvalidConfigError, StoreError, SuffixError
from suffixsvc.index import NamespaceIndex, NamespaceStats
from suffixsvc.index.output_use import OutputUse
from suffixsvc.policies import Policies
from suffixsvc.runtime.background import TaskStats
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.runtime.signal_guard import uninterrupted
from suffixsvc.selection import Selection
from suffixsvc.types import (
    OPERATOR_CREATOR,
    Deletion,
    IncompleteOutput,
    NamespaceCreator,
    NamespaceRecord,
)

if TYPE_CHECKING:
    from suffixsvc.engine.backup.manifest import BackupManifest
    from suffixsvc.engine.backup.writer import BackupWriter


log = structlog.get_logger(__name__)


class SuffixCache(ClosedOnExit):
    """Stores what models wrote and drafts what comes next, in this process.

    Args:
        path: data folder (created if missing), or None: memory only.
        limits: limits of the engine.
        progress: called with (outputs so far, outputs in all) while the index is rebuilt at open.
        starting_weights: initial weights of new namespaces instead of the shipped ones, as returned by
            :meth:`Namespace.learned_weights`; b"" = none.
        policies: limits, time to live and pinning of the namespaces; None: no limits.
        background: seal and merge in a background thread, so that a restart maps files instead of indexing
            the log again. False: only :meth:`seal` and :meth:`compact` do.
        migrate: migrate a data folder of an earlier release, after a backup (docs/upgrading.md). False: such
            a folder is refused, if its schema differs.
        ids_from_clock: ids of outputs in a data folder are times in microseconds instead of a count, so that
            they do not disclose how much others write.

    Raises:
        InvalidInputError: ``starting_weights`` are not of this version.
        StoreLockedError, StoreCorruptError, StoreForeignError: the data folder cannot be used.

    Thread-safe. Use as a context manager, or call :meth:`close`; acknowledged outputs are durable either way.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        limits: Limits | None = None,
        progress: Callable[[int, int], None] | None = None,
        starting_weights: bytes | None = None,
        policies: Policies | None = None,
        background: bool = True,
        migrate: bool = False,
        ids_from_clock: bool = False,
    ) -> None:
        self._close_lock = threading.Lock()
        tested = self._sync_point is not SuffixCache._sync_point
        self._parts = open_parts(
            path,
            limits=Limits() if limits is None else limits,
            progress=progress,
            starting_weights=starting_weights,
            policies=Policies() if policies is None else policies,
            background=background,
            migrate=migrate,
            ids_from_clock=ids_from_clock,
            sync_point=self._sync_point if tested else None,
        )

    @property
    def feed(self) -> LogFeed:
        """The log, for readers that follow it."""
        return self._parts.feed

    @staticmethod
    def _sync_point(_name: str) -> None:
        """See :mod:`suffixsvc.runtime.sync_points`."""

    # ------------------------------------------------------------------------------------- namespaces

    def namespace(
        self,
        path: str,
        tokenizer: str | None = None,
        *,
        bind: bool = True,
        creator: NamespaceCreator = OPERATOR_CREATOR,
    ) -> Namespace:
        """The namespace at ``path``, created on first use.

        Args:
            path: components joined by "/", at most 200 bytes.
            tokenizer: fingerprint of the tokenizer (``suffixsvc.fingerprint``) to bind to the namespace.
            bind: bind it now. False: with the first session or outputs that the namespace accepts.
            creator: whose it is if it does not exist, and how many it may have; the default is the operator.

        Raises:
            InvalidNamespaceError, TokenizerMismatchError.
            LimitExceededError: there are too many namespaces, or the creator has its share.
        """
        validate_namespace(path)
        with self._parts.close_guard.while_open():
            index = self._parts.catalog.open(path, tokenizer or "", creator)
            if bind:
                self._parts.catalog.bind(index, tokenizer or "")
            return Namespace(self._parts, index, tokenizer or "")

    def find_namespace(self, path: str) -> Namespace | None:
        """The namespace at ``path`` if it exists and is not being deleted; it is not created.

        Raises:
            InvalidNamespaceError.
        """
        validate_namespace(path)
        with self._parts.close_guard.while_open():
            index = self._parts.catalog.get(path)
            return None if index is None or index.deleted else Namespace(self._parts, index, "")

    def has_namespace(self, path: str) -> bool:
        """Whether the namespace at ``path`` exists; it is not created."""
        return path in self._parts.catalog

    def namespaces(self) -> list[NamespaceRecord]:
        """All namespaces, ordered by path."""
        with self._parts.close_guard.while_open():
            return self._parts.catalog.records()

    def delete_namespace(self, path: str, *, force: bool = False) -> int:
        """Delete a namespace with its outputs, segments, notes and learned tables.

        A namespace of the same path can be created afterwards, with another tokenizer. Handles and sessions
        of the deleted one write nothing any more, and no session can be opened through such a handle.

        Args:
            force: also if there are live sessions: their output is discarded, and they can be stepped and
                closed.

        Returns:
            The number of its outputs.

        Raises:
            UnknownNamespaceError: it does not exist.
            NamespaceInUseError: it has live sessions.
            InvalidNamespaceError: it is read by default.
            StoreError: a part of it may be left, which cannot be read; delete it again, or open the folder
                again.
        """
        with self._parts.exclusive() as sealer:
            return self._parts.deleter.delete_namespace(path, sealer, force=force)

    def delete(self, selection: Selection, *, superseded: bool = False, from_disk: bool = False) -> Deletion:
        """Delete what a selection takes, in two stages.

        The first one is done when the call returns: the outputs are deleted durably, the text of live
        sessions is retracted and what they write from now on is not stored, nothing of both is drafted. What
        drafting learned in these namespaces is reset, because it depends on their text.

        The second one erases the text from the files of the data folder. The background thread does it within
        about a minute, also after a restart; ``from_disk`` waits for it.

        Args:
            selection: of outputs and live sessions.
            superseded: the text is part of other outputs, or was evicted: what was learned stays, and no
                second stage follows.
            from_disk: return after the second stage (:meth:`erase`).

        Raises:
            UnknownNamespaceError: the namespace of the selection does not exist.
            StoreError: a part may be deleted; repeat the call.
        """
        deletion = self._parts.deleter.delete(selection, superseded=superseded)
        if from_disk:
            self.erase()
        return replace(deletion, from_disk=from_disk)

    def erase(self) -> None:
        """Erase from the disk what was deleted, evicted or expired before this call.

        Segments with such outputs are rewritten, and the free space of ``data.mdb`` is overwritten
        (docs/format.md). Drafting continues; writes wait while the file is overwritten.

        Raises:
            StoreError: a part may be erased; repeat the call.
            SegmentCancelledError: the cache was closed concurrently.
        """
        with self._parts.exclusive(), self._parts.close_guard.while_open():
            self._parts.eraser.run()

    def read_by_default(self, paths: Sequence[str]) -> None:
        """Set the namespaces that every new session reads besides its own and those it names, as for corpora.

        A session reads those whose tokenizer is that of its own namespace, after the namespaces that it
        names, and at most 7 in all. The namespaces become read-only: sessions and outputs are rejected.

        Raises:
            UnknownNamespaceError: a namespace does not exist.
            InvalidConfigError: more than 7 of a tokenizer.
        """
        tokenizers = {record.path: record.tokenizer for record in self.namespaces()}
        self._parts.sessions.read_by_default(paths, tokenizers)

    def default_reads(self) -> list[NamespaceRecord]:
        """The namespaces that every new session reads besides its own and those it names."""
        chosen = self._parts.sessions.default_reads
        return [record for record in self.namespaces() if record.path in chosen] if chosen else []

    # ------------------------------------------------------------------------------------ maintenance

    def expire(self, now: float | None = None) -> int:
        """Delete outputs whose time to live has passed, their own or their policy's; returns how many.

        The service calls it at least twice a minute; an embedding process calls it as it needs.

        Args:
            now: seconds since the epoch, instead of the store's time, which a step of the wall clock does not
                change (:mod:`suffixsvc.clock`).
        """
        return self._parts.outputs.expire(now)

    def set_policies(self, policies: Policies) -> None:
        """Replace the policies of namespaces, also of existing ones.

        A lower limit or time to live takes effect with the next write, :meth:`evict` or :meth:`expire`; what
        readers see, and drafting that is turned off or on, with the next step of every live session.
        """
        with self._parts.close_guard.while_open():
            self._parts.catalog.set_policies(policies)
            self._parts.publisher.apply_policies()
            self._parts.sessions.apply_rights()

    @property
    def access_controlled(self) -> bool:
        """Whether a server with access control has served the log: servers without are then refused
        (docs/security.md#what-the-log-remembers). The engine itself is not: it is the operator.

        Raises:
            SessionClosedError: the cache is closed.
        """
        with self._parts.close_guard.while_open():
            return self._parts.store.access_controlled

    def set_access_controlled(self, value: bool) -> None:
        """Record that only servers with access control may serve the log; False: that all may, as in a new
        one. Durable when it returns.

        Raises:
            StoreError: the log is unchanged.
        """
        with self._parts.close_guard.while_open():
            self._parts.store.set_access_controlled(value)

    def published_above(self, paths: Sequence[str]) -> list[str]:
        """These paths, and those above them that publish runs, which may hold text of these."""
        return self._parts.publisher.published_above(paths)

    def publish(self) -> None:
        """Build the published runs of all namespaces whose policy has ``min_principals``, now.

        The background thread does it on schedule and after deletions (docs/security.md).

        Raises:
            StoreError: the log or a file failed.
            SegmentCancelledError: the cache was closed concurrently.
        """
        self._parts.close_guard.require_open()
        self._parts.publisher.publish()

    def evict(self, now: float | None = None) -> int:
        """Reduce every namespace to its own limit and every principal to its quota; returns how many outputs
        were evicted.

        Writes evict from their own namespace, as do opens, context and large steps in a full cache. This call
        is for the rest: changed limits, and closes that did not wait. The service calls it at least twice a
        minute. It also saves the order of eviction, at most every five minutes, as :meth:`close` does.

        Args:
            now: seconds, instead of the store's time; decides whether the order is saved again.
        """
        with self._parts.close_guard.while_open():
            indexes = self._parts.catalog.stored()
        evicted = self._parts.quotas.evictor.evict(indexes) + self._parts.quotas.principals.evict()
        self._parts.quotas.evictor.save(indexes, self._parts.store.clock.now() if now is None else now)
        return evicted

    def seal(self, namespace: str | None = None) -> int:
        """Seal all outputs of one namespace or of all into segments; returns how many were sealed.

        The background thread does the same with the oldest outputs when there are many. A cache in memory has
        no segments.

        Raises:
            StoreFullError, StoreError: segments that were completed before stay.
            SegmentCancelledError: the cache was closed concurrently.
        """
        return sum(self._seal(index) for index in self._select(namespace))

    def _seal(self, index: NamespaceIndex) -> int:
        outputs = 0
        while more := self._with_sealer(Sealer.seal, index):
            outputs += more
        return outputs

    def _with_sealer(self, work: Callable[[Sealer, NamespaceIndex], int], index: NamespaceIndex) -> int:
        """Run work of the sealer uninterrupted, so that no move stays incomplete; 0 for a cache in memory."""
        with self._parts.exclusive() as sealer:
            return 0 if sealer is None else uninterrupted(lambda: work(sealer, index))

    def compact(
        self, namespace: str | None = None, *, progress: Callable[[int, int], None] | None = None
    ) -> int:
        """Seal everything and merge it into as few segments as possible, without deleted outputs.

        For caches that are built offline, and to remove deleted bytes from the segment files at once.

        Args:
            namespace: only this one.
            progress: called with (namespaces done, namespaces in all).

        Returns:
            The number of segments afterwards.

        Raises:
            As :meth:`seal`.
        """
        selected = self._select(namespace)
        segments = 0
        for done, index in enumerate(selected):
            if progress is not None:
                progress(done, len(selected))
            self._seal(index)
            segments += self._with_sealer(Sealer.merge_all, index)
        if progress is not None:
            progress(len(selected), len(selected))
        return segments

    def _select(self, namespace: str | None) -> list[NamespaceIndex]:
        with self._parts.close_guard.while_open():
            return self._parts.catalog.select(namespace)

    def begin_backup(self, folder: str | Path, *, copy_segments: bool = False) -> BackupWriter:
        """A backup of the data folder, which its ``run`` writes step by step while the cache is used.

        Args:
            folder: of the backup: does not exist, or is empty; its parent exists.
            copy_segments: copy segment files instead of linking to them, which is done where the file system
                allows it.

        Raises:
            InvalidConfigError: the cache is in memory.
            SessionClosedError: it is closed.
        """
        from suffixsvc.engine.backup.writer import BackupWriter  # noqa: PLC0415 - few processes back up

        store = self._parts.store
        if not isinstance(store, stores.LmdbStore):
            raise InvalidConfigError("a cache must have a data folder to be backed up", got="memory only")
        with self._parts.close_guard.while_open():
            try:  # what was learned since the last open
                self._parts.catalog.save_learned()
                self._parts.quotas.evictor.save(self._parts.catalog.stored())
            except StoreError as error:  # a store that cannot write can be backed up
                log.warning("the learned tables could not be saved for a backup", error=str(error))
        return BackupWriter(
            store,
            Path(folder),
            exclusive=self._parts.exclusive,
            copy_segments=copy_segments,
            sync_point=self._sync_point,
        )

    def backup(
        self,
        folder: str | Path,
        *,
        copy_segments: bool = False,
        progress: Callable[[int, int], None] = lambda outputs, total: None,
    ) -> BackupManifest:
        """Write a backup of the data folder while the cache is used: the log as of one LSN, and its segments.

        Args:
            folder, copy_segments: as of :meth:`begin_backup`.
            progress: called with (outputs so far, outputs in all).

        Raises:
            InvalidConfigError: the cache is in memory.
            InvalidInputError: the folder has content.
            StoreError: nothing was written.
        """
        return self.begin_backup(folder, copy_segments=copy_segments).finish(progress)

    # --------------------------------------------------------------------------------- state and checks

    def stats(self, namespaces: Mapping[str, NamespaceStats] | None = None) -> CacheStats:
        """Sums over all namespaces, and the bytes and last LSN of the store.

        Args:
            namespaces: what :meth:`namespace_stats` has just returned; None: it is called.

        Raises:
            SessionClosedError: the cache is closed.
        """
        return sum_stats(self._parts, self.namespace_stats() if namespaces is None else namespaces)

    def namespace_stats(self) -> dict[str, NamespaceStats]:
        """Statistics of every namespace, by path.

        Raises:
            SessionClosedError: the cache is closed.
        """
        with self._parts.close_guard.while_open():
            self._parts.sessions.reap_abandoned()
            indexes = self._parts.catalog.values()
            for index in indexes:
                self._parts.quotas.evictor.count(index)
            return {index.path: index.stats() for index in indexes}

    def principal_stats(self, principals: Collection[str] = ()) -> dict[str, PrincipalStats]:
        """What principals with a quota hold, and those named, by name.

        Raises:
            SessionClosedError: the cache is closed.
        """
        with self._parts.close_guard.while_open():
            self._parts.sessions.reap_abandoned()
            return self._parts.quotas.principals.stats(principals)

    @property
    def output_use(self) -> OutputUse:
        """How old outputs are when they are drafted from, and how long unused when they are evicted."""
        return self._parts.catalog.use

    def background_tasks(self) -> dict[str, TaskStats]:
        """Statistics of the background threads, by name."""
        maintenance = self._parts.maintenance
        found = {
            "maintenance": None if maintenance is None else maintenance.stats(),
            "publish": self._parts.publisher.stats(),
        }
        return {name: stats for name, stats in found.items() if stats is not None}

    def incomplete_outputs(self, session_id: str) -> list[IncompleteOutput]:
        """Outputs of expired or drained sessions with this id, oldest first, also from before a restart."""
        with self._parts.close_guard.while_open():
            return self._parts.store.incomplete(session_id)

    def durability(self) -> SuffixError | None:
        """Why outputs cannot be stored now (out of space, I/O error, closed); None: they can.

        Drafting continues either way, and the store recovers without a restart where possible.
        """
        return self._parts.store.failure()

    def check(self) -> None:
        """Verify the store, every index and every segment file, and compare them with each other.

        A range that an I/O error kept from being loaded is loaded first. The cache can be used meanwhile;
        steps and writes wait for one slice of the check at most. In a namespace with continuous writes the
        hot index is compared in one direction only: every output of the log is in it.

        Raises:
            IndexCorruptError, StoreCorruptError: names what is broken.
        """
        check_cache(self._parts)

    def close(self) -> None:
        """Save the learned tables and release the data folder. Idempotent.

        Live sessions are not committed.
        """
        with self._close_lock:
            if not self._parts.close_guard.close():
                return
            self._parts.stop_threads()
            try:
                self._parts.sessions.reap_abandoned()
                self._parts.catalog.save_learned()
                self._parts.quotas.evictor.save(self._parts.catalog.stored())
            finally:
                self._parts.store.close()
