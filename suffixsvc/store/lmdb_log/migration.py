"""Backup of a data folder of an older schema, which a migration to the current schema begins with.

    FOLDER/backup-schema-3/    a data folder of the earlier release: the data file before the migration

A migration that was interrupted after its backup, by a kill for example, uses that backup.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import structlog

from suffixsvc.errors import StoreError, StoreForeignError
from suffixsvc.runtime.atomic_file import atomic_file, remove_stale_temporaries, sync_folder
from suffixsvc.runtime.sync_points import SyncPoint
from suffixsvc.store.files import datafile
from suffixsvc.store.files.folder import DATA_FILE, backup_folder, disk_error
from suffixsvc.store.records.table_records import SCHEMA_VERSION

log = structlog.get_logger(__name__)


def back_up(folder: str, schema: int, *, migrate: bool, sync_point: SyncPoint) -> None:
    """Copy the data file of a folder of an older schema, before anything writes to it.

    Args:
        migrate: whether the folder may be migrated.

    Raises:
        StoreForeignError: it may not.
        StoreError: another backup of this schema is in the folder.
        StoreFullError: no room for the copy.
    """
    if not migrate:
        raise StoreForeignError(
            f"data folder {folder} must have schema {SCHEMA_VERSION}",
            got=f"schema {schema}, of an earlier release",
            remedy=f"Migrate it with `suffixsvc migrate {folder}`, `suffixsvc serve --migrate` or "
            "SuffixCache(..., migrate=True), which first write a backup into it. The earlier release refuses "
            "the folder afterwards.",
        )
    source, target = Path(folder, DATA_FILE), Path(backup_folder(folder, schema), DATA_FILE)
    if target.exists():
        if datafile.state_digest(str(source)) == datafile.state_digest(str(target)):
            return
        raise StoreError(
            f"{target.parent} must not exist before a migration",
            got="the backup of another state of the folder",
            remedy="Move it away, or delete it if it is not needed any more.",
        )
    try:
        target.parent.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder)
        remove_stale_temporaries(target)
        with source.open("rb") as data, atomic_file(target) as copy:
            os.fchmod(copy.fileno(), 0o600)
            shutil.copyfileobj(data, copy, 1 << 20)
            sync_point("backup-copied")
    except OSError as e:
        raise disk_error(e, str(target), "writing the backup") from e
    sync_point("backup-written")
    datafile.verify(str(target))
    log.info("data folder backed up before its migration", folder=folder, backup=str(target.parent))


def discard_backup(folder: str, schema: int) -> None:
    """Remove the backup of a migration for which there was no room."""
    shutil.rmtree(backup_folder(folder, schema), ignore_errors=True)
