"""Transport over the direct socket: sessions of a service on the same machine, without gRPC.

The calling thread itself writes and reads the socket. Each thread has its own connection, so that threads do
not wait for each other, and the messages of a thread arrive in order. A session that changes threads waits
until the messages posted for it on the previous connection are answered. A late reply is read and dropped
when the next one is due. If there is no direct socket, or its connection limit is reached, gRPC is used.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, Final

from suffixsvc import wire
from suffixsvc.errors import ServiceUnavailableError, SuffixError
from suffixsvc.frames import DIRECT_SUFFIX
from suffixsvc.transport.peer_credentials import socket_path
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client.protocol.effects import Call
from suffixsvc_client.protocol.session_values import mismatch
from suffixsvc_client.transport.connection import Connection, ConnectionClosedError
from suffixsvc_client.transport.grpc_sync import GrpcTransport
from suffixsvc_client.transport.interface import Transport, client_closed, service_peer, timed_out

log = logging.getLogger(__name__)

#: connections that a message is tried on
_ATTEMPTS: Final = 2
#: unary calls that can also be stream messages, and their field of the message
_STREAM_FIELD: Final[dict[type, str]] = {
    pb.OpenSessionRequest: "open",
    pb.AppendContextRequest: "append_context",
    pb.CloseSessionRequest: "close",
}
#: time after which a direct socket that was not found is tried again
_RETRY_SECONDS: Final = 1.0


def open_transport(target: str, service_uid: int | None = None, *, direct: bool = True) -> Transport:
    """The blocking transport to ``unix:PATH`` or ``HOST:PORT``.

    Args:
        service_uid: see :class:`~suffixsvc_client.ClientConfig`.
        direct: use the direct socket of ``unix:PATH``.

    Raises:
        InvalidConfigError: not an address.
    """
    if direct and isinstance(target, str) and target.startswith("unix:") and hasattr(socket, "AF_UNIX"):
        return UnixTransport(target, service_uid)
    return GrpcTransport(target, service_uid)


class UnixTransport:
    """Transport to ``unix:PATH``: steps over the direct socket if the service has one, other calls over gRPC.

    Connects on first use and again after a restart of the service.
    """

    def __init__(self, target: str, service_uid: int | None = None) -> None:
        self._grpc = GrpcTransport(target, service_uid)
        self._path = socket_path(target) + DIRECT_SUFFIX
        self._peer = service_peer(service_uid)
        self._thread_local = threading.local()
        self._lock = threading.RLock()  # a signal's handler may close while its thread holds it
        #: by session id: the connection on which its last message was posted
        self._posted: dict[str, Connection] = {}
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._retry_at = 0.0
        self._late_replies = 0
        self._closed = False

    @property
    def late_replies(self) -> int:
        """Number of replies that came after their timeout."""
        return self._grpc.late_replies + self._late_replies

    def call(self, call: Call) -> Any:
        """Call a method; its reply. Calls of sessions are sent on the direct socket, others over gRPC."""
        field = _STREAM_FIELD.get(type(call.request))
        if field is not None:
            fields: Any = {field: call.request}
            deadline = time.monotonic() + call.timeout_s
            replies = self._exchange([pb.StreamRequest(**fields)], deadline, call.timeout_s)
            if replies is not None:
                return _reply_field(replies[0], field)
            call = call._replace(timeout_s=_remaining(deadline, call.timeout_s))
        return self._grpc.call(call)

    def exchange(self, requests: Sequence[pb.StreamRequest], timeout_s: float) -> list[pb.StreamReply]:
        """Send messages and wait for a reply to each."""
        deadline = time.monotonic() + timeout_s
        replies = self._exchange(requests, deadline, timeout_s)
        if replies is None:
            return self._grpc.exchange(requests, _remaining(deadline, timeout_s))
        return replies

    def _exchange(
        self, requests: Sequence[pb.StreamRequest], deadline: float, timeout_s: float
    ) -> list[pb.StreamReply] | None:
        """The replies; None if there is no direct socket."""
        for _ in range(_ATTEMPTS):
            connection = self._connection(deadline, timeout_s)
            if connection is None:
                return None
            if self._posted:
                self._wait_for_posted(requests, connection, deadline)
            try:
                return connection.exchange(requests, deadline)
            except TimeoutError:
                raise timed_out(timeout_s) from None
            except ConnectionClosedError:
                continue  # the service may have been restarted
            except OSError as error:
                raise self._unavailable(error) from None
        raise self._unavailable()

    def post(self, requests: Sequence[pb.StreamRequest]) -> None:
        """Send messages without waiting. Raises ServiceUnavailableError if they cannot be sent at once."""
        if self._closed:
            raise self._unavailable()
        own: Connection | None = getattr(self._thread_local, "connection", None)
        if own is None or not own.usable:
            if time.monotonic() < self._retry_at:
                self._grpc.post(requests)
                return
            raise ServiceUnavailableError("not connected yet; the next step sends it")
        sessions = [session_id for request in requests for session_id in _sessions_of(request)]
        others = {self._posted.get(session_id, own) for session_id in sessions} - {own}
        if not all(other.acknowledged() for other in others):
            raise ServiceUnavailableError("messages of another thread are not answered yet")
        if not own.post(requests):
            raise ServiceUnavailableError("the socket is full; the next step sends it")
        with self._lock:
            self._posted.update(dict.fromkeys(sessions, own))

    def _wait_for_posted(
        self, requests: Sequence[pb.StreamRequest], connection: Connection, deadline: float
    ) -> None:
        """Keep the order of a session's messages: wait for those that another thread posted."""
        for request in requests:
            for session_id in _sessions_of(request):
                other = self._posted.get(session_id, connection)
                if other is connection or other.acknowledged(deadline):
                    self._posted.pop(session_id, None)  # otherwise the deadline of the step is over, too

    def close(self) -> None:
        """Close all connections. Idempotent."""
        with self._lock:
            self._closed = True
            connections = list(self._connections)
        for connection in connections:
            connection.close()
        self._grpc.close()

    def _connection(self, deadline: float, timeout_s: float) -> Connection | None:
        """The connection of this thread, created if needed; None if there is no direct socket."""
        own: Connection | None = getattr(self._thread_local, "connection", None)
        if own is not None and own.usable and (own.is_idle or own.drain()):
            return own
        if time.monotonic() < self._retry_at:
            return None
        try:
            connection = Connection(self._path, deadline, self._count_late_reply, self._peer)
        except TimeoutError:
            raise timed_out(timeout_s) from None
        except (ServiceUnavailableError, OSError) as error:
            if isinstance(error, ServiceUnavailableError):
                log.warning("the direct socket is not used: %s", error)
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            return None
        with self._lock:
            if self._closed:
                raise self._unavailable()
            self._connections.add(connection)
            # Threads and sessions end unnoticed: drop references to connections that are not awaited.
            for session_id, other in list(self._posted.items()):
                if other.acknowledged():
                    self._posted.pop(session_id, None)
        self._thread_local.connection = connection
        return connection

    def _count_late_reply(self) -> None:
        with self._lock:
            self._late_replies += 1

    def _unavailable(self, error: OSError | None = None) -> SuffixError:
        if self._closed:
            return client_closed()
        return ServiceUnavailableError("the service ended the stream", got=error)


def _sessions_of(request: pb.StreamRequest) -> list[str]:
    match request.WhichOneof("request"):
        case "steps":
            return [item.session_id for item in request.steps.items]
        case "append_context" | "close" as field:
            return [getattr(request, field).session_id]
    return []


def _reply_field(reply: pb.StreamReply, field: str) -> Any:
    """The reply in the field of a call. Raises the service's error, or ProtocolError."""
    if reply.WhichOneof("reply") == "error":
        raise wire.error_from_detail(reply.error)
    if reply.WhichOneof("reply") != field:
        raise mismatch(field, reply.WhichOneof("reply"))
    return getattr(reply, field)


def _remaining(deadline: float, timeout_s: float) -> float:
    """Seconds until the deadline. Raises ServiceTimeoutError after it."""
    remaining = deadline - time.monotonic()
    if remaining <= 0.0:
        raise timed_out(timeout_s)
    return remaining
