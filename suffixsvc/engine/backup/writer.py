"""Writing of a backup while the cache is open: a data folder of its own, consistent as of one LSN.

    log       ── LogCopy, short reads ──> data.mdb ─┐
    segments  ── links, or copies ─────> segments/ ─┴─> backup.json ──> the folder gets its name

Segments are immutable, so links to their files are enough on one file system. Those that are merged while
the log is copied are removed from the backup again. At the end seals and merges wait for one short read of
the log and for links to the newest files.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from suffixsvc import __version__
from suffixsvc.engine.backup.manifest import (
    HEADER_BYTES,
    MANIFEST_NAME,
    BackupManifest,
    DataFileEntry,
    SegmentEntry,
    file_xxh3,
)
from suffixsvc.errors import InvalidInputError, StoreError
from suffixsvc.runtime.atomic_file import write_atomically
from suffixsvc.runtime.sync_points import SyncPoint
from suffixsvc.store.copies.log_copy import LogCopy, LogEnd
from suffixsvc.store.copies.new_file import NewDataFile
from suffixsvc.store.files.folder import DATA_FILE, SEGMENTS, disk_error, require_data_folder
from suffixsvc.store.files.new_folder import new_folder
from suffixsvc.store.lmdb_store import LmdbStore
from suffixsvc.store.records.table_records import Counters

log = structlog.get_logger(__name__)

#: errors of a link to a file of another file system, or where the file system has none
_NO_LINK: Final = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)
#: times that files which were made meanwhile are linked before seals and merges wait
_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class BackupProgress:
    """Progress of a backup: outputs copied so far, and outputs that the log had at its beginning."""

    outputs: int
    total: int


class BackupWriter:
    """Writes one backup.

    Args:
        store: the open log.
        folder: the backup: does not exist, or is empty; its parent exists.
        exclusive: blocks seals and merges in a ``with`` block.
        copy_segments: copy the segment files instead of linking to them.
        sync_point: see :mod:`suffixsvc.runtime.sync_points`.

    Attributes:
        manifest: of the complete backup.
    """

    def __init__(
        self,
        store: LmdbStore,
        folder: Path,
        *,
        exclusive: Callable[[], AbstractContextManager[object]],
        copy_segments: bool,
        sync_point: SyncPoint,
    ) -> None:
        self._store, self._folder, self._exclusive = store, folder, exclusive
        self._copy_segments = copy_segments
        self._sync_point = sync_point
        #: inode, time and size of the files that were added
        self._added: dict[str, tuple[int, int, int]] = {}
        self.manifest: BackupManifest | None = None

    def run(self) -> Generator[BackupProgress, None, None]:
        """Write the backup; no lock and no transaction is held while the iterator waits.

        If it is closed before its end, nothing remains.

        Raises:
            InvalidInputError: the folder has content, or is in the data folder.
            StoreLockedError: another backup is being written into it.
            StoreCorruptError: a record of the log is damaged.
            StoreFullError, StoreError: it cannot be written.
        """
        _require_outside(self._folder, self._store.segment_folder.parent)
        with new_folder(self._folder, "the backup's folder", self._sync_point) as partial:
            self._sync_point("backup-begun")
            (partial / SEGMENTS).mkdir(mode=0o700)
            with NewDataFile(partial) as target:
                copy = self._store.begin_copy(target)

                def progress() -> BackupProgress:
                    outputs = target.counters.outputs
                    return BackupProgress(outputs, max(outputs, copy.outputs))

                for _ in copy.rows():
                    self._sync_point("backup-page")
                    yield progress()
                for _ in copy.rest():
                    self._sync_point("backup-rest")
                    yield progress()
                for _ in range(_ROUNDS):
                    before = dict(self._added)
                    self._add_segments(partial, self._store.segment_names())
                    if self._added == before:
                        break
                    yield progress()
                for _ in copy.rows():
                    self._sync_point("backup-page")
                    yield progress()
                end = self._end(copy, partial)
                self._sync_point("backup-ended")
                copy.complete(end)
                self._sync_point("backup-copied")
                target.finish()
            outputs = target.counters.outputs
            yield BackupProgress(outputs, outputs)
            self.manifest = self._describe(partial, end, target.counters)
            write_atomically(partial / MANIFEST_NAME, self.manifest.as_json())
            self._sync_point("backup-described")

    def finish(self, progress: Callable[[int, int], None]) -> BackupManifest:
        """Run to the end, with (outputs so far, outputs in all) to ``progress``; errors as :meth:`run`."""
        for step in self.run():
            progress(step.outputs, step.total)
        if self.manifest is None:
            raise StoreError("a backup ended without its manifest")
        return self.manifest

    def _end(self, copy: LogCopy, partial: Path) -> LogEnd:
        with self._exclusive():
            end = copy.end()
            there = self._add_segments(partial, end.segment_names())
        for name in set(os.listdir(partial / SEGMENTS)) - there:  # merged meanwhile
            (partial / SEGMENTS / name).unlink()
        if missing := end.segment_names() - there:
            log.warning("segment files are missing; their outputs are in the log", files=sorted(missing)[:16])
            end.leave_out(missing)
        return end

    def _add_segments(self, partial: Path, names: set[str]) -> set[str]:
        """Link or copy the segment files that the backup does not have yet; return the names of those it has.

        A segment that is rewritten may have the name of an earlier one, which is then replaced.
        """
        source = self._store.segment_folder
        there = set()
        for name in sorted(names):
            try:
                found = (source / name).stat()
                identity = found.st_ino, found.st_mtime_ns, found.st_size
                if self._added.get(name) != identity:
                    (partial / SEGMENTS / name).unlink(missing_ok=True)
                    self._add_segment(source / name, partial / SEGMENTS / name)
                    self._added[name] = identity
                    self._sync_point("backup-segment")
            except FileNotFoundError:
                continue  # merged meanwhile, or lost
            except OSError as error:
                raise disk_error(error, name, "copying the segment file") from error
            there.add(name)
        return there

    def _add_segment(self, source: Path, target: Path) -> None:
        if not self._copy_segments:
            try:
                os.link(source, target)
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
            else:
                return
        temporary = target.with_suffix(".copy")
        shutil.copyfile(source, temporary)
        with temporary.open("rb") as file:
            os.fchmod(file.fileno(), 0o600)
            os.fsync(file.fileno())
        temporary.replace(target)

    def _describe(self, partial: Path, end: LogEnd, totals: Counters) -> BackupManifest:
        try:
            data = DataFileEntry(*file_xxh3(partial / DATA_FILE))
            segments = [
                SegmentEntry(
                    name,
                    (partial / SEGMENTS / name).stat().st_size,
                    file_xxh3(partial / SEGMENTS / name, HEADER_BYTES)[1],
                )
                for name in sorted(end.segment_names())
            ]
        except OSError as error:
            raise StoreError("the backup must be readable", got=str(error)) from error
        return BackupManifest(
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            made_by=f"suffixsvc {__version__}",
            node_id=f"{end.node_id:016x}",
            lsn=end.lsn,
            namespaces=len(end.names.by_path),
            outputs=totals.outputs,
            tokens=totals.tokens,
            data=data,
            segments=tuple(segments),
        )


def _require_outside(folder: Path, data: Path) -> None:
    """Raise InvalidInputError for a folder in the data folder, where deletions would not erase its texts."""
    try:
        inside = folder.resolve().is_relative_to(data.resolve())
    except (OSError, RuntimeError) as error:  # a loop of links
        raise InvalidInputError(
            "the backup's folder must have a path that can be followed", got=f"{folder}: {error}"
        ) from None
    if inside:
        raise InvalidInputError(
            "the backup's folder must be outside of the data folder",
            got=str(folder),
            remedy="Choose a folder on another disk, or beside the data folder.",
        )


def back_up_folder(
    data: Path, folder: Path, *, copy_segments: bool = False, progress: Callable[[int, int], None]
) -> BackupManifest:
    """Back up a data folder that no process has open; its index is not loaded.

    Args:
        data: the data folder.
        folder, copy_segments: as of :class:`BackupWriter`.
        progress: called with (outputs so far, outputs in all).

    Raises:
        InvalidConfigError: ``data`` has no data file.
        StoreError: as of :meth:`BackupWriter.run`, or the data folder cannot be opened.
    """
    require_data_folder(data)
    store = LmdbStore(data)
    try:
        writer = BackupWriter(
            store,
            folder,
            exclusive=nullcontext,
            copy_segments=copy_segments,
            sync_point=lambda _name: None,
        )
        return writer.finish(progress)
    finally:
        store.close()
