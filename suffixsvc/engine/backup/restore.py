"""Restoring of a backup as the log of a new node.

    backup.json ── checksums ──> data.mdb, segments/ ── copies ──> new node id ──> the folder gets its name

The log of a restored backup goes on from an earlier LSN than readers may have followed it to. With another
node id their positions are of another log, and they begin again with the contents.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import xxhash

from suffixsvc.core.segments import Segment
from suffixsvc.engine.backup.manifest import BackupManifest, SegmentEntry, read_manifest
from suffixsvc.engine.backup.verification import is_segment_of, require_data_of
from suffixsvc.errors import StoreCorruptError, StoreError
from suffixsvc.runtime.sync_points import SyncPoint
from suffixsvc.store.copies.new_file import NewDataFile
from suffixsvc.store.files import datafile
from suffixsvc.store.files.folder import DATA_FILE, SEGMENTS, disk_error
from suffixsvc.store.files.new_folder import new_folder
from suffixsvc.store.transactions.manifest import drop_segments
from suffixsvc.store.transactions.write_view import WriteView

log = structlog.get_logger(__name__)

_PIECE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored folder.

    Attributes:
        manifest: of the backup.
        node_id: the new one, 16 hexadecimal digits.
        rebuilt: segment files that are damaged or missing in the backup. Their outputs are in the log, and
            are sealed again when the folder is opened.
        access_controlled: the log was served with access control, and only so can it be served now.
    """

    manifest: BackupManifest
    node_id: str
    rebuilt: tuple[str, ...]
    access_controlled: bool


def restore(
    backup: Path,
    data: Path,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
    sync_point: SyncPoint = lambda name: None,
) -> Restored:
    """Verify a backup and copy it into a new data folder.

    Args:
        backup: a folder that :class:`~suffixsvc.engine.backup.writer.BackupWriter` wrote; it is not changed.
        data: the data folder: does not exist, or is empty; its parent exists.
        progress: called with (bytes so far, bytes in all).
        sync_point: see :mod:`suffixsvc.runtime.sync_points`.

    Raises:
        StoreForeignError: ``backup`` is not a complete backup, or one of another version.
        StoreCorruptError: its data file or its manifest is damaged; nothing was written.
        InvalidInputError: ``data`` has content.
        StoreFullError, StoreError: it cannot be written; nothing remains.
    """
    manifest = read_manifest(backup)
    done = 0

    def on_piece(size: int) -> None:
        nonlocal done
        done += size
        progress(done, manifest.total_bytes)

    with new_folder(data, "--data", sync_point) as folder:
        sync_point("restore-begun")
        _copy_data(backup / DATA_FILE, folder / DATA_FILE, manifest, on_piece)
        sync_point("restore-data")
        (folder / SEGMENTS).mkdir(mode=0o700)
        rebuilt = []
        for entry in manifest.segments:
            if not _copy_segment(backup / SEGMENTS, folder / SEGMENTS, entry, on_piece):
                rebuilt.append(entry.name)
            sync_point("restore-segment")
        with NewDataFile(folder) as target:
            node_id = target.write(partial(_renew, manifest=manifest, rebuilt=frozenset(rebuilt)))
            access_controlled = target.read(lambda view: view.access_controlled)
            target.finish()
        sync_point("restore-renewed")
    return Restored(manifest, f"{node_id:016x}", tuple(rebuilt), access_controlled)


def _copy_data(source: Path, target: Path, manifest: BackupManifest, on_piece: Callable[[int], None]) -> None:
    try:
        found = _copy(source, target, on_piece)
    except FileNotFoundError:
        found = (0, "")
    require_data_of(manifest, source, found)
    datafile.verify(str(target))


def _copy_segment(source: Path, target: Path, entry: SegmentEntry, on_piece: Callable[[int], None]) -> bool:
    """Copy and verify a segment file; whether it is whole. Without it its outputs are read from the log."""
    path = target / entry.name
    try:
        with suppress(FileNotFoundError):
            _copy(source / entry.name, path, on_piece)
        if is_segment_of(entry, path):
            Segment(path).check()
            return True
        error: object = "not the file of the manifest"
    except StoreError as failure:
        error = failure
    log.warning("a segment of the backup is damaged; it is rebuilt", file=entry.name, error=str(error))
    path.unlink(missing_ok=True)
    return False


def _copy(source: Path, target: Path, on_piece: Callable[[int], None]) -> tuple[int, str]:
    """Copy a file durably; return (its bytes, their xxh3-128), of what was read.

    Raises:
        FileNotFoundError, StoreError.
    """
    digest = xxhash.xxh3_128()
    size = 0
    try:
        with source.open("rb") as reader, target.open("xb") as writer:
            os.fchmod(writer.fileno(), 0o600)
            while data := reader.read(_PIECE_BYTES):
                digest.update(data)
                writer.write(data)
                size += len(data)
                on_piece(len(data))
            writer.flush()
            os.fsync(writer.fileno())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise disk_error(error, str(source), "copying") from error
    return size, digest.hexdigest()


def _renew(view: WriteView, manifest: BackupManifest, rebuilt: frozenset[str]) -> int:
    """Make the log that of a new node, without the segments to rebuild; return its node id."""
    found = (f"{view.node_id:016x}", view.counters.last_lsn)
    if found != (manifest.node_id, manifest.lsn):
        raise StoreCorruptError(
            "the data file of the backup must be of its manifest",
            expected=f"node {manifest.node_id}, LSN {manifest.lsn}",
            got=f"node {found[0]}, LSN {found[1]}",
        )
    for number, records in list(view.manifests.items()):
        if names := [record.name for record in records if record.name in rebuilt]:
            drop_segments(view, view.names.by_id[number].path, names)
    view.put_node()
    return view.node_id
