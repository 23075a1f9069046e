"""Direct socket: the stream without gRPC, for clients on the same machine. One thread per connection.

A decode step waits for its draft, so this path is critical for latency. gRPC passes a message between threads
five times per round trip, with cold caches after tens of milliseconds of the target's work. Here the thread
that reads a message answers it, in the core where its dispatcher can, without the interpreter.
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

from suffixsvc.core import FramedConnection, Refusal, StepDispatcher
from suffixsvc.errors import LimitExceededError
from suffixsvc.frames import GREETING, frame
from suffixsvc.runtime.server_lifecycle import owner_only_umask
from suffixsvc.service.listeners.listen import OWN_FOLDER_REMEDY, UnixAddress, listen_error, prepare
from suffixsvc.service.messages.errors import error_detail
from suffixsvc.v1 import suffix_cache_pb2 as pb

log = structlog.get_logger(__name__)

_READ_BYTES: Final = 1 << 16
_BACKLOG: Final = 128
#: time within which a client has to read an answer before the connection is closed
_UNREAD_SECONDS: Final = 30
_LINGER_SECONDS: Final = 2.0
#: pause after a failed accept (no file descriptors, no memory)
_PAUSE_SECONDS: Final = 0.1


class DirectSocket:
    """A direct socket that accepts connections from :meth:`start` to :meth:`stop`.

    Args:
        address: of the socket file.
        dispatcher: answers plain steps.
        answer: answers the rest: a serialised StreamRequest -> a serialised StreamReply. Its exceptions are
            sent to the client, and end the connection.
        max_message_bytes: size limit of a request.
        max_connections: connections over this number are closed; their clients fall back to gRPC.

    Raises:
        ListenError: another process listens at the address, or a file other than a socket is there.
    """

    def __init__(
        self,
        address: UnixAddress,
        dispatcher: StepDispatcher,
        answer: Callable[[bytes, Sequence[bytes | Refusal] | None], bytes],
        max_message_bytes: int,
        max_connections: int,
    ) -> None:
        prepare(address)
        self.path = address.path
        self._dispatcher, self._answer, self._most = dispatcher, answer, max_message_bytes
        self._slots = threading.Semaphore(max_connections)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with owner_only_umask():
                self._listener.bind(address.path)
            self.inode = os.stat(address.path).st_ino
        except OSError as error:
            self._listener.close()
            expected = "a folder in which a socket file can be created"
            raise listen_error(address, expected, error.strerror, OWN_FOLDER_REMEDY) from None
        self._lock = threading.Lock()
        self._running: dict[socket.socket, threading.Thread] = {}
        self._stopping = False
        self._acceptor = threading.Thread(target=self._accept, name="direct-accept", daemon=True)

    def start(self) -> None:
        """Accept connections."""
        self._listener.listen(_BACKLOG)
        self._acceptor.start()

    def stop(self, grace_seconds: float) -> None:
        """Stop accepting, answer pending requests within ``grace_seconds``, then close all connections."""
        self._stopping = True
        with suppress(OSError):  # the acceptor was never started, or has ended
            self._listener.shutdown(socket.SHUT_RDWR)
        # shutdown does not wake the acceptor on every platform; a connection does
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
                self._accept_one()
            except Exception as error:  # no descriptors, threads or memory, or a defect: go on
                if not self._stopping:
                    log.warning("a direct connection could not be accepted", error=repr(error))
                    time.sleep(_PAUSE_SECONDS)

    def _accept_one(self) -> None:
        connection, _ = self._listener.accept()
        if self._stopping or not self._slots.acquire(blocking=False):
            connection.close()
            return
        try:
            thread = threading.Thread(target=self._serve, args=[connection], name="direct", daemon=True)
            with self._lock:  # a connection that ends at once must find its entry to remove it
                thread.start()
                self._running[connection] = thread
        except BaseException:
            connection.close()
            self._slots.release()
            raise

    def _serve(self, connection: socket.socket) -> None:
        try:
            timeout = struct.pack("ll", _UNREAD_SECONDS, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
            connection.sendall(GREETING)
            self._answer_all(connection)
        except OSError:
            pass  # the client disconnected; its sessions stay open until they are resumed or expire
        except Exception:
            log.exception("a direct connection failed")
        finally:
            self._release(connection)

    def _answer_all(self, connection: socket.socket) -> None:
        stream = FramedConnection(self._dispatcher, connection.fileno(), self._most)
        while True:
            try:
                reply = self._next_reply(stream)
            except Exception as error:
                detail = error_detail(error, "direct stream")
                log.info("a direct stream is ended", error=detail.message)
                connection.sendall(frame(pb.StreamReply(error=detail).SerializeToString()))
                _linger(connection)
                return
            if reply is None:
                return
            connection.sendall(frame(reply))

    def _next_reply(self, stream: FramedConnection) -> bytes | None:
        """The answer to the next message that the dispatcher leaves to Python; None at the end."""
        found = stream.next()
        if isinstance(found, int):
            raise LimitExceededError(
                "a message must not be too long", expected=f"at most {self._most} bytes", got=f"{found} bytes"
            )
        return None if found is None else self._answer(*found)

    def _release(self, connection: socket.socket) -> None:
        connection.close()
        with self._lock:
            del self._running[connection]
        self._slots.release()


def _linger(connection: socket.socket) -> None:
    """Read until the client closes: closing a socket with unread data would drop the error just sent."""
    _shut(connection, socket.SHUT_WR)
    connection.settimeout(_LINGER_SECONDS)
    until = time.monotonic() + _LINGER_SECONDS
    while time.monotonic() < until and connection.recv(_READ_BYTES):
        pass


def _shut(connection: socket.socket, how: int) -> None:
    with suppress(OSError):  # closed in the meantime
        connection.shutdown(how)
