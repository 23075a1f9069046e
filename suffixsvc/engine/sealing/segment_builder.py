"""Creation of segment files: reads outputs from the log, writes the file and adds it to the manifest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from suffixsvc.core.segments import Segment, SegmentJob, SegmentText, build_segment
from suffixsvc.engine.sealing import segment_files
from suffixsvc.errors import SuffixError
from suffixsvc.index import NamespaceIndex
from suffixsvc.index.texts import texts_of
from suffixsvc.runtime.sync_points import SyncPoint
from suffixsvc.store.base import Store
from suffixsvc.types import SegmentRecord, StoredOutput


class SegmentBuilder:
    """Builds the segment files of one cache. Not thread-safe, except :meth:`cancel`.

    Args:
        store: the store; it must have a segment folder.
        sync_point: see :mod:`suffixsvc.runtime.sync_points`.

    Attributes:
        folder: the segment folder.
    """

    def __init__(self, store: Store, sync_point: SyncPoint) -> None:
        assert store.segment_folder is not None  # noqa: S101 - SuffixCache seals in a data folder only
        self.folder: Path = store.segment_folder
        self.sync_point = sync_point
        self._store = store
        self._job = SegmentJob()
        self._cancelled = False

    def cancel(self) -> None:
        """End the build or merge in progress, and every later one, with SegmentCancelledError. Any thread."""
        self._cancelled = True
        self._job.cancel()

    def build(self, index: NamespaceIndex, batch: Sequence[StoredOutput]) -> tuple[SegmentRecord, Segment]:
        """Write a segment of these outputs and add it to the manifest.

        Raises:
            StoreError: the file was removed; SegmentCancelledError as well.
        """
        ids = [stored.output_id for stored in batch]
        path = segment_files.new_path(self.folder, index.path, ids[0], ids[-1])
        texts = (
            SegmentText(tokens, context, stored.output_id)
            for stored in batch
            for tokens, context in texts_of(stored.output)
        )
        with self.new_file(path) as job:
            build_segment(path, texts, job=job)
            self.sync_point("seal-built")
            segment = Segment(path)
            sizes = {stored.output_id: len(stored.output.token_ids) for stored in batch}
            record = self._store.add_segment(index.path, path.name, segment.stats().file_bytes, sizes)
            self.sync_point("seal-entered")
        return record, segment

    @contextmanager
    def new_file(self, path: Path) -> Iterator[SegmentJob]:
        """A job that writes a file, which is removed if the block fails.

        After an interrupt the file stays, because it may be in the manifest.
        """
        self._job = job = SegmentJob()
        if self._cancelled:
            job.cancel()
        try:
            yield job
        except SuffixError:
            segment_files.remove(path)
            raise
