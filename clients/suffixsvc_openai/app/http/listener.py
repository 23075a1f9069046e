"""The listening socket, which bounds connections from the moment they are accepted.

asyncio shows a connection to a protocol after its TLS handshake only. So connections are counted here, where
they are accepted and closed, and each handshake has a deadline of its own: a client that begins one and stops
takes a place for so long, and no more.

    accepted ── HANDSHAKE_SECONDS ──> handshake complete (established) ──> closed
    beyond the limit: marked as refused; by more than _REFUSING: closed at once
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from typing import Any, Final

import structlog

_log = structlog.get_logger(__name__)

#: connections of the server
MAX_CONNECTIONS: Final = 4096
#: seconds for a TLS handshake
HANDSHAKE_SECONDS: Final = 10.0
#: files that are left for the rest of the process: data, the template's process, the draft worker, services
_OTHER_FILES: Final = 256
#: connections beyond the limit that wait for their 503; further ones are closed without it
_REFUSING: Final = 32
#: seconds between two warnings that connections are refused
_WARNING_SECONDS: Final = 60.0


def connection_limit() -> int:
    """Return the number of connections that the process has files for, at most MAX_CONNECTIONS."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, files - min(_OTHER_FILES, files // 2)))


class Connection(socket.socket):
    """An accepted connection, counted until it is closed."""

    def __init__(self, listener: Listener, accepted: socket.socket, *, refused: bool) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self._listener = listener
        self._counted = True
        #: the connection is beyond the limit
        self.refused = refused
        self._timer: asyncio.TimerHandle | None = None
        if listener.encrypted:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(HANDSHAKE_SECONDS, self._late)

    def established(self) -> bool:
        """The handshake, if there is one, is complete. Returns whether the connection is to be refused."""
        self._stop()
        return self.refused

    def close(self) -> None:
        """Close it. Idempotent."""
        if self._counted:
            self._counted = False
            self._stop()
            self._listener.forget(self)
        super().close()

    def _late(self) -> None:
        self._timer = None
        with contextlib.suppress(OSError):  # closed by the client meanwhile
            self.shutdown(socket.SHUT_RDWR)  # asyncio then ends it

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Listener(socket.socket):
    """A listening socket of one event loop.

    Args:
        family: of its address.
        encrypted: connections begin with a TLS handshake.
    """

    def __init__(self, family: socket.AddressFamily, *, encrypted: bool) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self.encrypted = encrypted
        self._connections: dict[int, Connection] = {}
        self._next_warning = 0.0

    @property
    def open(self) -> int:
        """Connections that are accepted and not closed."""
        return len(self._connections)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, in the event loop.

        Raises:
            ConnectionAbortedError: there were too many; it is closed.
        """
        accepted, address = super().accept()
        beyond = self.open + 1 - connection_limit()
        if beyond > 0:
            self._warn()
        if beyond > _REFUSING:
            accepted.close()
            raise ConnectionAbortedError
        connection = Connection(self, accepted, refused=beyond > 0)
        self._connections[connection.fileno()] = connection
        return connection, address

    def connection(self, descriptor: int) -> Connection | None:
        """The open connection with a descriptor; None: it is closed."""
        return self._connections.get(descriptor)

    def forget(self, connection: Connection) -> None:
        """Count a connection no more; it is about to be closed."""
        del self._connections[connection.fileno()]

    def _warn(self) -> None:
        """Log that connections are refused, at most once per _WARNING_SECONDS: they need no token."""
        now = time.monotonic()
        if now < self._next_warning:
            return
        self._next_warning = now + _WARNING_SECONDS
        limit = connection_limit()
        remedy = "Raise ulimit -n." if limit < MAX_CONNECTIONS else "Bound connections by client in a proxy."
        _log.warning("new connections are refused", limit=limit, remedy=remedy)
