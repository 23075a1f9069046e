"""Repair of a damaged data folder: a new data file from what can be read of the old one.

    data.mdb ── pages, records with their checksums ──> .repairing/data.mdb: indexes, counts, totals anew
    segments ── those that hold what the log holds ───> stay in the manifest; the others are sealed again
    .repairing/data.mdb ── check ──> data.mdb; the old file is in damaged-TIME/

The new file takes the place of the old one in one rename, when it is complete and was checked. Nothing is
deleted: what was replaced is in ``damaged-TIME``, with a report.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from suffixsvc.engine.repair.inspection import Finding, check_folder, segment_faults
from suffixsvc.errors import StoreError
from suffixsvc.runtime.atomic_file import sync_folder, write_atomically
from suffixsvc.runtime.sync_points import SyncPoint
from suffixsvc.store.copies.new_file import NewDataFile
from suffixsvc.store.copies.salvage import Dropped, Salvaged, finish_log, salvage_log
from suffixsvc.store.files.folder import DATA_FILE, SEGMENTS, FolderLock, disk_error
from suffixsvc.store.files.salvage import SalvageReader
from suffixsvc.store.transactions import checker
from suffixsvc.store.transactions.read_view import ReadView
from suffixsvc.store.transactions.snapshot import Manifest
from suffixsvc.types import OutputId, SegmentRecord

_BUILDING: Final = ".repairing"
_REPORT: Final = "report.json"
_JOURNAL: Final = "meta.journal"


@dataclass(slots=True)
class RepairReport:
    """What a repair found, kept and dropped.

    Attributes:
        findings: of the check before; empty: there was nothing to repair.
        outputs, tokens, namespaces: of the new log.
        segments: segment files that are used as they are.
        rebuilt: segment files whose outputs are sealed again when the folder is opened.
        dropped: what the new log lacks.
        unnamed: outputs that were lost and that no readable record or index names, by the counters of the
            log; None if these cannot be read.
        unreadable: parts of the data file that could not be read, one line each.
        aside: folder with the damaged files; empty in a dry run.
    """

    findings: list[Finding]
    outputs: int = 0
    tokens: int = 0
    namespaces: int = 0
    segments: list[str] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    unnamed: int | None = None
    unreadable: list[str] = field(default_factory=list)
    aside: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain["findings"] = [{"area": each.area, "message": each.message} for each in self.findings]
        plain["dropped"] = [each._asdict() for each in self.dropped]
        return plain


def repair_folder(
    data: Path, *, dry_run: bool = False, sync_point: SyncPoint = lambda name: None
) -> RepairReport:
    """Repair a data folder that no process has open.

    The log becomes that of a new node, because followers may hold outputs that it lost.

    Args:
        data: the data folder.
        dry_run: build the new file, report, and remove it.
        sync_point: see :mod:`suffixsvc.runtime.sync_points`.

    Raises:
        InvalidConfigError: the folder has no data file.
        StoreCorruptError: no meta page can be read; the folder is unchanged, as after every error.
        StoreLockedError, StoreForeignError, StoreFullError, StoreError: it cannot be repaired.
    """
    report = RepairReport(check_folder(data))
    if not report.findings:
        return report
    data = data.absolute()
    building = data / _BUILDING
    with ExitStack() as held:
        held.callback(FolderLock(str(data)).release)
        try:
            shutil.rmtree(building, ignore_errors=True)
            held.callback(shutil.rmtree, building, ignore_errors=True)
            building.mkdir(mode=0o700)
            _build(data, building, report)
            sync_point("repair-built")
            if not dry_run:
                _install(data, building, report, sync_point)
        except OSError as error:
            raise disk_error(error, str(data), "repairing") from error
    return report


def _build(data: Path, building: Path, report: RepairReport) -> None:
    with SalvageReader(data / DATA_FILE) as reader, NewDataFile(building) as target:
        found = salvage_log(reader, target)
        kept: dict[int, Manifest] = {}
        tombstones: dict[tuple[int, OutputId], int] = {}
        for number, manifest in sorted(found.manifests.items()):
            if number in found.deleting:
                continue
            for record in manifest:
                if _is_kept(data / SEGMENTS, found, target, number, record, tombstones):
                    kept[number] = (*kept.get(number, ()), record)
                    report.segments.append(record.name)
                else:
                    report.rebuilt.append(record.name)
        kept = {n: tuple(sorted(m, key=lambda record: record.first_lsn)) for n, m in kept.items()}
        finish_log(target, found, kept, tombstones)
        if broken := target.read(_first_broken):
            raise StoreError(
                "the rebuilt log must be sound; the folder was left unchanged",
                got=broken,
                remedy="Restore the folder from a backup, and report this.",
            )
        target.finish()
        report.outputs, report.tokens = target.counters.outputs, target.counters.tokens
        report.namespaces = len(found.namespaces)
        report.dropped, report.unreadable = found.dropped, reader.faults
        if found.outputs_before is not None:
            named = sum(each.kind == "output" for each in found.dropped)
            report.unnamed = max(0, found.outputs_before - report.outputs - named - found.skipped)


def _first_broken(view: ReadView) -> str:
    return next((str(error) for error in checker.findings(view)), "")


def _is_kept(
    folder: Path,
    found: Salvaged,
    target: NewDataFile,
    number: int,
    record: SegmentRecord,
    tombstones: dict[tuple[int, OutputId], int],
) -> bool:
    """Whether a segment holds what the new log and its tombstones have in its range; adds the tombstones."""
    deleted = {
        (n, lsn): tokens
        for (n, lsn), tokens in found.tombstones.items()
        if n == number and record.covers(lsn)
    }

    def is_whole(view: ReadView) -> bool:
        tokens = sum(deleted.values())
        lsns = view.lsns(number, record.first_lsn, record.last_lsn)
        for lsn in lsns:
            row = view.log_record(lsn)
            tokens += 0 if row is None else row.token_count
        if (len(lsns) + len(deleted), tokens) != (record.outputs, record.tokens):
            return False
        dead = {lsn for _, lsn in deleted}
        return not any(segment_faults(view, number, record, folder / record.name, dead))

    if not target.read(is_whole):
        return False
    tombstones |= deleted
    return True


def _install(data: Path, building: Path, report: RepairReport, sync_point: SyncPoint) -> None:
    """Put the new data file in the place of the old one, which stays in a folder of its own."""
    aside = data / f"damaged-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    aside.mkdir(mode=0o700)
    report.aside = str(aside)
    write_atomically(aside / _REPORT, json.dumps(report.as_dict(), indent=1, ensure_ascii=False) + "\n")
    os.link(data / DATA_FILE, aside / DATA_FILE)
    for name in report.rebuilt:
        with suppress(FileNotFoundError):
            os.link(data / SEGMENTS / name, aside / name)
    with suppress(FileNotFoundError):
        os.link(data / _JOURNAL, aside / _JOURNAL)
    sync_folder(aside)
    sync_folder(data)
    sync_point("repair-aside")
    os.replace(building / DATA_FILE, data / DATA_FILE)
    sync_folder(data)
    sync_point("repair-renamed")
    # of the old file; its digest does not match the new one
    (data / _JOURNAL).unlink(missing_ok=True)
    for name in report.rebuilt:
        (data / SEGMENTS / name).unlink(missing_ok=True)
