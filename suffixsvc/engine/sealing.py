"""Outputs on their way into sealed segments, and back.

    seal    log ── texts ──> file ──> manifest ──> index draws from it ──> hot index lets go
    merge   files ─────────> file ──> manifest ──> index draws from it ──> old files go
    repair  index lets go of a damaged file ──> manifest ──> log ── texts ──> hot index, or files

A range that the store could not read to its end in a repair stays one that is still to be loaded: outputs of
it are drafted from as far as they were read, nothing else is sealed, and the next repair or seal reads the
rest.

Every arrow may be the last thing a process does. A file that no manifest names is removed at the next open;
what the manifest names is on the disk, whole. What is sealed counts twice for a moment rather than not at
all. One of these at a time works in a cache, without holding any lock that steps or commits need.

Forgetting goes on meanwhile. What is deleted from the log while a file is being made is still in that file:

* the store buries it, in the transaction that deletes it or in the one that enters the file;
* the index notes what is forgotten since the work began, and forgets it in the new segment before that is
  drafted from. The store notifies it in the order of its commits: when the manifest has the file, the index
  knows of every deletion before that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from suffixsvc.core.segments import Segment, SegmentJob, SegmentText, build_segment, merge_segments
from suffixsvc.engine import segment_files
from suffixsvc.engine.tiering import Size, plan_merge
from suffixsvc.errors import (
    SegmentCancelledError,
    SegmentCorruptError,
    StoreClosedError,
    StoreError,
    SuffixError,
)
from suffixsvc.index import NamespaceIndex, Sealed
from suffixsvc.index.texts import texts_of
from suffixsvc.types import OutputId, SegmentRecord, Store, StoredOutput

__all__ = ["Hook", "Sealer"]

log = structlog.get_logger(__name__)

#: called at named points; tests end the process there
Hook = Callable[[str], None]


class Sealer:
    """Seals, merges and repairs. Not thread-safe: one thread at a time (``Maintenance.work``).

    With a namespace that is deleted it does nothing: its path may be another's already.

    Args:
        store: with a folder for segments.
        batch_tokens: of one seal.
        hook: see :data:`Hook`.
    """

    def __init__(self, store: Store, batch_tokens: int, hook: Hook | None = None) -> None:
        folder = store.segment_folder
        if folder is None:
            raise StoreError("this store keeps nothing", remedy="Give the cache a data folder.")
        self._store = store
        self._folder = folder
        self._batch_tokens = batch_tokens
        self._hook = hook or (lambda point: None)
        self._job = SegmentJob()
        self._cancelled = False

    def cancel(self) -> None:
        """End the build or merge under way, and every later one, with SegmentCancelledError. Any thread."""
        self._cancelled = True
        self._job.cancel()

    # --------------------------------------------------------------------------------------------- opening

    def sweep(self, namespaces: Iterable[str]) -> None:
        """Remove what earlier processes left in the folder of segments."""
        keep = {record.name for path in namespaces for record in self._store.segments(path)}
        segment_files.sweep(self._folder, keep)

    def open(self, index: NamespaceIndex, note: Callable[[int], None]) -> None:
        """Map the segments of a namespace's manifest, and load from the log what they do not hold.

        Args:
            note: told how many more outputs are there.
        """
        records = self._store.segments(index.path)
        buried = self._store.tombstones(index.path) if records else {}
        damaged = []
        for record in records:
            gone = {i: tokens for i, tokens in buried.items() if record.covers(i)}
            try:
                segment = self._open_segment(record, gone)
            except StoreError as error:
                _log_damage(index.path, record, error)
                damaged.append((record, error))
                continue
            left = record.outputs - len(gone)
            index.attach(Sealed(record, segment, left, record.tokens - sum(gone.values())))
            note(left)
        self._discard(index, damaged)
        last = self._store.stats().last_lsn
        for first, end in index.hot_ranges(last):  # nothing is deleted yet
            with _loading(index, first, end):
                self._load(index, first, end, note)

    def _open_segment(self, record: SegmentRecord, gone: Iterable[OutputId]) -> Segment:
        path = self._folder / record.name
        segment = Segment(path, gone)
        stats = segment.stats()
        if stats.file_bytes != record.file_bytes or not (
            record.covers(stats.first_lsn) and record.covers(stats.last_lsn)
        ):
            raise SegmentCorruptError(
                f"segment file {path} is not the one in the manifest",
                expected=f"{record.file_bytes} bytes, outputs {record.first_lsn} .. {record.last_lsn}",
                got=f"{stats.file_bytes} bytes, outputs {stats.first_lsn} .. {stats.last_lsn}",
                remedy="It is built again from the log.",
            )
        return segment

    def _discard(self, index: NamespaceIndex, damaged: Sequence[tuple[SegmentRecord, StoreError]]) -> None:
        """Out of the manifest, and off the disk what is ours. Where the store cannot write, it stays in the
        manifest for now, and nothing of the namespace can be sealed."""
        damaged = [*index.upkeep.undropped, *damaged]
        if not damaged:
            return
        index.upkeep.undropped = damaged
        try:
            self._store.drop_segments(index.path, [record.name for record, _ in damaged])
        except StoreError as error:  # full, or an I/O error that may pass
            log.warning("a damaged segment stays in the manifest", namespace=index.path, error=str(error))
            return
        index.upkeep.undropped = []
        self._hook("repair-dropped")
        self._remove_damaged(damaged)

    def _remove_damaged(self, damaged: Sequence[tuple[SegmentRecord, StoreError]]) -> None:
        for record, why in damaged:
            # a newer version's or somebody else's stays; what could not be read is swept at the next open
            if isinstance(why, SegmentCorruptError):
                segment_files.remove(self._folder / record.name)

    # --------------------------------------------------------------------------------------------- sealing

    def seal(self, index: NamespaceIndex) -> int:
        """Seal the oldest outputs that are hot, as many as make a batch. Returns how many; 0: none.

        Raises:
            StoreFullError, StoreError: nothing was sealed; old segments stay valid.
            SegmentCancelledError
        """
        if index.deleted:
            return 0
        self._discard(index, ())
        self.finish_load(index)
        index.begin_move()
        try:
            for first, end in index.hot_ranges(self._store.stats().last_lsn):
                batch, _ = self._batch(self._rows(index.path, first, end))
                if batch:
                    return self._seal(index, batch)
            return 0
        finally:
            index.end_move()

    def _seal(self, index: NamespaceIndex, batch: Sequence[StoredOutput]) -> int:
        self._hook("seal-read")
        record, segment = self._build(index, batch)
        with index.moving:
            moved = index.take_over(record, segment, batch)
            self._hook("seal-published")
            missing = index.drop_hot(moved)
        if missing:
            log.error("sealed outputs were not in the hot index", namespace=index.path, outputs=missing)
        self._hook("seal-done")
        return len(batch)

    def _build(self, index: NamespaceIndex, batch: Sequence[StoredOutput]) -> tuple[SegmentRecord, Segment]:
        """A file of these outputs, on the disk and in the manifest."""
        ids = [stored.output_id for stored in batch]
        path = segment_files.new_path(self._folder, index.path, ids[0], ids[-1])
        texts = (
            SegmentText(tokens, context, stored.output_id)
            for stored in batch
            for tokens, context in texts_of(stored.output)
        )
        with self._new_file(path) as job:
            build_segment(path, texts, job=job)
            self._hook("seal-built")
            segment = Segment(path)
            sizes = {stored.output_id: len(stored.output.token_ids) for stored in batch}
            record = self._store.add_segment(index.path, path.name, segment.stats().file_bytes, sizes)
            self._hook("seal-entered")
        return record, segment

    @contextmanager
    def _new_file(self, path: Path) -> Iterator[SegmentJob]:
        """A job to make the file with; if the block fails the file goes. After an interrupt it stays: whether
        the manifest names it is not known then."""
        self._job = job = SegmentJob()
        if self._cancelled:
            job.cancel()
        try:
            yield job
        except SuffixError:
            segment_files.remove(path)
            raise

    def _rows(self, path: str, first: OutputId, last: OutputId) -> Iterator[StoredOutput]:
        """The log's rows of a range, read as they are asked for."""
        if not self._store.output_ids(path, first, last, limit=1):
            return
        for stored in self._store.scan(path, from_lsn=first):
            if stored.output_id > last:
                return
            yield stored

    def _batch(self, rows: Iterator[StoredOutput]) -> tuple[list[StoredOutput], bool]:
        """Rows of as many tokens as a seal takes, and whether it is full."""
        batch: list[StoredOutput] = []
        tokens = 0
        for stored in rows:
            batch.append(stored)
            tokens += len(stored.output.token_ids)
            if tokens >= self._batch_tokens:
                return batch, True
        return batch, False

    # --------------------------------------------------------------------------------------------- merging

    def merge(self, index: NamespaceIndex) -> bool:
        """Merge what has come to be of one tier; whether there was anything to do. Raises as :meth:`seal`."""
        if index.deleted:
            return False
        sealed = index.sealed()
        window = plan_merge(self._sizes(index.path, sealed))
        if window is None:
            return False
        self._merge(index, [sealed[i] for i in window])
        return True

    def merge_all(self, index: NamespaceIndex) -> int:
        """Merge all neighbours, and write anew what holds forgotten outputs; how many segments are left."""
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
        """One segment in the place of others, or none where every output of theirs is forgotten."""
        names = [each.record.name for each in old]
        first, last = old[0].record.first_lsn, old[-1].record.last_lsn
        index.begin_move()
        try:
            buried = self._buried(index.path, first, last)
            if len(buried) == sum(each.record.outputs for each in old):
                self._store.drop_segments(index.path, names)
                index.detach(names)
            else:
                self._replace(index, old, buried)
        finally:
            index.end_move()
        for name in names:
            segment_files.remove(self._folder / name)
            self._hook("merge-removed")

    def _replace(self, index: NamespaceIndex, old: Sequence[Sealed], buried: Sequence[OutputId]) -> None:
        names = [each.record.name for each in old]
        first, last = old[0].record.first_lsn, old[-1].record.last_lsn
        for each in old:
            each.segment.forget(buried)
        path = segment_files.new_path(self._folder, index.path, first, last)
        with self._new_file(path) as job:
            merge_segments(path, [each.segment for each in old], job=job)
            self._hook("merge-built")
            segment = Segment(path)
            size = segment.stats().file_bytes
            record = self._store.replace_segments(index.path, names, path.name, size, buried)
            self._hook("merge-entered")
        segment.forget(self._buried(index.path, first, last))
        index.exchange(record, segment, names)
        self._hook("merge-published")

    def _buried(self, path: str, first: OutputId, last: OutputId) -> list[OutputId]:
        return [i for i in self._store.tombstones(path) if first <= i <= last]

    def remove_all(self, index: NamespaceIndex) -> None:
        """The store has deleted the namespace: take its segments out of use and off the disk."""
        names = [each.record.name for each in index.sealed()]
        index.detach(names)
        for name in names:
            segment_files.remove(self._folder / name)
        self._remove_damaged(index.upkeep.undropped)
        index.upkeep.undropped = []

    # -------------------------------------------------------------------------------------------- repairing

    def repair(self, index: NamespaceIndex) -> int:
        """Take segments in which damage was found out of use; their outputs come from the log again. Returns
        how many.

        Raises:
            StoreError: the rest is done by the next call, or before the next seal.
            SegmentCancelledError
        """
        self.finish_load(index)
        damaged = [] if index.deleted else [each for each in index.sealed() if each.segment.corrupt]
        for each in damaged:
            record = each.record
            error = SegmentCorruptError(f"segment file {each.segment.path} is damaged")
            _log_damage(index.path, record, error)
            self._reload(index, record.first_lsn, record.last_lsn, [(record, error)])
        return len(damaged)

    def finish_load(self, index: NamespaceIndex) -> None:
        """Read the rest of a range of which an earlier repair could read a part. Raises as :meth:`repair`."""
        if (unloaded := index.unloaded) is not None and not index.deleted:
            self._reload(index, *unloaded, ())

    def _reload(
        self,
        index: NamespaceIndex,
        first: OutputId,
        last: OutputId,
        damaged: Sequence[tuple[SegmentRecord, StoreError]],
    ) -> None:
        """Read a range back while the cache is in use, instead of from damaged segments."""
        with index.moving, _loading(index, first, last, [record.name for record, _ in damaged]):
            self._discard(index, damaged)
            self._load(index, first, last, lambda count: None)
            # the index must know of what was deleted before it could be read
            with suppress(StoreClosedError):  # then nothing is deleted any more
                self._store.barrier()

    def _load(
        self,
        index: NamespaceIndex,
        first: OutputId,
        last: OutputId,
        note: Callable[[int], None],
    ) -> None:
        """Read a range back from the log: into files where it is long, into the hot index otherwise."""
        rows = (stored for stored in self._rows(index.path, first, last) if index.awaits(stored.output_id))
        full = True
        while full:
            batch, full = self._batch(rows)
            if not (full and self._seal_loaded(index, batch)):
                for stored in batch:
                    index.load(stored)
            note(len(batch))

    def _seal_loaded(self, index: NamespaceIndex, batch: Sequence[StoredOutput]) -> bool:
        """Seal outputs that are in no index; False where the disk does not let us."""
        try:
            record, segment = self._build(index, batch)
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
    """While a range is read back from the log; if the block fails it is still to be loaded."""
    index.begin_load(first, last, names)
    try:
        yield
        index.end_load()
    finally:
        index.end_move()


def _log_damage(path: str, record: SegmentRecord, error: StoreError) -> None:
    log.error(
        "a segment cannot be used; its outputs are read from the log",
        namespace=path,
        file=record.name,
        first_lsn=record.first_lsn,
        last_lsn=record.last_lsn,
        error=str(error),
    )
