"""Who listens on a unix socket: asked of the system before anything is sent there.

A user who may create files in a folder can listen on a path there before a service does, and would be sent
the prompts. The system knows the user of the process that listens (SO_PEERCRED). A client trusts

    the user it runs as,
    root,
    the owner of the socket's folder, who can replace the socket at any time,
    the user that its :class:`ExpectedPeer` names, if any.

A path can name another socket a moment after a check. A socket file cannot: it belongs to the one listener
that made it, and refuses connections once that listener is gone. :class:`CheckedSocket` holds the file open,
and its address leads to that file whatever happens to the path.

Where the system cannot be asked (not Linux) nothing is checked; the socket's folder has to keep others out.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from dataclasses import dataclass
from typing import Final

from suffixsvc.errors import ServiceUnavailableError

__all__ = [
    "AbsentPeerError",
    "CheckedSocket",
    "ExpectedPeer",
    "require_trusted_peer",
    "socket_path",
    "with_paths",
]

_PEER_CREDENTIALS: Final[int | None] = getattr(socket, "SO_PEERCRED", None)
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
#: a check connects to a socket that may have a full backlog
_CONNECT_SECONDS: Final = 1.0
#: the files that this process has open, as paths; connecting to one needs no permission for its folder
_OPEN_FILES: Final = "/proc/self/fd/"


class AbsentPeerError(ServiceUnavailableError):
    """No process listens at the path, or its backlog is full; one may be reached there later."""


@dataclass(frozen=True, slots=True)
class ExpectedPeer:
    """The program that a client connects to, as its errors name it.

    Attributes:
        name: with its article.
        start: what to do where no process listens.
        trust: what to do where the listener belongs to another user.
        uid: a user that is trusted, too.
    """

    name: str
    start: str
    trust: str
    uid: int | None = None


def require_trusted_peer(connection: socket.socket, path: str, peer: ExpectedPeer) -> None:
    """Refuse a connection to a process of a user that is not trusted. Nothing is sent.

    Args:
        connection: connected to ``path``.
        peer: which program should listen there.

    Raises:
        ServiceUnavailableError: it is another user's.
    """
    if _PEER_CREDENTIALS is None:
        return
    data = connection.getsockopt(socket.SOL_SOCKET, _PEER_CREDENTIALS, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(data)
    trusted = {os.geteuid(), 0, peer.uid, _owner_of(os.path.dirname(path) or ".")}
    if uid not in trusted:
        raise ServiceUnavailableError(
            f"the listener of {path} must be a process of a trusted user; nothing was sent to it",
            expected=f"user id {os.geteuid()}, 0, or that of the socket's folder",
            got=f"user id {uid}",
            remedy=peer.trust,
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


def with_paths(text: str) -> str:
    """Addresses of checked sockets in a text of gRPC's, replaced by the paths that they were opened at."""
    return re.sub(re.escape(_OPEN_FILES) + r"\d+", _opened_at, text)


def _opened_at(match: re.Match[str]) -> str:
    try:
        return os.readlink(match[0])
    except OSError:  # closed meanwhile
        return match[0]


class CheckedSocket:
    """The socket file at a path, held open, whose listener is trusted.

    Args:
        path: of the socket.
        peer: which program should listen there.

    Raises:
        AbsentPeerError: no process listens there.
        ServiceUnavailableError: it is another user's, or it cannot be checked.
    """

    def __init__(self, path: str, peer: ExpectedPeer) -> None:
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError as error:
            raise _absent(path, peer, error) from None
        try:
            opened = os.fstat(self._descriptor)
            self._identity = opened.st_dev, opened.st_ino
            self._check(path, peer)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def is_possible(target: str) -> bool:
        """Whether the listener of a client's target can be checked on this system."""
        return target.startswith("unix:") and _PEER_CREDENTIALS is not None

    @property
    def address(self) -> str:
        """Leads to this listener, or to none, until :meth:`close`."""
        return f"{_OPEN_FILES}{self._descriptor}"

    def is_at(self, path: str) -> bool:
        """Whether the path names this socket, or nothing."""
        try:
            found = os.stat(path)
        except OSError:
            return True
        return (found.st_dev, found.st_ino) == self._identity

    def close(self) -> None:
        """The address leads nowhere from now on. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def _check(self, path: str, peer: ExpectedPeer) -> None:
        if not os.path.exists(self.address):
            raise ServiceUnavailableError(
                f"the listener of {path} must be checked before anything is sent to it",
                expected=f"the open files of this process at {_OPEN_FILES}",
                got="no such folder",
                remedy="Mount /proc, or connect to HOST:PORT.",
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_CONNECT_SECONDS)
            try:
                probe.connect(self.address)
            except (ConnectionRefusedError, PermissionError) as error:  # also: not a socket
                raise _absent(path, peer, error) from None
            except OSError as error:  # a full backlog: gRPC could be let in a moment later
                raise AbsentPeerError(f"the listener of {path} is busy", got=error) from None
            require_trusted_peer(probe, path, peer)


def _absent(path: str, peer: ExpectedPeer, got: object) -> AbsentPeerError:
    return AbsentPeerError(
        f"{peer.name} cannot be reached",
        expected=f"a process that listens at {path}",
        got=got,
        remedy=peer.start,
    )
