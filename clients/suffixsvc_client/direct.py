"""Sessions of a service of the same machine without gRPC: the caller's own thread writes and reads a socket.

Each thread has a connection of its own: nobody waits for another one's draft, and what a thread says arrives
in the order in which it says it. A session that changes threads waits until what was posted for it on the
other connection is answered. An answer that comes late is read, and dropped, when the next one is due. Where
no such socket is, or it has no place left, gRPC's stream is there.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from google.protobuf.message import Message

from suffixsvc import wire
from suffixsvc.errors import ProtocolError, ServiceTimeoutError, ServiceUnavailableError, SuffixError
from suffixsvc.frames import DIRECT_SUFFIX
from suffixsvc.peers import socket_path
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client.connection import Connection, HungUpError
from suffixsvc_client.effects import APPEND, CLOSE, OPEN, Method
from suffixsvc_client.grpc_sync import GrpcTransport
from suffixsvc_client.transport import Transport, service_peer

__all__ = ["UnixTransport", "open_transport"]

log = logging.getLogger(__name__)

#: connections that may turn out to be gone before a message is given up
_ATTEMPTS: Final = 2
#: calls that can be messages of the stream as well
_STREAMED: Final = {OPEN.name: "open", APPEND.name: "append_context", CLOSE.name: "close"}
#: where no direct socket was, it is looked for again after
_LOOK_AGAIN_SECONDS: Final = 1.0


def open_transport(target: str, *, direct: bool = True, service_uid: int | None = None) -> Transport:
    """To ``unix:PATH`` or ``HOST:PORT``.

    Args:
        direct: steps may go the direct way.
        service_uid: see :class:`~suffixsvc_client.ClientConfig`.

    Raises:
        InvalidConfigError: not an address.
    """
    if direct and isinstance(target, str) and target.startswith("unix:") and hasattr(socket, "AF_UNIX"):
        return UnixTransport(target, service_uid)
    return GrpcTransport(target, service_uid)


class UnixTransport:
    """A :class:`~suffixsvc_client.transport.Transport` to ``unix:PATH``: sessions go the direct way where
    there is one, everything else over gRPC. Connects when first used; survives restarts."""

    def __init__(self, target: str, service_uid: int | None = None) -> None:
        self._grpc = GrpcTransport(target, service_uid)
        self._path = socket_path(target) + DIRECT_SUFFIX
        self._peer = service_peer(service_uid)
        self._mine = threading.local()
        self._lock = threading.RLock()  # a signal's handler may close while its thread holds it
        #: by session, where something was posted for it last
        self._posted: dict[str, Connection] = {}
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._look_again = 0.0
        self._late = 0
        self._closed = False

    @property
    def late_replies(self) -> int:
        """Replies that came after their step had given up."""
        return self._grpc.late_replies + self._late

    def unary(self, method: Method[Any, Any], request: Message, timeout_s: float) -> Any:
        field = _STREAMED.get(method.name)
        if field is not None:
            message = pb.StreamRequest()
            getattr(message, field).CopyFrom(request)
            deadline = time.monotonic() + timeout_s
            replies = self._exchange([message], deadline, timeout_s)
            if replies is not None:
                return _reply_of(replies[0], field)
            timeout_s = _rest(deadline, timeout_s)
        return self._grpc.unary(method, request, timeout_s)

    def upload(self, method: Method[Any, Any], requests: Sequence[Message], timeout_s: float) -> Any:
        return self._grpc.upload(method, requests, timeout_s)

    def download(
        self, method: Method[Any, Any], request: Message, take: Callable[[Any], None], timeout_s: float
    ) -> None:
        self._grpc.download(method, request, take, timeout_s)

    def exchange(self, requests: Sequence[pb.StreamRequest], timeout_s: float) -> list[pb.StreamReply]:
        deadline = time.monotonic() + timeout_s
        replies = self._exchange(requests, deadline, timeout_s)
        if replies is None:
            return self._grpc.exchange(requests, _rest(deadline, timeout_s))
        return replies

    def _exchange(
        self, requests: Sequence[pb.StreamRequest], deadline: float, timeout_s: float
    ) -> list[pb.StreamReply] | None:
        """The replies; None where there is no direct socket."""
        for _ in range(_ATTEMPTS):
            connection = self._connection(deadline, timeout_s)
            if connection is None:
                return None
            if self._posted:
                self._wait_for_posted(requests, connection, deadline)
            try:
                return connection.exchange(requests, deadline)
            except TimeoutError:
                raise _timeout(timeout_s) from None
            except HungUpError:
                continue  # the service that was there is gone; another one may have come
            except OSError as error:
                raise self._gone(error) from None
        raise self._gone()

    def post(self, requests: Sequence[pb.StreamRequest]) -> None:
        """Waits for nothing: what cannot be sent at once raises, and goes along with the next step."""
        if self._closed:
            raise self._gone()
        mine: Connection | None = getattr(self._mine, "connection", None)
        if mine is None or not mine.usable:
            if time.monotonic() < self._look_again:
                self._grpc.post(requests)
                return
            raise ServiceUnavailableError("not connected yet; the next step takes it along")
        sessions = [session_id for request in requests for session_id in _sessions_of(request)]
        others = {self._posted.get(session_id, mine) for session_id in sessions} - {mine}
        if not all(other.settled() for other in others):
            raise ServiceUnavailableError("another thread's words are still on their way")
        if not mine.post(requests):
            raise ServiceUnavailableError("the socket is full; the next step takes it along")
        with self._lock:
            self._posted.update(dict.fromkeys(sessions, mine))

    def _wait_for_posted(
        self, requests: Sequence[pb.StreamRequest], connection: Connection, deadline: float
    ) -> None:
        """What another thread posted for these sessions has to be there before what is said now."""
        for request in requests:
            for session_id in _sessions_of(request):
                other = self._posted.get(session_id, connection)
                if other is not connection and not other.settled():
                    other.catch_up(deadline)
                    if not other.settled():
                        continue  # no time left for the step either
                self._posted.pop(session_id, None)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connections = list(self._connections)
        for connection in connections:
            connection.close()
        self._grpc.close()

    def _connection(self, deadline: float, timeout_s: float) -> Connection | None:
        """This thread's, made where it has none; None where there is no direct socket."""
        mine: Connection | None = getattr(self._mine, "connection", None)
        if mine is not None and mine.usable and (mine.quiet or mine.take_in()):
            return mine
        if time.monotonic() < self._look_again:
            return None
        try:
            made = Connection(self._path, deadline, self._count_late, self._peer)
        except TimeoutError:
            raise _timeout(timeout_s) from None
        except ServiceUnavailableError as error:
            log.warning("the direct socket is not used: %s", error)
            self._look_again = time.monotonic() + _LOOK_AGAIN_SECONDS
            return None
        except OSError:
            self._look_again = time.monotonic() + _LOOK_AGAIN_SECONDS
            return None
        with self._lock:
            if self._closed:
                raise self._gone()
            self._connections.add(made)
            # threads end without a word, and so do sessions: a connection is kept for what it is owed only
            for session_id, other in list(self._posted.items()):
                if other.settled():
                    self._posted.pop(session_id, None)
        self._mine.connection = made
        return made

    def _count_late(self) -> None:
        with self._lock:
            self._late += 1

    def _gone(self, error: OSError | None = None) -> SuffixError:
        if self._closed:
            return ServiceUnavailableError("the client is closed", remedy="Make a new client.")
        return ServiceUnavailableError("the service ended the stream", got=error)


def _sessions_of(request: pb.StreamRequest) -> list[str]:
    match request.WhichOneof("request"):
        case "steps":
            return [item.session_id for item in request.steps.items]
        case "append_context":
            return [request.append_context.session_id]
        case "close":
            return [request.close.session_id]
    return []


def _reply_of(reply: pb.StreamReply, field: str) -> Any:
    """What the call of this kind answers."""
    if reply.WhichOneof("reply") == "error":
        raise wire.error_from_detail(reply.error)
    if reply.WhichOneof("reply") != field:
        raise ProtocolError(
            "an answer does not belong to its request", expected=field, got=reply.WhichOneof("reply")
        )
    return getattr(reply, field)


def _rest(deadline: float, timeout_s: float) -> float:
    """Seconds that gRPC has left. Raises ServiceTimeoutError where that is none."""
    left = deadline - time.monotonic()
    if left <= 0.0:
        raise _timeout(timeout_s)
    return left


def _timeout(timeout_s: float) -> SuffixError:
    return ServiceTimeoutError(
        "the service did not answer in time", expected=f"an answer within {timeout_s} s"
    )
