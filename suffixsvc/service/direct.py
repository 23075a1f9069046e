"""The stream without gRPC, for clients of the same machine: a unix socket, one thread a connection.

A decode step waits for its draft. Behind a step of tens of milliseconds everything is cold, and gRPC hands a
message from thread to thread five times on its way there and back; here whoever reads it answers it, without
waking the interpreter where the core's desk can.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import structlog

from suffixsvc.core import Desk, DeskStream
from suffixsvc.errors import LimitExceededError, ListenError
from suffixsvc.frames import GREETING, frame
from suffixsvc.lifecycle import owner_only_umask
from suffixsvc.service.failures import detail_of
from suffixsvc.service.listen import UnixAddress, prepare
from suffixsvc.v1 import suffix_cache_pb2 as pb

__all__ = ["DirectSocket"]

log = structlog.get_logger(__name__)

_READ_BYTES: Final = 1 << 16
_BACKLOG: Final = 128
#: how long a client may leave an answer unread before it is hung up on
_UNREAD_SECONDS: Final = 30
_LAST_WORDS_SECONDS: Final = 2.0
#: after a connection could not be taken (no file descriptors, no memory)
_PAUSE_SECONDS: Final = 0.1


#: a message, and what the desk answered of it: see :meth:`suffixsvc.service.handlers.Handlers.unanswered`
Answer = Callable[[bytes, Sequence[bytes | None] | None], bytes]


class DirectSocket:
    """Listens from :meth:`start` to :meth:`stop`.

    Args:
        address: of the socket file.
        desk: answers what it can.
        answer: the rest, a serialised StreamRequest -> a serialised StreamReply. What it raises is told the
            client, and ends the connection.
        max_connections: a client that comes when there are so many is turned away; it has gRPC.

    Raises:
        ListenError: somebody listens there, or a file that is no socket is in the way.
    """

    def __init__(
        self,
        address: UnixAddress,
        desk: Desk,
        answer: Answer,
        max_message_bytes: int,
        max_connections: int,
    ) -> None:
        prepare(address)
        self.path = address.path
        self._desk, self._answer, self._most = desk, answer, max_message_bytes
        self._places = threading.Semaphore(max_connections)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with owner_only_umask():
                self._listener.bind(address.path)
            self.inode = os.stat(address.path).st_ino
        except OSError as error:
            self._listener.close()
            raise ListenError(
                f"cannot listen on {address}",
                expected="a socket file that can be made",
                got=error.strerror,
                remedy="Choose a folder that only this service's user can write to.",
            ) from None
        self._lock = threading.Lock()
        self._running: dict[socket.socket, threading.Thread] = {}
        self._stopping = False
        self._acceptor = threading.Thread(target=self._accept, name="direct-accept", daemon=True)

    def start(self) -> None:
        self._listener.listen(_BACKLOG)
        self._acceptor.start()

    def stop(self, grace_seconds: float) -> None:
        """Take no more connections; answer what was asked, within ``grace_seconds``; hang up."""
        self._stopping = True
        with suppress(OSError):  # where the acceptor was never started, or is gone
            self._listener.shutdown(socket.SHUT_RDWR)
        # not everywhere does that wake who accepts
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.settimeout(_PAUSE_SECONDS)
            caller.connect(self.path)
        if self._acceptor.is_alive():
            self._acceptor.join(grace_seconds)
        self._listener.close()
        until = time.monotonic() + grace_seconds
        with self._lock:
            running = dict(self._running)
        for connection in running:
            _shut(connection, socket.SHUT_RD)
        for connection, thread in running.items():
            thread.join(max(0.0, until - time.monotonic()))
            _shut(connection, socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._stopping:
            try:
                self._take_one()
            except Exception as error:  # no descriptors, no threads, no memory, a defect: it goes on
                if not self._stopping:
                    log.warning("a direct connection could not be taken", error=repr(error))
                    time.sleep(_PAUSE_SECONDS)

    def _take_one(self) -> None:
        connection, _ = self._listener.accept()
        if self._stopping or not self._places.acquire(blocking=False):
            connection.close()
            return
        try:
            thread = threading.Thread(target=self._serve, args=[connection], name="direct", daemon=True)
            with self._lock:  # a connection that ends at once waits for its entry before it removes it
                thread.start()
                self._running[connection] = thread
        except BaseException:
            connection.close()
            self._places.release()
            raise

    def _serve(self, connection: socket.socket) -> None:
        try:
            timeout = struct.pack("ll", _UNREAD_SECONDS, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
            connection.sendall(GREETING)
            self._answer_all(connection)
        except OSError:
            pass  # the client went away; what its sessions hold stays until they are resumed or expire
        except Exception:
            log.exception("a direct connection failed")
        finally:
            self._let_go(connection)

    def _answer_all(self, connection: socket.socket) -> None:
        stream = DeskStream(self._desk, connection.fileno(), self._most)
        while True:
            try:
                reply = self._next_reply(stream)
            except Exception as error:
                detail = detail_of(error, "direct stream")
                log.info("a direct stream is ended", error=detail.message)
                connection.sendall(frame(pb.StreamReply(error=detail).SerializeToString()))
                _listen_out(connection)
                return
            if reply is None:
                return
            connection.sendall(frame(reply))

    def _next_reply(self, stream: DeskStream) -> bytes | None:
        """The answer to the next message that the desk leaves to us; None at the end."""
        found = stream.next()
        if isinstance(found, int):
            raise LimitExceededError(
                "a message is too long", expected=f"at most {self._most} bytes", got=f"{found} bytes"
            )
        return None if found is None else self._answer(*found)

    def _let_go(self, connection: socket.socket) -> None:
        connection.close()
        with self._lock:
            del self._running[connection]
        self._places.release()


def _listen_out(connection: socket.socket) -> None:
    """Read what a client that was just told off still sends: a socket that is closed before everything was
    read drops what it sent, too."""
    _shut(connection, socket.SHUT_WR)
    connection.settimeout(_LAST_WORDS_SECONDS)
    until = time.monotonic() + _LAST_WORDS_SECONDS
    while time.monotonic() < until and connection.recv(_READ_BYTES):
        pass


def _shut(connection: socket.socket, how: int) -> None:
    with suppress(OSError):  # closed meanwhile
        connection.shutdown(how)
