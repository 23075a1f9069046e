"""Options that several verbs share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from suffixsvc.errors import InvalidConfigError
from suffixsvc.verb_options import option

if TYPE_CHECKING:
    from suffixsvc.access.control import AccessControl
    from suffixsvc.transport.tls import ServerTls

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Server = Annotated[str | None, typer.Option(help="Address of a running service: unix:PATH or HOST:PORT.")]
Data = Annotated[Path | None, typer.Option(help="Alternatively: a data folder that no process has open.")]
#: help of --log-format
LOG_FORMAT: Final = (
    "auto: console on a terminal, json elsewhere. If more than 1,000 lines wait for the reader of stderr, "
    "further ones are dropped and counted in a later line."
)
#: help of --open-to-all
OPEN_TO_ALL: Final = (
    "Open a data folder that was served with access control to every caller, from now on (docs/security.md). "
    "Without this option a start without tokens and principals is refused on such a folder."
)


#: an option of a server that says who may use it
access_option = partial(option, panel="Access")


@dataclass(
    frozen=True, kw_only=True
)  # no slots, so that a verb's options can have a second base that has them
class AccessOptions:
    """Options of every server: who may use it, and its certificates (docs/security.md)."""

    tokens: Path | None = access_option(
        None,
        metavar="FILE",
        help="File of tokens, which `suffixsvc token` writes; clients must then have one. It is read again "
        "when it changes.",
    )
    policies: Path | None = access_option(
        None,
        metavar="FILE",
        help="TOML file with principals, their certificates and rights. It is read again when it changes.",
    )
    tls_cert: Path | None = access_option(
        None, metavar="FILE", help="Certificate of HOST:PORT addresses, a PEM file."
    )
    tls_key: Path | None = access_option(None, metavar="FILE", help="Private key of --tls-cert, a PEM file.")
    tls_client_ca: Path | None = access_option(
        None, metavar="FILE", help="Require certificates of clients that these ones signed, a PEM file."
    )
    insecure_network: bool = access_option(
        False,
        "--insecure-network",
        help="Allow listening on addresses that other machines can reach, without authentication or "
        "encryption.",
    )

    def tls(self) -> ServerTls | None:
        """Certificates of the server. InvalidConfigError: some are missing, or a file is invalid."""
        from suffixsvc.transport.tls import server_tls

        return server_tls(self.tls_cert, self.tls_key, self.tls_client_ca)

    def access(self) -> AccessControl:
        """Who may use the server: with --tokens authenticated callers only, even while the file has none.

        Raises:
            InvalidConfigError: a file is invalid.
        """
        from suffixsvc.access.control import AccessControl
        from suffixsvc.access.tokens import TokenFile

        tokens = None if self.tokens is None else TokenFile(self.tokens)
        return AccessControl(
            tokens,
            self.policies,
            insecure_network=self.insecure_network,
            required=tokens is not None,
            socket_mode=self._socket_mode,
        )

    @property
    def _socket_mode(self) -> int:
        """Permissions of unix sockets."""
        return SocketMode.owner.bits


class SocketMode(StrEnum):
    """Who can open a unix socket: the server's user, its group, or every user."""

    owner = "0600"
    group = "0660"
    everyone = "0666"

    @property
    def bits(self) -> int:
        """The permissions."""
        return int(self.value, 8)


@dataclass(frozen=True, kw_only=True)
class SocketOptions(AccessOptions):
    """Options of a server that can listen on a unix socket."""

    socket_mode: SocketMode = access_option(
        SocketMode.owner,
        help="Permissions of unix sockets. With 0660 or 0666 other users can connect; each needs a token, "
        "or a principal with its user id (docs/security.md).",
    )

    @property
    def _socket_mode(self) -> int:
        return self.socket_mode.bits


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
