"""``suffixsvc repair``: a damaged data folder, rebuilt from what can be read of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suffixsvc_cli.base.counts import counted
from suffixsvc_cli.base.options import AsJson

if TYPE_CHECKING:
    from suffixsvc.engine.repair.rebuild import RepairReport


def repair(
    data: Annotated[Path, typer.Option(help="Data folder that no process has open.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be kept and dropped; change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild the log of a damaged data folder, and say what it lost.

    Outputs whose record and text have their checksums are kept; indexes, counts and segments are rebuilt
    from them. The damaged files stay in the folder damaged-TIME, with a report. If outputs were lost, and a
    backup has them, restore the backup instead. Exit code 0: repaired, also if outputs were dropped, or there
    was nothing to repair; 2: it could not be repaired, and is unchanged.

        suffixsvc repair --data ./data --dry-run
    """
    from suffixsvc.engine.repair.rebuild import repair_folder

    report = repair_folder(data, dry_run=dry_run)
    if as_json:
        typer.echo(json.dumps({"data": str(data), "dry_run": dry_run, **report.as_dict()}))
        return
    if not report.findings:
        typer.echo(f"{data}: sound, nothing to repair")
        return
    for line in report.unreadable:
        typer.echo(f"unreadable\t{line}")
    for dropped in report.dropped:
        where = f" of {dropped.namespace}" if dropped.namespace else ""
        who = f", written by {dropped.principal}" if dropped.principal else ""
        typer.echo(f"dropped\t{dropped.kind} {dropped.name}{where}{who}\t{dropped.reason}")
    if report.unnamed is None:
        typer.echo("dropped\toutputs\tthe counters of the log cannot be read: others may be lost")
    elif report.unnamed:
        typer.echo(
            f"dropped\t{counted(report.unnamed, 'output')}\tneither record nor index of them can be read"
        )
    for name in report.rebuilt:
        typer.echo(f"rebuilt\tsegment {name}\tits outputs are sealed again at the next open")
    kept = (
        f"{counted(report.outputs, 'output')}, {counted(report.tokens, 'token')} in "
        f"{counted(report.namespaces, 'namespace')}, {counted(len(report.segments), 'segment')} as they are; "
        f"{_dropped(report)}"
    )
    where = "dry run, nothing was changed" if dry_run else f"the damaged files are in {report.aside}"
    typer.echo(f"{data}: {kept}; {where}")


def _dropped(report: RepairReport) -> str:
    """What was dropped, also what cannot be named."""
    named = sum(each.kind == "output" for each in report.dropped)
    outputs = counted(named + (report.unnamed or 0), "output")
    more = f", {report.unnamed:,} of which cannot be named" if report.unnamed else ""
    if report.unnamed is None:
        more = ", and perhaps more that cannot be named"
    others = len(report.dropped) - named
    rest = f"; {counted(others, 'other record')}" if others else ""
    return f"{outputs} dropped{more}{rest}"
