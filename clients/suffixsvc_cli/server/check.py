"""``suffixsvc check``: offline verification of a data folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from suffixsvc_cli.base.options import AsJson


def check(
    data: Annotated[Path, typer.Option(help="Data folder that no process has open.")],
    as_json: AsJson = False,
) -> None:
    """Verify every page, record and segment of a data folder, and compare them with each other.

    Prints what is damaged. Exit code 0: nothing; 1: something; 2: the folder could not be checked. Nothing is
    changed. A backup can be checked as well: it is a data folder.

        suffixsvc check --data ./data
    """
    from suffixsvc.engine.repair.inspection import MAX_FINDINGS, check_folder

    findings = check_folder(data)
    if as_json:
        typer.echo(json.dumps({"data": str(data), "findings": [asdict(each) for each in findings]}))
    elif not findings:
        typer.echo(f"{data}: sound")
    else:
        for each in findings:
            typer.echo(f"{each.area}\t{each.message}")
        count = f"{len(findings)}" if len(findings) < MAX_FINDINGS else f"at least {MAX_FINDINGS}"
        typer.echo(f"{data}: {count} findings. See: suffixsvc repair --help", err=True)
    if findings:
        raise typer.Exit(1)
