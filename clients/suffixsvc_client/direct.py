"""Sessions of a service of the same machine without gRPC: the caller's own thread writes and reads a socket.

Each thread has a connection of its own: nobody waits for another one's draft, and what a thread says arrives
in the order in which it says it. A session that changes threads waits until what was posted for it on the
other connection is answered. An answer that comes late is read, and dropped, when the next one is due. Where
no such socket is, or it has no place left, gRPC's stream is there.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from google.protobuf.message import Message

from suffixsvc import wire
from suffixsvc.errors import ProtocolError, ServiceTimeoutError, ServiceUnavailableError, SuffixError
from suffixsvc.frames import DIRECT_SUFFIX, GREETING, FrameBuffer, frame
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client.effects import APPEND, CLOSE, OPEN, Method
from suffixsvc_client.grpc_sync import GrpcTransport
from suffixsvc_client.transport import Transport, parse

__all__ = ["UnixTransport", "open_transport"]

_READ_BYTES: Final = 1 << 16
#: messages that are sent before their answers are read: more could fill both sides' sockets, and each would
#: wait for the other to read
_WINDOW: Final = 16
#: what is posted without waiting has to find room in the socket's buffer
_POSTED_BYTES: Final = 1 << 16
_MOST_REPLY_BYTES: Final = 1 << 30
#: calls that can be messages of the stream as well
_STREAMED: Final = {OPEN.name: "open", APPEND.name: "append_context", CLOSE.name: "close"}
#: where no direct socket was, it is looked for again after
_LOOK_AGAIN_SECONDS: Final = 1.0


def open_transport(target: str, *, direct: bool = True) -> Transport:
    """To ``unix:PATH`` or ``HOST:PORT``.

    Args:
        direct: steps may go the direct way.

    Raises:
        InvalidConfigError: not an address.
    """
    if direct and target.startswith("unix:") and hasattr(socket, "AF_UNIX"):
        return UnixTransport(target)
    return GrpcTransport(target)


class UnixTransport:
    """A :class:`~suffixsvc_client.transport.Transport` to ``unix:PATH``: sessions go the direct way where
    there is one, everything else over gRPC. Connects when first used; survives restarts."""

    def __init__(self, target: str) -> None:
        self._grpc = GrpcTransport(target)
        self._path = os.path.abspath(target.removeprefix("unix:").removeprefix("//")) + DIRECT_SUFFIX
        self._mine = threading.local()
        self._lock = threading.RLock()  # a signal's handler may close while its thread holds it
        #: by session, where something was posted for it last
        self._posted: dict[str, _Connection] = {}
        self._connections: weakref.WeakSet[_Connection] = weakref.WeakSet()
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
            replies = self._exchange([message], timeout_s)
            if replies is not None:
                return _reply_of(replies[0], field)
        return self._grpc.unary(method, request, timeout_s)

    def upload(self, method: Method[Any, Any], requests: Sequence[Message], timeout_s: float) -> Any:
        return self._grpc.upload(method, requests, timeout_s)

    def download(
        self, method: Method[Any, Any], request: Message, take: Callable[[Any], None], timeout_s: float
    ) -> None:
        self._grpc.download(method, request, take, timeout_s)

    def exchange(self, requests: Sequence[pb.StreamRequest], timeout_s: float) -> list[pb.StreamReply]:
        replies = self._exchange(requests, timeout_s)
        return self._grpc.exchange(requests, timeout_s) if replies is None else replies

    def _exchange(
        self, requests: Sequence[pb.StreamRequest], timeout_s: float
    ) -> list[pb.StreamReply] | None:
        """The replies; None where there is no direct socket."""
        deadline = time.monotonic() + timeout_s
        connection = self._connection(deadline, timeout_s)
        if connection is None:
            return None
        if self._posted:
            self._wait_for_posted(requests, connection, deadline)
        try:
            with connection.in_use:
                replies: list[pb.StreamReply] = []
                for at in range(0, len(requests), _WINDOW):
                    ids = connection.send(requests[at : at + _WINDOW], deadline)
                    replies += [connection.receive(expected, deadline) for expected in ids]
                return replies
        except TimeoutError:
            raise _timeout(timeout_s) from None
        except OSError as error:
            raise self._gone(error) from None

    def post(self, requests: Sequence[pb.StreamRequest]) -> None:
        """Waits for nothing: what cannot be sent at once raises, and goes along with the next step."""
        if self._closed:
            raise self._gone()
        mine: _Connection | None = getattr(self._mine, "connection", None)
        if mine is None or not mine.usable:
            if time.monotonic() < self._look_again:
                self._grpc.post(requests)
                return
            raise ServiceUnavailableError("not connected yet; the next step takes it along")
        for request in requests:
            for session_id in _sessions_of(request):
                self._posted[session_id] = mine
        with mine.in_use:
            sent = mine.post(requests)
        if not sent:
            raise ServiceUnavailableError("the socket is full; the next step takes it along")

    def _wait_for_posted(
        self, requests: Sequence[pb.StreamRequest], connection: _Connection, deadline: float
    ) -> None:
        """What another thread posted for these sessions has to be there before what is said now."""
        for request in requests:
            for session_id in _sessions_of(request):
                other = self._posted.pop(session_id, None)
                if other is not None and other is not connection and other.usable:
                    other.catch_up(deadline)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connections = list(self._connections)
        for connection in connections:
            connection.close()
        self._grpc.close()

    def _connection(self, deadline: float, timeout_s: float) -> _Connection | None:
        """This thread's, made where it has none; None where there is no direct socket."""
        mine: _Connection | None = getattr(self._mine, "connection", None)
        if mine is not None and mine.usable:
            with mine.in_use:
                alive = mine.take_in()
            if alive:
                return mine
        if time.monotonic() < self._look_again:
            return None
        try:
            made = _Connection(self._path, deadline, self._count_late)
        except TimeoutError:
            raise _timeout(timeout_s) from None
        except OSError:
            self._look_again = time.monotonic() + _LOOK_AGAIN_SECONDS
            return None
        with self._lock:
            if self._closed:
                raise self._gone()
            self._connections.add(made)
        self._mine.connection = made
        return made

    def _count_late(self) -> None:
        with self._lock:
            self._late += 1

    def _gone(self, error: OSError | None = None) -> SuffixError:
        if self._closed:
            return ServiceUnavailableError("the client is closed", remedy="Make a new client.")
        return ServiceUnavailableError("the service ended the stream", got=error)


