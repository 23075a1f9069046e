"""``suffixsvc restore``: a backup as a new data folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from suffixsvc_cli.base.options import AsJson


def restore(
    backup: Annotated[Path, typer.Argument(help="Folder that `suffixsvc backup` wrote.")],
    data: Annotated[Path, typer.Option(help="Data folder: new or empty, in an existing folder.")],
    as_json: AsJson = False,
) -> None:
    """Verify a backup and copy it into a new data folder, which `suffixsvc serve --data` opens.

    The folder is the log of a new node: followers of the old one begin again with its contents. A damaged
    data file is refused. A damaged segment file is left out: its outputs are in the log, and the first open
    seals them again.

        suffixsvc restore /backups/monday --data ./data
    """
    from suffixsvc.engine.backup.restore import restore as restore_backup
    from suffixsvc_cli.base.bars import progress_bar

    with progress_bar("bytes") as show:
        done = restore_backup(backup, data, progress=show)
    found = {**done.manifest.summary(), "node_id": done.node_id, "rebuilt_segments": list(done.rebuilt)}
    found["access_controlled"] = done.access_controlled
    if as_json:
        typer.echo(json.dumps({"data": str(data), **found}))
        return
    typer.echo(
        f"{data}: {found['outputs']:,} outputs, {found['tokens']:,} tokens in {found['namespaces']:,} "
        f"namespaces, as of LSN {found['lsn']}, as node {done.node_id}"
    )
    if done.access_controlled:
        typer.echo(
            "it was served with access control: give the service its --tokens and --policies, which no "
            "backup has (docs/operations.md)"
        )
    for name in done.rebuilt:
        typer.echo(f"segment {name} of the backup is damaged; its outputs are sealed again at the first open")
