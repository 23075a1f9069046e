"""``suffixsvc migrate``: a data folder of an earlier release, to the schema of this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def migrate(
    data: Annotated[Path, typer.Argument(help="Data folder that no process has open.")],
) -> None:
    """Migrate a data folder of an earlier release to the schema of this one, after a backup.

    The backup is DATA/backup-schema-N (N: the schema before), a data folder of the earlier release. Delete it
    when you will not go back. A folder of the current schema is left unchanged. See docs/upgrading.md.
    """
    from suffixsvc.errors import InvalidConfigError, StoreFullError
    from suffixsvc.store import LmdbStore
    from suffixsvc.store.files.folder import backup_folder
    from suffixsvc.store.records.table_records import SCHEMA_VERSION

    if not (data / "data.mdb").is_file():
        raise InvalidConfigError("DATA must be a folder with a data.mdb", got=str(data))
    store = LmdbStore(data, migrate=True)
    try:
        if store.schema < SCHEMA_VERSION:
            raise StoreFullError(
                f"data folder {data} must have room for the new schema",
                remedy="Free disk space, and migrate it again; it is unchanged.",
            )
    finally:
        store.close()
    before = store.opened_schema
    migrated = f"migrated from schema {before}; backup: {backup_folder(str(data), before)}"
    done = "unchanged" if before == SCHEMA_VERSION else migrated
    typer.echo(f"{data} has schema {SCHEMA_VERSION} ({done})")
