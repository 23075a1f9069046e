"""Options that several verbs share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from suffixsvc.errors import InvalidConfigError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Server = Annotated[str | None, typer.Option(help="Address of a running service: unix:PATH or HOST:PORT.")]
Data = Annotated[Path | None, typer.Option(help="Alternatively: a data folder that no process has open.")]
#: help of --insecure-network
INSECURE_NETWORK: Final = (
    "Allow listening on addresses that other machines can reach, without authentication or encryption."
)

#: help of --log-format
LOG_FORMAT: Final = (
    "auto: console on a terminal, json elsewhere. If more than 1,000 lines wait for the reader of stderr, "
    "further ones are dropped and counted in a later line."
)


class LogStyle(StrEnum):
    """Format of log lines."""

    auto = "auto"
    console = "console"
    json = "json"


def require_one_store(server: str | None, data: Path | None) -> None:
    """Check that a service or a data folder is given, and not both.

    Raises:
        InvalidConfigError: both or neither is given.
    """
    if (server is None) == (data is None):
        raise InvalidConfigError(
            "one of --server and --data must be given", got="both" if server is not None else "none"
        )
