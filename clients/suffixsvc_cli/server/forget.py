"""``suffixsvc forget``: delete outputs and live text by selection, from a service or a data folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suffixsvc.errors import InvalidInputError
from suffixsvc_cli.base.counts import counted
from suffixsvc_cli.base.options import AsJson, Data, Server
from suffixsvc_cli.server.backend import opened_backend

if TYPE_CHECKING:
    from suffixsvc.types import Deletion, FollowerName


def forget(
    server: Server = None,
    data: Data = None,
    namespace: Annotated[
        str, typer.Option(help="Path of the namespace. Alone: everything in it. Without it: all namespaces.")
    ] = "",
    output: Annotated[list[int] | None, typer.Option(help="Id of an output. May be repeated.")] = None,
    session: Annotated[str, typer.Option(help="Id of the session that wrote it.")] = "",
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label that it has. May be repeated.")
    ] = None,
    principal: Annotated[str | None, typer.Option(help='Who wrote it; "" for the operator.')] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Written at least so long ago: 3600, 90m, 12h or 30d.")
    ] = None,
    from_disk: Annotated[
        bool, typer.Option("--from-disk", help="Wait until no file of the data folder holds it any more.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the outputs, and retract the text of the live sessions, that meet every option given.

    When the command returns, no session drafts from them, also after a crash, and what drafting learned in
    these namespaces is reset. A service erases the bytes on its disk within about a minute; --from-disk waits
    for it. With --data they are erased at once only with --from-disk, else when a service opens the folder.

        suffixsvc forget --server unix:./suffixsvc.sock --principal ann --from-disk
    """
    from suffixsvc.selection import Selection

    selection = Selection(
        namespace,
        tuple(output) if output else None,
        session,
        _labels(label or ()),
        principal,
        None if older_than is None else _age(older_than),
    )
    with opened_backend(server, data) as backend:
        deletion = backend.delete(selection, from_disk=from_disk)
    if as_json:
        typer.echo(json.dumps(asdict(deletion)))
        return
    typer.echo(_summary(deletion))
    if from_disk:
        typer.echo("no file of the data folder holds what was deleted any more")
    elif deletion.outputs:
        typer.echo(
            "the bytes leave the disk within about a minute; --from-disk waits for it"
            if server
            else "the bytes leave the disk when a service has opened the folder; with --from-disk, at once"
        )
    print_silent(deletion.receipt.silent)


def _summary(deletion: Deletion) -> str:
    counts = f"{counted(deletion.outputs, 'output')} deleted, {counted(deletion.sessions, 'live session')} "
    many = len(deletion.namespaces)
    where = f" in {counted(many, 'namespace')}" if many > 1 else ""
    if not deletion.outputs and not deletion.sessions:
        where = ": nothing matched the selection"
    return f"{counts}retracted{where}"


def print_silent(silent: Sequence[FollowerName]) -> None:
    """Print the followers that have not applied a deletion, to standard error."""
    for each in silent:
        typer.echo(
            f"follower {each.follower_id} ({each.description}) has not confirmed it: it may draft from them "
            "until its lease is over",
            err=True,
        )


def _labels(given: Sequence[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise InvalidInputError("--label must be NAME=VALUE", got=repr(each)[:80])
        labels[name] = value
    return labels


def _age(text: str) -> float:
    from suffixsvc.policies import seconds_of

    seconds: Any = seconds_of(text)
    if not isinstance(seconds, int):
        raise InvalidInputError(
            "--older-than must be an age",
            expected="seconds, or a number with s, m, h or d",
            got=repr(text)[:80],
        )
    return float(seconds)
