"""``suffixsvc check``: offline verification of a data folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from suffixsvc_cli.base.counts import counted
from suffixsvc_cli.base.options import AsJson


def check(
    data: Annotated[Path, typer.Option(help="Data folder that no process has open.")],
    as_json: AsJson = False,
) -> None:
    """Verify every page, record and segment of a data folder, and compare them with each other.

    Prints what is damaged. Exit code 0: nothing; 1: something; 2: the folder could not be checked. Nothing is
    changed. A backup can be checked as well: its files are also compared with its manifest, as by restore.

        suffixsvc check --data ./data
    """
    from suffixsvc.engine.repair.inspection import MAX_FINDINGS, check_backup, check_folder

    differences = check_backup(data)
    findings = [*(differences or ()), *check_folder(data)]
    if as_json:
        found = [asdict(each) for each in findings]
        verified = None if differences is None else not differences
        typer.echo(json.dumps({"data": str(data), "manifest_verified": verified, "findings": found}))
    elif not findings:
        typer.echo(f"{data}: sound" if differences is None else f"{data}: sound, as its backup.json says")
    else:
        for each in findings:
            typer.echo(f"{each.area}\t{each.message}")
        count = counted(len(findings), "finding")
        count = f"at least {count}" if len(findings) >= MAX_FINDINGS else count
        remedy = "See: suffixsvc repair --help"
        if differences:
            remedy = (
                "If a service has opened this backup, it is a data folder of its own: then remove its "
                "backup.json. Otherwise use another backup"
            )
        typer.echo(f"{data}: {count}. {remedy}", err=True)
    if findings:
        raise typer.Exit(1)