class _Connection:
    """One thread's. After anything but a reply that is late it is of no use any more.

    Args:
        late: told of each reply that came after its step had given up.

    Raises:
        TimeoutError: not greeted in time.
        OSError: there is no service of this kind.
    """

    def __init__(self, path: str, deadline: float, late: Callable[[], None]) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        #: held while something is sent or waited for
        self.in_use = threading.Lock()
        self._owner = os.getpid()
        self._late = late
        self._sent = 0
        self._given_up: set[int] = set()
        self._frames = FrameBuffer(_MOST_REPLY_BYTES)
        self._owed: set[int] = set()  # answers to what was posted
        self.broken = False
        try:
            self._wait_until(deadline)
            self._socket.connect(path)
            self._be_greeted(deadline)
        except BaseException:
            self._socket.close()
            raise

    @property
    def usable(self) -> bool:
        """A forked process leaves its parent's connection alone: both would read each other's answers."""
        return not self.broken and self._owner == os.getpid()

    def send(self, requests: Sequence[pb.StreamRequest], deadline: float) -> range:
        """The numbers that the requests went out under."""
        ids, data = self._numbered(requests)
        try:
            self._wait_until(deadline)
            self._socket.sendall(data)
        except BaseException:  # part of it may have gone out
            self._hang_up()
            raise
        self._given_up.update(ids)
        return ids

    def post(self, requests: Sequence[pb.StreamRequest]) -> bool:
        """Send without waiting; False where that cannot be."""
        if not self.take_in():
            return False
        try:
            while (data := self._frames.next()) is not None:
                self._drop(parse(pb.StreamReply, data), self._sent + 1)
            ids, data = self._numbered(requests)
            if len(data) > _POSTED_BYTES:
                return False
            self._socket.settimeout(0.0)
            if self._socket.send(data) == len(data):
                self._owed.update(ids)
                return True
        except BlockingIOError:
            return False  # nothing went out
        except (OSError, SuffixError):
            pass
        self._hang_up()  # a part of it went out
        return False

    def take_in(self) -> bool:
        """Read what came meanwhile, lest it fills the socket. False where the service has hung up: it shows
        before anything is sent."""
        try:
            self._socket.settimeout(0.0)
            while received := self._socket.recv(_READ_BYTES):
                self._frames.feed(received)
        except BlockingIOError:
            return True
        except OSError:
            pass
        self._hang_up()
        return False

    def catch_up(self, deadline: float) -> None:
        """Wait until everything posted here is answered. From any thread."""
        if not self.in_use.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return
        try:
            while self._owed:
                self._drop(self._next_reply(deadline), self._sent + 1)
        except TimeoutError:
            return
        except (OSError, SuffixError):
            self._hang_up()
        finally:
            self.in_use.release()

    def receive(self, expected: int, deadline: float) -> pb.StreamReply:
        """The answer of this number, those before it dropped.

        Raises:
            TimeoutError: the connection stays of use.
            OSError, SuffixError: it does not.
        """
        try:
            while True:
                reply = self._next_reply(deadline)
                if reply.id == expected:
                    self._given_up.discard(expected)
                    return reply
                self._drop(reply, expected)
        except TimeoutError:
            raise
        except BaseException:
            self._hang_up()
            raise

    def close(self) -> None:
        """From any thread, also in a signal's handler; whoever waits for an answer is told. Idempotent."""
        if self._owner != os.getpid():
            return  # the parent's
        self._hang_up()
        # Not under somebody who still reads: the number could be another file's by then. Who reads lets go.
        if self.in_use.acquire(blocking=False):
            self._socket.close()
            self.in_use.release()

    def __del__(self) -> None:
        self._socket.close()

    def _hang_up(self) -> None:
        self.broken = True
        if self._owner == os.getpid():
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _drop(self, reply: pb.StreamReply, expected: int) -> None:
        if reply.id == 0 and reply.WhichOneof("reply") == "error":
            raise wire.error_from_detail(reply.error)
        if reply.id == 0 or reply.id > expected:
            raise ProtocolError("answers come out of order", expected=f"id {expected}", got=reply.id)
        self._owed.discard(reply.id)
        if reply.id in self._given_up:
            self._given_up.discard(reply.id)
            self._late()

    def _numbered(self, requests: Sequence[pb.StreamRequest]) -> tuple[range, bytes]:
        ids = range(self._sent + 1, self._sent + 1 + len(requests))
        for number, request in zip(ids, requests, strict=True):
            request.id = number
        self._sent = ids.stop - 1
        return ids, b"".join(frame(request.SerializeToString()) for request in requests)

    def _next_reply(self, deadline: float) -> pb.StreamReply:
        while (data := self._frames.next()) is None:
            self._wait_until(deadline)
            received = self._socket.recv(_READ_BYTES)
            if not received:
                raise ConnectionResetError("end of the stream")
            self._frames.feed(received)
        return parse(pb.StreamReply, data)

    def _be_greeted(self, deadline: float) -> None:
        heard = b""
        while len(heard) < len(GREETING):
            self._wait_until(deadline)
            received = self._socket.recv(len(GREETING) - len(heard))
            heard += received
            if not received or not GREETING.startswith(heard):
                raise ConnectionRefusedError(f"no direct stream: {heard!r}")

    def _wait_until(self, deadline: float) -> None:
        """Let what follows on the socket take until then."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)


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


def _timeout(timeout_s: float) -> SuffixError:
    return ServiceTimeoutError(
        "the service did not answer in time", expected=f"an answer within {timeout_s} s"
    )
