"""``suffixsvc token``: create, revoke and list bearer tokens."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suffixsvc.errors import InvalidConfigError
from suffixsvc_cli.base.groups import verb_group
from suffixsvc_cli.base.options import AsJson

if TYPE_CHECKING:
    from suffixsvc.access.tokens import TokenFile

TokensOption = Annotated[
    Path | None, typer.Option(help="File of the tokens, as --tokens of the server that accepts them.")
]
DataOption = Annotated[
    Path | None, typer.Option(help="Alternatively: data folder of the service; its tokens.toml is used.")
]


def create(
    principal: Annotated[str, typer.Argument(help="Name of whom the token stands for.")],
    tokens: TokensOption = None,
    data: DataOption = None,
    expires: Annotated[
        str | None,
        typer.Option(
            help="Time until it is refused: seconds, or with s, m, h or d, as 90d.", show_default="never"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print it. It cannot be shown again: the file holds a hash only.

    A running server accepts it at once. To rotate a token, create another one for the same principal, give it
    to the clients, then revoke the old one.

        suffixsvc token create sql-agents --data ./shared --expires 90d
    """
    from suffixsvc.policies import seconds_of

    lifetime = None
    if expires is not None:
        seconds = seconds_of(expires)
        if seconds is None or not 0 < seconds <= timedelta.max.total_seconds() // 2:
            raise InvalidConfigError(
                "--expires must be a time", expected='seconds, or as "90d"', got=repr(expires)
            )
        lifetime = timedelta(seconds=seconds)
    text = _file(tokens, data).create(principal, lifetime)
    if as_json:
        typer.echo(json.dumps({"principal": principal, "id": text.split("_")[1], "token": text}))
        return
    typer.echo(text)
    typer.echo(f"This is the only time that it is shown. Its id is {text.split('_')[1]}.", err=True)


def revoke(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of tokens, or whole tokens.")],
    tokens: TokensOption = None,
    data: DataOption = None,
) -> None:
    """Revoke tokens: a running server refuses them, and ends their calls, within seconds."""
    for token in _file(tokens, data).revoke(ids):
        typer.echo(f"revoked {token.id} of {token.principal}")


def list_(tokens: TokensOption = None, data: DataOption = None, as_json: AsJson = False) -> None:
    """List tokens: id, principal, when it was created, and when it expires."""
    now = datetime.now(UTC)
    found = [
        {
            "id": token.id,
            "principal": token.principal,
            "created": token.created.isoformat(),
            "expires": None if token.expires is None else token.expires.isoformat(),
            "valid": token.is_valid(now),
        }
        for token in _file(tokens, data).read()
    ]
    if as_json:
        typer.echo(json.dumps(found))
        return
    if not found:
        typer.echo("no tokens", err=True)
    for each in found:
        ends = f"expires {each['expires']}" if each["expires"] else "does not expire"
        ends = ends if each["valid"] else f"expired {each['expires']}"
        typer.echo(f"{each['id']}\t{each['principal']}\tcreated {each['created']}\t{ends}")


def _file(tokens: Path | None, data: Path | None) -> TokenFile:
    from suffixsvc.access.tokens import TOKENS_FILE, TokenFile

    if (tokens is None) == (data is None):
        raise InvalidConfigError(
            "one of --tokens and --data must be given", got="both" if tokens is not None else "none"
        )
    if tokens is None and data is not None:
        if not data.is_dir():
            raise InvalidConfigError(
                "--data must be an existing folder",
                got=str(data),
                remedy=f"Start the service once, or create the folder as its user: mkdir -m 700 {data}",
            )
        tokens = data / TOKENS_FILE
    if tokens is None or not tokens.absolute().parent.is_dir():
        raise InvalidConfigError("--tokens must be in an existing folder", got=str(tokens))
    return TokenFile(tokens)


app = verb_group("Create, revoke and list tokens of principals (docs/security.md).", create, revoke, list_)
