"""Listen addresses: parsing, safety checks and stale socket files.

gRPC itself would share a busy port (SO_REUSEPORT), and would delete the socket file of a live server before
it binds its own; both are prevented here, before gRPC receives the address.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from suffixsvc.access.control import OWNER_ONLY
from suffixsvc.errors import ListenError
from suffixsvc.transport.loopback import host_and_port, require_loopback, resolve
from suffixsvc.transport.peer_credentials import socket_path
from suffixsvc.transport.user_tickets import identity_path

#: sun_path holds 108 bytes including the terminating zero
MAX_UNIX_PATH_BYTES = 107
MAX_PORT_DIGITS = 5
OWN_FOLDER_REMEDY = "Choose a folder that only this service's user can write to."


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket file, absolute."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """Host (a name or an IP address without brackets) and port; port 0 selects a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_and_port(self.host, self.port)


Address = UnixAddress | TcpAddress


def parse_address(text: str) -> Address:
    """Parse ``unix:PATH`` or ``HOST:PORT``. ListenError for anything else."""
    if text.startswith("unix:"):
        path = socket_path(text)
        _require_length("" if text == "unix:" else path)
        return UnixAddress(path)
    host, colon, port = text.rpartition(":")
    number = port.isascii() and port.isdigit() and len(port) <= MAX_PORT_DIGITS
    if not colon or not host or not number or int(port) > 65535:
        raise ListenError(
            "cannot parse a listen address", expected="unix:PATH or HOST:PORT", got=repr(text)[:80]
        )
    return TcpAddress(host.strip("[]"), int(port))


def open_addresses(addresses: Iterable[Address]) -> list[str]:
    """The addresses at which callers need no identity without access control, as text: not unix sockets,
    which only the server's own user can open then."""
    return [str(address) for address in addresses if isinstance(address, TcpAddress)]


def _require_length(path: str) -> None:
    size = len(os.fsencode(path))
    if not 0 < size <= MAX_UNIX_PATH_BYTES:
        raise ListenError(
            "a unix socket path must be of a valid length",
            expected=f"1 to {MAX_UNIX_PATH_BYTES} bytes",
            got=f"{size} bytes",
            remedy="Choose a shorter folder.",
        )


def listen_error(address: Address, expected: str, got: object, remedy: str | None = None) -> ListenError:
    """The error for an address that cannot be used."""
    return ListenError(f"cannot listen on {address}", expected=expected, got=got, remedy=remedy)


def require_unix_address(addresses: Iterable[Address], socket_mode: int) -> None:
    """Raise ListenError if other users may open unix sockets, but there is none."""
    if socket_mode != OWNER_ONLY and not any(isinstance(each, UnixAddress) for each in addresses):
        raise ListenError(
            "--socket-mode must be given with a unix socket",
            expected="--listen unix:PATH",
            got=f"{socket_mode:04o}, without one",
        )


def require_own_socket(address: UnixAddress) -> None:
    """Raise ListenError if another user created the socket file after :func:`prepare` found none."""
    owner = os.stat(address.path).st_uid
    if owner != os.geteuid():
        expected, got = (f"a socket file of user id {user}" for user in (os.geteuid(), owner))
        raise listen_error(address, expected, got, OWN_FOLDER_REMEDY)


def bind_error(address: Address, got: object) -> ListenError:
    """The error for an address that gRPC could not bind; gRPC reports no cause for a read-only folder."""
    if isinstance(address, UnixAddress):
        folder = os.path.dirname(address.path)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.bind(address.path)
            os.unlink(address.path)
        except OSError as error:
            return ListenError(
                f"cannot listen on {address}: this user must be able to create sockets in {folder}",
                got=error.strerror,
                remedy="Choose another folder, or let this user write to it.",
            )
    return listen_error(address, "a free address", got)


def prepare(
    address: Address,
    *,
    insecure_network: bool = False,
    danger: str = "use every namespace",
    shared: bool = False,
) -> None:
    """Check that an address can be bound; removes a stale socket file.

    Args:
        danger: what other machines could do, for the error.
        shared: an identity socket is bound beside a unix socket.

    Raises:
        ListenError: the address is in use, refused for safety, or not of this machine.
    """
    if isinstance(address, UnixAddress):
        _clear_stale_socket(address)
        if shared:
            identity = UnixAddress(identity_path(address.path))
            _require_length(identity.path)
            _clear_stale_socket(identity)
    else:
        if not insecure_network:
            require_loopback(address.host, address.port, danger)
        _require_free_port(address)


def _clear_stale_socket(address: UnixAddress) -> None:
    folder = os.path.dirname(address.path)
    if not os.path.isdir(folder):
        found = "a file" if os.path.lexists(folder) else "none"
        raise listen_error(address, f"a folder {folder}", found, "Create it first.")
    try:
        mode = os.lstat(address.path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        remedy = "Move it away or choose another path."
        raise listen_error(address, "no file, or a stale socket", "a file other than a socket", remedy)
    if _has_listener(address.path):
        remedy = "Stop that server or choose another path."
        raise listen_error(address, "no file, or a stale socket", "a socket with a live server", remedy)
    try:
        os.unlink(address.path)
    except OSError as error:
        raise listen_error(
            address,
            "no file, or a stale socket that this user can remove",
            f"a stale socket of user id {os.lstat(address.path).st_uid}: {error.strerror}",
            "Remove it as its owner, or choose another path.",
        ) from None


def _has_listener(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # a full backlog or missing permission: there is a listener
        return True


def _require_free_port(address: TcpAddress) -> None:
    if address.port == 0:
        return
    for family, ip in resolve(address.host, address.port):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # without this a port with connections in TIME_WAIT would look busy
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ip, address.port))
            except OSError as error:
                remedy = "Stop the process that uses it or choose another port (0 selects a free one)."
                raise listen_error(address, "a free port of this machine", error.strerror, remedy) from None
