"""Offline check of a data folder: pages, records, segments. Nothing is changed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from suffixsvc.core.segments import Segment
from suffixsvc.engine.backup import verification
from suffixsvc.engine.backup.manifest import MANIFEST_NAME
from suffixsvc.errors import StoreCorruptError, StoreError, StoreForeignError
from suffixsvc.store.files import datafile
from suffixsvc.store.files.folder import DATA_FILE, SEGMENTS, require_data_folder
from suffixsvc.store.files.salvage import SalvageReader
from suffixsvc.store.folder_reading import reading
from suffixsvc.store.transactions import checker
from suffixsvc.store.transactions.read_view import ReadView
from suffixsvc.types import OutputId, SegmentRecord

#: findings that are listed; a damaged record can break many invariants
MAX_FINDINGS: Final = 1000


@dataclass(frozen=True, slots=True)
class Finding:
    """One damage.

    Attributes:
        area: "pages" of the data file, "records" in it, "segments", or "backup": a file is not that of the
            manifest of the backup.
        message: what is damaged.
    """

    area: str
    message: str


def check_backup(data: Path) -> list[Finding] | None:
    """Compare a backup with its manifest, as `restore` does.

    Returns:
        What differs, at most :data:`MAX_FINDINGS`; None: the folder has no manifest, so it is not a backup.

    Raises:
        InvalidConfigError: the folder has no data file.
        StoreForeignError, StoreError: it cannot be checked.
    """
    require_data_folder(data)
    if not (data / MANIFEST_NAME).exists():
        return None
    return [Finding("backup", _text(error)) for error in islice(verification.faults(data), MAX_FINDINGS)]


def check_folder(data: Path) -> list[Finding]:
    """Verify a data folder that no process has open.

    Returns:
        What is damaged, at most :data:`MAX_FINDINGS`; empty: the folder is sound. After damaged pages neither
        records nor segments are read, because LMDB would follow their page numbers.

    Raises:
        InvalidConfigError: the folder has no data file.
        StoreLockedError, StoreForeignError, StoreError: it cannot be checked.
    """
    require_data_folder(data)
    try:
        with reading(data) as view:
            found = list(islice(_findings(view, data / SEGMENTS), MAX_FINDINGS))
    except StoreCorruptError as error:
        faults = _page_faults(data / DATA_FILE)
        found = [Finding("pages", fault) for fault in faults] or [Finding("records", _text(error))]
    except StoreForeignError:
        fault = _damaged_meta_page(data / DATA_FILE)
        if fault is None:
            raise
        found = [Finding("pages", fault)]
    return found


def _damaged_meta_page(path: Path) -> str | None:
    """Return what is damaged if one meta page is not LMDB's and the other one is; None otherwise."""
    try:
        datafile.inspect(str(path))
    except StoreForeignError:
        with suppress(StoreCorruptError), SalvageReader(path) as reader:
            return next(iter(reader.faults), None)
    return None


def _page_faults(path: Path) -> list[str]:
    try:
        datafile.require_whole(str(path), datafile.inspect(str(path)))
        return datafile.page_faults(str(path))[:MAX_FINDINGS]
    except StoreCorruptError as error:
        return [_text(error)]


def _findings(view: ReadView, folder: Path) -> Iterator[Finding]:
    for error in checker.findings(view):
        yield Finding("records", _text(error))
    for number, manifest in view.manifests.items():
        for record in manifest:
            deleted = view.tombstones(number, record.first_lsn, record.last_lsn)
            for message in segment_faults(view, number, record, folder / record.name, deleted):
                yield Finding("segments", f"{record.name}: {message}")


def segment_faults(
    view: ReadView, number: int, record: SegmentRecord, path: Path, deleted: Collection[OutputId]
) -> Iterator[str]:
    """Compare a segment with the log: its file, its blocks, its outputs.

    Args:
        view: of the log.
        number: of the namespace.
        record: of the segment.
        path: its file.
        deleted: outputs of its range that have a tombstone.
    """
    try:
        segment = Segment(path)
        stats = segment.stats()
        held = set(segment.outputs())
        segment.check()
    except StoreForeignError as error:
        yield f"it cannot be used by this release: {_text(error)}"
        return
    except StoreError as error:
        yield _text(error)
        return
    if stats.file_bytes != record.file_bytes:
        yield f"it has {stats.file_bytes} bytes, {record.file_bytes} in the manifest"
    logged = set(view.lsns(number, record.first_lsn, record.last_lsn))
    if lost := logged - held:
        yield f"it lacks {len(lost)} outputs of the log, the first is {min(lost)}"
    if extra := held - logged - set(deleted):
        yield f"it has {len(extra)} outputs that are not in the log, the first is {min(extra)}"


def _text(error: StoreError) -> str:
    """What an error says, without its remedy."""
    parts = [error.message]
    parts += [] if error.expected is None else [f"expected {error.expected}"]
    parts += [] if error.got is None else [f"got {error.got}"]
    return "; ".join(parts)
