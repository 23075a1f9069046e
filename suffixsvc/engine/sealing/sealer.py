"""Sealing of hot outputs into segments, and merging of segments.

    seal    log ── texts ──> file ──> manifest ──> drafts use the segment ──> remove from the hot index
    merge   files ─────────> file ──> manifest ──> drafts use the segment ──> remove the old files

Each step is crash-safe. A file that is in no manifest is removed at the next open; a file in the manifest is
complete and on the disk. During a seal outputs count twice for a moment rather than not at all. One seal,
merge or repair at a time runs in a cache, without a lock that steps or commits need.

Deletions go on meanwhile. An output that is deleted from the log while a file is written stays in the file:

* the store writes its tombstone in the transaction that deletes it or in the one that adds the file;
* the index records deletions since the work began, and applies them to the new segment before it is drafted
  from. The store sends them in the order of its commits: when the manifest has the file, the index has every
  deletion from before that.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from suffixsvc.core.segments import Segment, merge_segments
from suffixsvc.engine.base.log_rows import batches, rows_of
from suffixsvc.engine.sealing import segment_files
from suffixsvc.engine.sealing.segment_builder import SegmentBuilder
from suffixsvc.engine.sealing.segment_loader import SegmentLoader
from suffixsvc.engine.sealing.tiering import Size, plan_merge
from suffixsvc.index import NamespaceIndex, Sealed
from suffixsvc.runtime.sync_points import SyncPoint
from suffixsvc.store.base import Store
from suffixsvc.types import OutputId, StoredOutput

log = structlog.get_logger(__name__)


class Sealer:
    """Seals and merges the outputs of one cache. Not thread-safe (``Maintenance.work``).

    It does nothing with a deleted namespace, whose path may belong to a later one.

    Args:
        store: a store with a segment folder.
        batch_tokens: tokens of one seal.
        sync_point: see :mod:`suffixsvc.runtime.sync_points`.

    Attributes:
        builder: builds new segments.
        loader: loads and repairs namespaces.
    """

    def __init__(self, store: Store, batch_tokens: int, sync_point: SyncPoint) -> None:
        self._store = store
        self._batch_tokens = batch_tokens
        self.builder = SegmentBuilder(store, sync_point)
        self.loader = SegmentLoader(store, self.builder, batch_tokens)

    # --------------------------------------------------------------------------------------------- sealing

    def seal(self, index: NamespaceIndex) -> int:
        """Seal the oldest hot outputs, at most one batch; returns how many.

        Raises:
            StoreFullError, StoreError: nothing was sealed; existing segments stay valid.
            SegmentCancelledError
        """
        if index.deleted:
            return 0
        self.loader.discard(index, ())
        self.loader.finish_load(index)
        index.segments.begin()
        try:
            for first, end in index.segments.hot_ranges(self._store.stats().last_lsn):
                found = next(batches(rows_of(self._store, index.path, first, end), self._batch_tokens), None)
                if found is not None:  # the scan has ended: it would collect what is deleted meanwhile
                    return self._seal(index, found[0])
            return 0
        finally:
            index.segments.end()

    def _seal(self, index: NamespaceIndex, batch: Sequence[StoredOutput]) -> int:
        self.builder.sync_point("seal-read")
        record, segment = self.builder.build(index, batch)
        with index.move_lock:
            moved = index.move_to_segment(record, segment, batch)
            self.builder.sync_point("seal-published")
            missing = index.drop_hot(moved)
        if missing:
            log.error("sealed outputs were not in the hot index", namespace=index.path, outputs=missing)
        self.builder.sync_point("seal-done")
        return len(batch)

    # --------------------------------------------------------------------------------------------- merging

    def merge(self, index: NamespaceIndex) -> bool:
        """Merge segments of one tier, if there are enough; returns whether it did. Raises as :meth:`seal`."""
        if index.deleted:
            return False
        sealed = index.sealed()
        window = plan_merge(self._sizes(index.path, sealed))
        if window is None:
            return False
        self._merge(index, [sealed[i] for i in window])
        return True

    def merge_all(self, index: NamespaceIndex) -> int:
        """Merge all adjacent segments, and rewrite those with deleted outputs; returns the segments left.

        Raises as :meth:`seal`.
        """
        runs: list[list[Sealed]] = []
        sealed = [] if index.deleted else index.sealed()
        for each, size in zip(sealed, self._sizes(index.path, sealed), strict=True):
            if runs and size.follows:
                runs[-1].append(each)
            else:
                runs.append([each])
        for run in runs:
            if len(run) > 1 or run[0].outputs < run[0].record.outputs:
                self._merge(index, run)
        return len(index.sealed())

    def purge(self, index: NamespaceIndex) -> None:
        """Rewrite the segments that hold deleted outputs. Raises as :meth:`seal`."""
        if index.deleted:
            return
        self.loader.repair(index)
        self.loader.discard(index, ())
        if index.maintenance.undropped:
            raise index.maintenance.undropped[0][1]
        for each in index.sealed():
            if each.outputs < each.record.outputs:
                self._merge(index, [each])

    def _sizes(self, path: str, sealed: Sequence[Sealed]) -> list[Size]:
        sizes = []
        end = 0
        for each in sealed:
            first = each.record.first_lsn
            apart = end > 0 and bool(self._store.output_ids(path, end + 1, first - 1, limit=1))
            sizes.append(Size(each.tokens, each.record.tokens - each.tokens, not apart))
            end = each.record.last_lsn
        return sizes

    def _merge(self, index: NamespaceIndex, old: Sequence[Sealed]) -> None:
        """Replace segments by one, or remove them if all of their outputs are deleted."""
        names = [each.record.name for each in old]
        first, last = old[0].record.first_lsn, old[-1].record.last_lsn
        index.segments.begin()
        try:
            deleted = self._tombstones(index.path, first, last)
            if len(deleted) == sum(each.record.outputs for each in old):
                self._store.drop_segments(index.path, names)
                index.detach(names)
            else:
                self._replace(index, old, deleted)
        finally:
            index.segments.end()
        for name in names:
            segment_files.remove(self.builder.folder / name)
            self.builder.sync_point("merge-removed")

    def _replace(self, index: NamespaceIndex, old: Sequence[Sealed], deleted: Sequence[OutputId]) -> None:
        names = [each.record.name for each in old]
        first, last = old[0].record.first_lsn, old[-1].record.last_lsn
        for each in old:
            each.segment.forget(deleted)
        path = segment_files.new_path(self.builder.folder, index.path, first, last)
        with self.builder.new_file(path) as job:
            merge_segments(path, [each.segment for each in old], job=job)
            self.builder.sync_point("merge-built")
            segment = Segment(path)
            size = segment.stats().file_bytes
            record = self._store.replace_segments(index.path, names, path.name, size, deleted)
            self.builder.sync_point("merge-entered")
        segment.forget(self._tombstones(index.path, first, last))
        index.replace_segments(record, segment, names)
        self.builder.sync_point("merge-published")

    def _tombstones(self, path: str, first: OutputId, last: OutputId) -> list[OutputId]:
        return [i for i in self._store.tombstones(path) if first <= i <= last]
