"""Comparison of the files of a backup with its manifest, for `restore` and `check`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from suffixsvc.engine.backup.manifest import (
    HEADER_BYTES,
    BackupManifest,
    SegmentEntry,
    file_xxh3,
    read_manifest,
)
from suffixsvc.errors import StoreCorruptError, StoreError
from suffixsvc.store.files.folder import DATA_FILE, SEGMENTS, disk_error


def require_data_of(manifest: BackupManifest, path: Path, found: tuple[int, str]) -> None:
    """Raise StoreCorruptError unless ``found``, as of :func:`file_xxh3`, is that of the manifest.

    Args:
        manifest: of the backup.
        path: of the data file, for the error.
        found: its size in bytes, and its xxh3-128; (0, "") if it is missing.
    """
    if found != (manifest.data.bytes, manifest.data.xxh3):
        raise StoreCorruptError(
            f"{path} must be the file of the manifest",
            expected=f"{manifest.data.bytes} bytes with xxh3-128 {manifest.data.xxh3}",
            got=f"{found[0]} bytes with xxh3-128 {found[1] or 'none'}",
            remedy="Restore another backup. A backup that a service has opened is a data folder of its own.",
        )


def is_segment_of(entry: SegmentEntry, path: Path) -> bool:
    """Whether a segment file has the size and the header of the manifest; its blocks are not read.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        size = path.stat().st_size
        _, header = file_xxh3(path, HEADER_BYTES)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise disk_error(error, str(path), "reading") from error
    return (size, header) == (entry.bytes, entry.header_xxh3)


def faults(backup: Path) -> Iterator[StoreError]:
    """Yield what differs from the manifest; of `restore`, the same errors.

    Raises:
        StoreForeignError: the folder is not a complete backup, or one of another version.
        StoreError: a file cannot be read.
    """
    try:
        manifest = read_manifest(backup)
        path = backup / DATA_FILE
        try:
            found = file_xxh3(path)
        except OSError as error:
            raise disk_error(error, str(path), "reading") from error
        require_data_of(manifest, path, found)
    except StoreCorruptError as error:
        yield error
        return
    for entry in manifest.segments:
        path = backup / SEGMENTS / entry.name
        if not is_segment_of(entry, path):
            yield StoreCorruptError(
                f"{path} must be the file of the manifest",
                remedy="It can be restored: its outputs are in the log, and are sealed again.",
            )
