"""Loading of namespaces from segments and log, at open and when a damaged segment is repaired.

    open    manifest ──> map segments; log ──> hot index, or new segments
    repair  stop using a damaged file ──> manifest ──> log ──> hot index, or new segments

If the log cannot be read to the end of a range, the range stays to be loaded: its loaded outputs are drafted
from, no other output of the namespace is sealed, and the next repair or seal reads the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import structlog

from suffixsvc.core.segments import Segment
from suffixsvc.engine.base.log_rows import batches, rows_of
from suffixsvc.engine.sealing import segment_files
from suffixsvc.engine.sealing.segment_builder import SegmentBuilder
from suffixsvc.errors import SegmentCancelledError, SegmentCorruptError, StoreClosedError, StoreError
from suffixsvc.index import NamespaceIndex, Sealed
from suffixsvc.store.base import Store
from suffixsvc.types import OutputId, SegmentRecord, StoredOutput

log = structlog.get_logger(__name__)


class SegmentLoader:
    """Loads and repairs the namespaces of one cache. Not thread-safe (``Maintenance.work``).

    Args:
        store: the store.
        builder: builds new segments.
        batch_tokens: tokens of a new segment.
    """

    def __init__(self, store: Store, builder: SegmentBuilder, batch_tokens: int) -> None:
        self._store = store
        self._batch_tokens = batch_tokens
        self._builder = builder
        self._folder = builder.folder

    # --------------------------------------------------------------------------------------------- opening

    def open_all(
        self, indexes: Sequence[NamespaceIndex], progress: Callable[[int, int], None] | None
    ) -> None:
        """Load the namespaces of earlier processes, and remove segment files that are in no manifest.

        Args:
            indexes: their indexes, which are empty.
            progress: called with (outputs loaded so far, outputs in all).
        """
        keep = {record.name for index in indexes for record in self._store.segments(index.path)}
        segment_files.sweep(self._folder, keep)
        total = self._store.stats().outputs
        done = 0

        def on_progress(outputs: int) -> None:
            nonlocal done
            done += outputs
            if progress is not None and outputs:
                progress(done, total)

        for index in indexes:
            self.open(index, on_progress)

    def open(self, index: NamespaceIndex, on_progress: Callable[[int], None]) -> None:
        """Map the segments of a namespace's manifest, and load the other outputs from the log.

        Args:
            on_progress: called with the number of outputs that were added.
        """
        records = self._store.segments(index.path)
        tombstones = self._store.tombstones(index.path) if records else {}
        damaged = []
        for record in records:
            deleted = {i: tokens for i, tokens in tombstones.items() if record.covers(i)}
            try:
                segment = self._open_segment(record, deleted)
            except StoreError as error:
                _log_damage(index.path, record, error)
                damaged.append((record, error))
                continue
            outputs = record.outputs - len(deleted)
            index.attach(Sealed(record, segment, outputs, record.tokens - sum(deleted.values())))
            on_progress(outputs)
        self.discard(index, damaged)
        last = self._store.stats().last_lsn
        for first, end in index.segments.hot_ranges(last):  # no concurrent deletions yet
            with _loading(index, first, end):
                self._load(index, first, end, on_progress)

    def _open_segment(self, record: SegmentRecord, deleted: Iterable[OutputId]) -> Segment:
        path = self._folder / record.name
        segment = Segment(path, deleted)
        stats = segment.stats()
        if stats.file_bytes != record.file_bytes or not (
            record.covers(stats.first_lsn) and record.covers(stats.last_lsn)
        ):
            raise SegmentCorruptError(
                f"segment file {path} is not the one in the manifest",
                expected=f"{record.file_bytes} bytes, outputs {record.first_lsn} .. {record.last_lsn}",
                got=f"{stats.file_bytes} bytes, outputs {stats.first_lsn} .. {stats.last_lsn}",
                remedy="It is rebuilt from the log.",
            )
        return segment

    # --------------------------------------------------------------------------------------------- repair

    def repair(self, index: NamespaceIndex) -> None:
        """Stop using damaged segments and load their outputs from the log.

        Raises:
            StoreError: the next call, or the next seal, completes the repair.
            SegmentCancelledError
        """
        self.finish_load(index)
        damaged = [] if index.deleted else [each for each in index.sealed() if each.segment.corrupt]
        for each in damaged:
            record = each.record
            error = SegmentCorruptError(f"segment file {each.segment.path} is damaged")
            _log_damage(index.path, record, error)
            self._reload(index, record.first_lsn, record.last_lsn, [(record, error)])

    def finish_load(self, index: NamespaceIndex) -> None:
        """Load the rest of a range that an earlier repair loaded in part. Raises as :meth:`repair`."""
        if (absent := index.segments.absent) is not None and not index.deleted:
            self._reload(index, *absent, ())

    def discard(self, index: NamespaceIndex, damaged: Sequence[tuple[SegmentRecord, StoreError]]) -> None:
        """Remove damaged segments from the manifest and from the disk.

        If the store cannot write, they stay in the manifest, and are removed by a later call; until then
        their range cannot be sealed.
        """
        damaged = [*index.maintenance.undropped, *damaged]
        if not damaged:
            return
        index.maintenance.undropped = damaged
        try:
            self._store.drop_segments(index.path, [record.name for record, _ in damaged])
        except StoreError as error:  # full, or an I/O error that may be transient
            log.warning("a damaged segment stays in the manifest", namespace=index.path, error=str(error))
            return
        index.maintenance.undropped = []
        self._builder.sync_point("repair-dropped")
        self._remove_damaged(damaged)

    def _remove_damaged(self, damaged: Sequence[tuple[SegmentRecord, StoreError]]) -> None:
        for record, error in damaged:
            # files of another version and foreign files stay; unreadable ones are swept at the next open
            if isinstance(error, SegmentCorruptError):
                segment_files.remove(self._folder / record.name)

    def remove_all(self, index: NamespaceIndex) -> None:
        """Stop using the segments of a namespace that the store has deleted, and remove their files."""
        names = [each.record.name for each in index.sealed()]
        index.detach(names)
        for name in names:
            segment_files.remove(self._folder / name)
        self._remove_damaged(index.maintenance.undropped)
        index.maintenance.undropped = []

    # --------------------------------------------------------------------------------------------- loading

    def _reload(
        self,
        index: NamespaceIndex,
        first: OutputId,
        last: OutputId,
        damaged: Sequence[tuple[SegmentRecord, StoreError]],
    ) -> None:
        """Load a range while the cache is in use, instead of reading damaged segments."""
        with index.move_lock, _loading(index, first, last, [record.name for record, _ in damaged]):
            self.discard(index, damaged)
            self._load(index, first, last, lambda count: None)
            # the index must have every deletion from before a row was read
            with suppress(StoreClosedError):  # then there are no deletions any more
                self._store.barrier()

    def _load(
        self,
        index: NamespaceIndex,
        first: OutputId,
        last: OutputId,
        on_progress: Callable[[int], None],
    ) -> None:
        """Load a range from the log: full batches into new segments, the rest into the hot index."""
        all_rows = rows_of(self._store, index.path, first, last)
        rows = (stored for stored in all_rows if index.segments.is_absent(stored.output_id))
        for batch, full in batches(rows, self._batch_tokens):
            if not (full and self._seal_loaded(index, batch)):
                for stored in batch:
                    index.load(stored)
            on_progress(len(batch))

    def _seal_loaded(self, index: NamespaceIndex, batch: Sequence[StoredOutput]) -> bool:
        """Seal outputs that are in no index; False if the store cannot write."""
        try:
            record, segment = self._builder.build(index, batch)
        except SegmentCancelledError:
            raise
        except StoreError as error:
            log.warning("outputs could not be sealed", namespace=index.path, error=str(error))
            return False
        index.attach_loaded(record, segment, batch)
        return True


@contextmanager
def _loading(
    index: NamespaceIndex, first: OutputId, last: OutputId, names: Collection[str] = ()
) -> Iterator[None]:
    """The load of a range; if the block fails, the range stays to be loaded."""
    index.begin_load(first, last, names)
    try:
        yield
        index.segments.complete()
    finally:
        index.segments.end()


def _log_damage(path: str, record: SegmentRecord, error: StoreError) -> None:
    log.error(
        "a segment cannot be used; its outputs are read from the log",
        namespace=path,
        file=record.name,
        first_lsn=record.first_lsn,
        last_lsn=record.last_lsn,
        error=str(error),
    )
