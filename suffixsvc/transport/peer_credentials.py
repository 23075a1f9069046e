"""Peer credentials of unix sockets: the user of a listener is checked before anything is sent to it.

A user who may create files in a folder can listen on a path there before a service does, and would receive
the prompts. The kernel reports the user of the listening process (SO_PEERCRED). A client trusts

    its own user,
    root,
    the owner of the socket's folder, who can replace the socket at any time,
    the user that its :class:`ExpectedPeer` names, if any.

A path can name another socket a moment after a check. A socket file cannot: it belongs to the listener that
created it, and refuses connections once that listener has ended. :class:`CheckedSocket` holds the file open,
and its address refers to that file, whatever happens to the path.

On other systems than Linux nothing is checked; the permissions of the socket's folder must exclude others.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from dataclasses import dataclass
from typing import Final

from suffixsvc.errors import ServiceUnavailableError

_PEER_CREDENTIALS: Final[int | None] = getattr(socket, "SO_PEERCRED", None)
#: whether this system reports the user of a unix socket's other end
REPORTS_USERS: Final = _PEER_CREDENTIALS is not None
_CREDENTIALS: Final = struct.Struct("iII")  # pid, uid, gid
#: timeout of a check: the backlog of the socket may be full
_CONNECT_SECONDS: Final = 1.0
#: paths of the open files of this process; connecting to one needs no permission for its folder
_OPEN_FILES: Final = "/proc/self/fd/"


class AbsentPeerError(ServiceUnavailableError):
    """No process listens at the path, or its backlog is full; a later attempt may succeed."""


@dataclass(frozen=True, slots=True)
class ExpectedPeer:
    """The program that a client connects to, as described in errors.

    Attributes:
        name: its name with an article.
        start: remedy if no process listens.
        trust: remedy if the listener belongs to another user.
        uid: an additional trusted user.
    """

    name: str
    start: str
    trust: str
    uid: int | None = None


def require_trusted_peer(connection: socket.socket, path: str, peer: ExpectedPeer) -> None:
    """Check that the peer of a connection belongs to a trusted user. Nothing is sent.

    Args:
        connection: connected to ``path``.
        path: path of the socket.
        peer: the program that should listen there.

    Raises:
        ServiceUnavailableError: the listener belongs to another user.
    """
    uid = peer_uid(connection)
    if uid is None:
        return
    trusted = {os.geteuid(), 0, peer.uid, _owner_of(os.path.dirname(path) or ".")}
    if uid not in trusted:
        raise ServiceUnavailableError(
            f"the listener of {path} must be a process of a trusted user; nothing was sent to it",
            expected=f"user id {os.geteuid()}, 0, or that of the socket's folder",
            got=f"user id {uid}",
            remedy=peer.trust,
        )


def peer_uid(connection: socket.socket) -> int | None:
    """The user id of the other end of a unix socket, from when it connected or listened; None: not Linux."""
    if _PEER_CREDENTIALS is None:
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, _PEER_CREDENTIALS, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(data)
    return int(uid)


def _owner_of(path: str) -> int | None:
    """Return the user id of a file's owner; None if there is no such file."""
    try:
        return os.stat(path).st_uid
    except OSError:
        return None


def socket_path(target: str) -> str:
    """Return the absolute path of a target ``unix:PATH``."""
    return os.path.abspath(target.removeprefix("unix:").removeprefix("//"))


def resolve_socket_paths(text: str) -> str:
    """Replace addresses of checked sockets in a message of gRPC by the paths that were opened."""
    return re.sub(re.escape(_OPEN_FILES) + r"\d+", _opened_at, text)


def _opened_at(match: re.Match[str]) -> str:
    try:
        return os.readlink(match[0])
    except OSError:  # closed since
        return match[0]


class CheckedSocket:
    """The socket file at a path, held open, whose listener is trusted.

    Args:
        path: path of the socket.
        peer: the program that should listen there.

    Raises:
        AbsentPeerError: no process listens there.
        ServiceUnavailableError: the listener belongs to another user, or cannot be checked.
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
        return target.startswith("unix:") and REPORTS_USERS

    @property
    def address(self) -> str:
        """The gRPC address of this listener, valid until :meth:`close`."""
        return f"{_OPEN_FILES}{self._descriptor}"

    def is_at(self, path: str) -> bool:
        """Whether the path names this socket, or no file."""
        try:
            found = os.stat(path)
        except OSError:
            return True
        return (found.st_dev, found.st_ino) == self._identity

    def is_owner_only(self) -> bool:
        """Whether the permissions of the socket file let its owner alone connect, and root."""
        try:
            return os.fstat(self._descriptor).st_mode & 0o066 == 0
        except OSError:  # closed
            return True

    def close(self) -> None:
        """Close the file; the address is invalid afterwards. Idempotent."""
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
            except OSError as error:  # a full backlog: gRPC could connect a moment later
                raise AbsentPeerError(f"the listener of {path} is busy", got=error) from None
            require_trusted_peer(probe, path, peer)


def _absent(path: str, peer: ExpectedPeer, got: object) -> AbsentPeerError:
    return AbsentPeerError(
        f"{peer.name} cannot be reached",
        expected=f"a process that listens at {path}",
        got=got,
        remedy=peer.start,
    )
