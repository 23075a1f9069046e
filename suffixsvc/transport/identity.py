"""Who a client is, and how it verifies a server: bearer token and certificates.

Without one, a client takes what the environment names:

    SUFFIXSVC_TOKEN, SUFFIXSVC_TOKEN_FILE        a bearer token, or a file that holds one
    SUFFIXSVC_TLS_CA                             certificates that sign the server's; HOST:PORT then uses TLS
    SUFFIXSVC_TLS_CERT, SUFFIXSVC_TLS_KEY        certificate of the client (mutual TLS)
    SUFFIXSVC_TLS_SERVER_NAME                    name in the server's certificate

A client without a token proves its user at a unix socket that other users can open (user_tickets.py).
"""

from __future__ import annotations

import ipaddress
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc

from suffixsvc.errors import InvalidConfigError, SuffixError, UnauthenticatedError
from suffixsvc.runtime.file_signature import Signature, file_signature
from suffixsvc.transport.tls import ClientTls
from suffixsvc.transport.user_tickets import UserTicket

_TOKEN: Final = "SUFFIXSVC_TOKEN"  # noqa: S105 - the name of a variable
_TOKEN_FILE: Final = "SUFFIXSVC_TOKEN_FILE"  # noqa: S105 - the name of a variable
_TLS: Final = "SUFFIXSVC_TLS_"
#: longest token file that is read
_MAX_TOKEN_BYTES: Final = 4096

Options = Sequence[tuple[str, str | int]]


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """Credentials of a client.

    Attributes:
        token: bearer token; None: none is sent.
        token_file: file that holds it, read again when it changes, so that tokens can be replaced.
        tls: verification of the server, and the client's certificate; None: connections are not encrypted.
        plaintext_token: send the token over an unencrypted connection to another machine, too.

    Raises:
        InvalidConfigError: token and token_file are both given, or the token is malformed.
    """

    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    tls: ClientTls | None = None
    plaintext_token: bool = False
    _file: _TokenFile | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.token is not None and self.token_file is not None:
            raise InvalidConfigError("token and token_file must not be given together")
        if self.token is not None:
            _require_token(self.token, "token")
        if self.token_file is not None:
            object.__setattr__(self, "_file", _TokenFile(self.token_file))

    @staticmethod
    def from_environment(variables: Mapping[str, str] | None = None) -> ClientIdentity:
        """The identity that environment variables name (:mod:`suffixsvc.transport.identity`).

        Raises:
            InvalidConfigError: a variable is invalid; the error names it or its file.
        """
        given = {name: value for name, value in (variables or os.environ).items() if value}
        if _TOKEN in given and _TOKEN_FILE in given:
            raise InvalidConfigError(f"{_TOKEN} and {_TOKEN_FILE} must not be set together")
        if _TOKEN in given:
            _require_token(given[_TOKEN], _TOKEN)
        paths = {name: Path(given[_TLS + name]) for name in ("CA", "CERT", "KEY") if _TLS + name in given}
        name = given.get(f"{_TLS}SERVER_NAME")
        tls = ClientTls(paths.get("CA"), paths.get("CERT"), paths.get("KEY"), name) if paths or name else None
        file = given.get(_TOKEN_FILE)
        return ClientIdentity(given.get(_TOKEN), None if file is None else Path(file), tls)

    def check(self, target: str) -> None:
        """Raise InvalidConfigError if a token would cross a network unencrypted to this target."""
        if not self.has_token or self.tls is not None or self.plaintext_token or _is_of_this_machine(target):
            return
        raise InvalidConfigError(
            "a token must be sent over TLS to another machine",
            expected="TLS: SUFFIXSVC_TLS_CA, or ClientIdentity(tls=ClientTls(ca=...))",
            got=f"no TLS, for {target}",
            remedy="ClientIdentity(plaintext_token=True) sends it all the same, in a trusted network.",
        )

    @property
    def has_token(self) -> bool:
        """Whether calls present a token, and so no ticket of this process's user."""
        return self.token is not None or self.token_file is not None

    def credential(self, ticket: UserTicket | None = None, timeout_s: float = 1.0) -> CallCredential:
        """What a call presents: the token, else a ticket of this process's user.

        Args:
            ticket: of the call's channel.
            timeout_s: time for fetching a ticket, at most a second.

        Raises:
            InvalidConfigError: the token file is unreadable or malformed.
            SuffixError: as :meth:`UserTicket.current`.
        """
        token = self.token if self._file is None else self._file.read()
        if token is not None or ticket is None:
            return CallCredential(token)
        return CallCredential(ticket.current(timeout_s), ticket)

    def channel(self, address: str, options: Options) -> grpc.Channel:
        """A channel to a gRPC address. InvalidConfigError: a certificate is unreadable or malformed."""
        if self.tls is None or address.startswith("unix:"):
            return grpc.insecure_channel(address, options=options)
        return grpc.secure_channel(address, self.tls.credentials(), options=[*options, *self.tls.options()])

    def aio_channel(self, address: str, options: Options) -> grpc.aio.Channel:
        """As :meth:`channel`, for asyncio."""
        if self.tls is None or address.startswith("unix:"):
            return grpc.aio.insecure_channel(address, options=options)
        credentials, more = self.tls.credentials(), self.tls.options()
        return grpc.aio.secure_channel(address, credentials, options=[*options, *more])


@dataclass(frozen=True, slots=True)
class CallCredential:
    """What one call presents.

    Attributes:
        token: bearer token; None: none.
        ticket: where it is from, if it is a ticket of this process's user.
    """

    token: str | None = field(repr=False)
    ticket: UserTicket | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of the call."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    def may_retry(self, error: SuffixError) -> bool:
        """Whether the call failed because its ticket was refused, so that another one may be accepted."""
        if self.ticket is None or not isinstance(error, UnauthenticatedError):
            return False
        return self.ticket.refused(self.token)


def tls_remedy(details: str) -> str | None:
    """What makes a connection succeed that TLS refused, by gRPC's description; None for other failures."""
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return f"Name the certificates that signed the service's in {_TLS}CA."
    if "Hostname Verification" in details:
        return (
            f"Use an address that is in the service's certificate, or name one of its in {_TLS}SERVER_NAME."
        )
    if "WRONG_VERSION_NUMBER" in details:
        return f"The service has no TLS: unset {_TLS}CA, or start it with --tls-cert."
    if "Socket closed" in details or "CERTIFICATE_REQUIRED" in details:
        return (
            f"If it has TLS, set {_TLS}CA, and {_TLS}CERT and {_TLS}KEY where it asks for certificates of "
            "clients. Else: is it running, and is this its address?"
        )
    return None


class _TokenFile:
    """A file with a token, read again when it changes. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: tuple[Signature, str] | None = None

    def read(self) -> str:
        signature = file_signature(self._path)
        with self._lock:
            if self._known is not None and self._known[0] == signature:
                return self._known[1]
        try:
            with self._path.open("rb") as file:
                token = file.read(_MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
        except OSError as error:
            raise InvalidConfigError(
                f"token file {self._path} must be readable", got=error.strerror
            ) from None
        _require_token(token, f"token file {self._path}")
        with self._lock:
            self._known = None if signature is None else (signature, token)
        return token


def _require_token(token: str, where: str) -> None:
    """Raise InvalidConfigError, which does not show the token, unless it can be sent."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidConfigError(
            f"{where} must hold a token",
            expected="printable ASCII characters without spaces",
            got="another text",
        )


def _is_of_this_machine(target: str) -> bool:
    if target.startswith("unix:"):
        return True
    host = target.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
