"""``suffixsvc backup``: a consistent copy of a data folder, also while a service has it open."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from suffixsvc_cli.base.options import AsJson, Data, Server, require_one_store


def backup(
    folder: Annotated[Path, typer.Argument(help="Folder of the backup: new or empty, in an existing one.")],
    server: Server = None,
    data: Data = None,
    copy_segments: Annotated[
        bool,
        typer.Option("--copy-segments", help="Copy segment files, instead of links where possible."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a backup: a data folder of its own, with checksums, that holds the log as of one LSN.

    A service goes on meanwhile, and writes the folder itself, on its host and as its user. Segment files are
    hard-linked on the same file system: --copy-segments makes the backup independent of damage to the
    original files. Interrupted backups leave no folder.

        suffixsvc backup /backups/monday --server unix:./suffixsvc.sock
    """
    from suffixsvc_cli.base.bars import progress_bar

    require_one_store(server, data)
    folder = folder.absolute()
    with progress_bar("outputs") as show:
        if server is not None:
            from suffixsvc_client import SuffixClient

            with SuffixClient(server) as client:
                done = client.backup(folder, copy_segments=copy_segments, progress=show)
            found = asdict(done)
        else:
            from suffixsvc.engine.backup.writer import back_up_folder

            assert data is not None  # noqa: S101 - require_one_store
            manifest = back_up_folder(data, folder, copy_segments=copy_segments, progress=show)
            found = manifest.summary()
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **found}))
        return
    typer.echo(
        f"{folder}: {found['outputs']:,} outputs, {found['tokens']:,} tokens in {found['namespaces']:,} "
        f"namespaces and {found['segments']:,} segments, {found['bytes'] / 2**20:.1f} MiB, "
        f"as of LSN {found['lsn']}"
    )
