"""Who listens on a unix socket: asked of the system before anything is sent there.

A user who may create files in a folder can listen on a path there before a service does, and would be sent
the prompts. The system knows the user of the process that listens (SO_PEERCRED). A client trusts

    the user it runs as,
    root,
    the owner of the socket's folder, who can replace the socket at any time,
    ClientConfig.service_uid, if it is set.

Where the system cannot be asked (not Linux) nothing is checked; the socket's folder has to keep others out.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

from suffixsvc.errors import ServiceUnavailableError

__all__ = ["SocketGuard", "require_trusted_peer", "socket_path"]

_PEER_CREDENTIALS: Final[int | None] = getattr(socket, "SO_PEERCRED", None)
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
#: a check connects to a socket that may have a full backlog
_CONNECT_SECONDS: Final = 1.0


def require_trusted_peer(connection: socket.socket, path: str, service_uid: int | None = None) -> None:
    """Refuse a connection to a process of a user that is not trusted. Nothing is sent.

    Args:
        connection: connected to ``path``.
        service_uid: a user that is trusted, too.

    Raises:
        ServiceUnavailableError: it is another user's.
    """
    if _PEER_CREDENTIALS is None:
        return
    data = connection.getsockopt(socket.SOL_SOCKET, _PEER_CREDENTIALS, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(data)
    trusted = {os.geteuid(), 0, service_uid, _owner_of(os.path.dirname(path) or ".")}
    if uid not in trusted:
        raise ServiceUnavailableError(
            f"the listener of {path} must be a process of a trusted user; nothing was sent to it",
            expected=f"user id {os.geteuid()}, 0, or that of the socket's folder",
            got=f"user id {uid}",
            remedy="Have the service listen in a folder that only its user can write to, or, if this is its "
            "user, set ClientConfig.service_uid.",
        )


def _owner_of(path: str) -> int | None:
    """The user id; None where there is no such file."""
    try:
        return os.stat(path).st_uid
    except OSError:
        return None


def socket_path(target: str) -> str:
    """Of ``unix:PATH``, absolute."""
    return os.path.abspath(target.removeprefix("unix:").removeprefix("//"))


class SocketGuard:
    """The check of a socket that gRPC connects to: through a connection of its own, again whenever the socket
    file is another one.

    The file can still be replaced between the check and gRPC's connection, by a user who may delete it.

    Args:
        target: as of a client; only ``unix:PATH`` is checked.
        service_uid: see :class:`~suffixsvc_client.ClientConfig`.
    """

    def __init__(self, target: str, service_uid: int | None = None) -> None:
        unix = target.startswith("unix:") and _PEER_CREDENTIALS is not None
        self._path = socket_path(target) if unix else ""
        self._service_uid = service_uid
        #: the file that was found to be trusted
        self._known: tuple[int, int, int] | None = None

    def require(self) -> None:
        """ServiceUnavailableError: the socket is another user's, or cannot be checked now. Where no process
        listens it passes: gRPC says so."""
        if not self._path:
            return
        found = self._identity()
        if found is None or found == self._known:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_CONNECT_SECONDS)
            try:
                probe.connect(self._path)
            except (FileNotFoundError, ConnectionRefusedError, PermissionError):
                return
            except OSError as error:  # a full backlog: gRPC could be let in a moment later
                raise ServiceUnavailableError(f"the listener of {self._path} is busy", got=error) from None
            require_trusted_peer(probe, self._path, self._service_uid)
        self._known = found

    def _identity(self) -> tuple[int, int, int] | None:
        try:
            stat = os.stat(self._path)
        except OSError:
            return None
        return stat.st_dev, stat.st_ino, stat.st_ctime_ns
