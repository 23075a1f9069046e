"""Identity socket of a server: sends each connection a ticket for the user at its other end, and closes it.

It reads nothing and waits for no peer: a message fits into the empty buffer of a new connection, and a peer
that has gone is dropped. All users of the machine share the queue of the socket, so accepting is paced: a
peer that connects in a loop cannot take the processor from the server.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from suffixsvc.access.control import AccessControl
from suffixsvc.errors import ListenError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.runtime.server_lifecycle import owner_only_umask
from suffixsvc.transport.peer_credentials import peer_uid
from suffixsvc.transport.user_tickets import TicketMessage, identity_path

log = structlog.get_logger(__name__)

#: connections that the system holds until they are accepted
_BACKLOG: Final = 128
#: connections that are accepted in a row, and the pause after as many
_BURST: Final = 32
_PAUSE_SECONDS: Final = 0.03
#: longest wait for a connection, after which the thread sees whether it should end
_POLL_SECONDS: Final = 0.5
#: pause after a failure, such as too many open files
_FAILURE_SECONDS: Final = 0.5


class IdentitySocket(ClosedOnExit):
    """Listens from its creation on, and answers from :meth:`start` until :meth:`close`.

    Args:
        path: of the socket file, at which no file is.
        mode: permissions of the socket file.
        answer: the message for a user.

    Raises:
        ListenError: the socket cannot be created.
    """

    def __init__(self, path: str, mode: int, answer: Callable[[int], TicketMessage]) -> None:
        self._path = path
        self._answer = answer
        self._closing = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(path)
            self._inode = os.stat(path).st_ino
            _set_socket_mode(path, mode)
            self._listener.listen(_BACKLOG)
            self._listener.settimeout(_POLL_SECONDS)
        except OSError as error:
            self._listener.close()
            raise ListenError(
                f"cannot listen on unix:{path}", expected="a free path", got=error.strerror or error
            ) from None
        self._thread = threading.Thread(target=self._run, name="identity-socket", daemon=True)

    def start(self) -> None:
        """Answer."""
        self._thread.start()

    def close(self) -> None:
        """End, and remove the socket file unless another server has replaced it. Idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        if self._thread.is_alive():
            self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        failing = False
        while not self._closing.is_set():
            try:
                self._serve_burst()
                failing = False
            except Exception as error:  # the thread must not end: no other one identifies users
                if self._closing.is_set():
                    return
                if not failing:
                    log.warning("users cannot be identified", path=self._path, error=repr(error)[:200])
                failing = True
                self._closing.wait(_FAILURE_SECONDS)

    def _serve_burst(self) -> None:
        """Answer connections until one is awaited in vain, or a burst of them has been."""
        for _ in range(_BURST):
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                return
            with connection:
                self._send(connection)
        self._closing.wait(_PAUSE_SECONDS)

    def _send(self, connection: socket.socket) -> None:
        uid = peer_uid(connection)
        if uid is None:
            return
        message = self._answer(uid).encode()
        connection.setblocking(False)
        try:
            connection.send(message)
        except OSError:  # the peer has gone
            return


@contextlib.contextmanager
def binding(path: str, access: AccessControl) -> Iterator[IdentitySocket | None]:
    """Bind a unix socket in the block. Only its owner can open it until the block has ended.

    Args:
        path: of the socket file.
        access: its ``socket_mode`` says who can open the socket afterwards.

    Yields:
        The identity socket beside it, which the caller starts and closes; None: only the owner opens sockets.

    Raises:
        ListenError: the identity socket cannot be created, or another file has replaced the socket.
    """
    identity = None
    if access.shares_sockets:
        identity = IdentitySocket(identity_path(path), access.socket_mode, access.identify_user)
    try:
        with owner_only_umask():
            yield identity
        if identity is not None:
            try:
                _set_socket_mode(path, access.socket_mode)
            except OSError as error:
                raise ListenError(f"cannot listen on unix:{path}", got=error.strerror or error) from None
    except BaseException:
        if identity is not None:
            identity.close()
        raise


def _set_socket_mode(path: str, mode: int) -> None:
    """Set the permissions of a socket file of this user. The path may name another file meanwhile.

    Raises:
        OSError: it does.
    """
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(f"{path} is not a socket of user id {os.geteuid()}")
        os.chmod(f"/proc/self/fd/{descriptor}", mode)
    finally:
        os.close(descriptor)
