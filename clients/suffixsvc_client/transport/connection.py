"""Connection of one thread to a direct socket: sends requests as frames and matches the replies.

This path is critical for latency: a decode step waits for it, with cold caches after tens of milliseconds of
the target's work. It makes no system call that is not needed.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from suffixsvc import wire
from suffixsvc.errors import ProtocolError, SuffixError
from suffixsvc.frames import GREETING, FrameBuffer, frame
from suffixsvc.transport.peer_credentials import ExpectedPeer, require_trusted_peer
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client.transport.interface import Forks, parse

_READ_BYTES: Final = 1 << 16
#: requests that are sent before their replies are read; more could fill both socket buffers: a deadlock
_MAX_IN_FLIGHT: Final = 16
#: limit on messages that are posted without waiting: they must fit the socket's buffer
_MAX_POST_BYTES: Final = 1 << 16
_MAX_REPLY_BYTES: Final = 1 << 26
#: limit on unrequested data that is read at once; a service that sends more is broken
_MAX_DRAIN_BYTES: Final = 1 << 24


class ConnectionClosedError(ConnectionError):
    """The service has closed the connection before any byte of a request was sent."""


class Connection:
    """A connection for use by one thread. After any error but a timeout it is broken.

    Args:
        path: of the direct socket.
        deadline: for connecting, by ``time.monotonic``, as all deadlines here.
        on_late_reply: called for each reply that came after its timeout.
        peer: the expected listener.

    Raises:
        ServiceUnavailableError: the listener belongs to another user.
        TimeoutError: no greeting came in time.
        OSError: no such service listens at ``path``.
    """

    def __init__(
        self, path: str, deadline: float, on_late_reply: Callable[[], None], peer: ExpectedPeer
    ) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        #: held while sending or waiting
        self._in_use = threading.Lock()
        self._forks = Forks.count
        self._on_late_reply = on_late_reply
        self._sent = 0
        self._unanswered: set[int] = set()  #: ids of requests whose replies have not come
        self._frames = FrameBuffer(_MAX_REPLY_BYTES)
        self._posted: set[int] = set()  #: ids of posted requests whose replies have not come
        self.broken = False
        self._readable = select.poll()
        try:
            self._socket.settimeout(_remaining(deadline))
            self._socket.connect(path)
            require_trusted_peer(self._socket, path, peer)
            self._read_greeting(deadline)
            self._socket.setblocking(False)
            self._readable.register(self._socket, select.POLLIN)
        except BaseException:
            self._socket.close()
            raise

    @property
    def usable(self) -> bool:
        """Whether this process can use the connection: not after an error, nor in a forked child."""
        return not self.broken and self._forks == Forks.count

    @property
    def is_idle(self) -> bool:
        """Whether no late or unrequested reply is in flight."""
        return not self._posted and not self._unanswered

    def exchange(self, requests: Sequence[pb.StreamRequest], deadline: float) -> list[pb.StreamReply]:
        """Send requests and wait for a reply to each.

        Raises:
            ConnectionClosedError: nothing was sent; another connection may succeed.
            TimeoutError: a reply is late; the connection remains usable.
            OSError, SuffixError: the connection is broken.
        """
        if not self._in_use.acquire(timeout=_remaining(deadline)):  # of another thread's wait
            raise TimeoutError
        try:
            with self._broken_by_errors():
                replies: list[pb.StreamReply] = []
                for at in range(0, len(requests), _MAX_IN_FLIGHT):
                    ids = self._send(requests[at : at + _MAX_IN_FLIGHT], deadline, first=at == 0)
                    replies += [self._receive(expected, deadline) for expected in ids]
                return replies
        finally:
            self._in_use.release()

    def post(self, requests: Sequence[pb.StreamRequest]) -> bool:
        """Send requests without waiting; whether they were sent."""
        if not self._in_use.acquire(blocking=False):
            return False
        try:
            with self._broken_by_errors():
                return self._drain() and self._post(requests)
        except (OSError, SuffixError):
            return False
        finally:
            self._in_use.release()

    def drain(self) -> bool:
        """Read available data, so that the socket buffer does not fill up; False at the end of the stream."""
        if not self._in_use.acquire(blocking=False):
            return True  # another thread reads
        try:
            with self._broken_by_errors():
                return self._drain()
        finally:
            self._in_use.release()

    def acknowledged(self, deadline: float = 0.0) -> bool:
        """Whether all posted requests are answered, after waiting until the deadline. For any thread."""
        if not self._in_use.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return False
        try:
            with self._broken_by_errors():
                while self.usable and self._posted:
                    self._discard(self._next_reply(deadline), self._sent + 1)
        except (OSError, SuffixError):  # broken, or the time is over
            pass
        finally:
            self._in_use.release()
        return not self.usable or not self._posted

    @contextmanager
    def _broken_by_errors(self) -> Iterator[None]:
        """Any error of the block but a timeout breaks the connection: a part may be sent or received."""
        try:
            yield
        except TimeoutError:
            raise
        except BaseException:
            self._shut_down()
            raise

    def close(self) -> None:
        """Close the connection; a waiting thread receives an error. Idempotent.

        May be called from any thread and from a signal handler.
        """
        if self._forks != Forks.count:
            return  # it is the parent's
        self._shut_down()
        # Closing under a reader could make it read another file of the same number; it fails by itself.
        if self._in_use.acquire(blocking=False):
            self._socket.close()
            self._in_use.release()

    def __del__(self) -> None:
        self._socket.close()

    def _send(self, requests: Sequence[pb.StreamRequest], deadline: float, *, first: bool) -> range:
        """Send requests; their ids."""
        ids, data = self._numbered(requests)
        sent = 0
        try:
            while True:
                with suppress(BlockingIOError):
                    sent += self._socket.send(data[sent:] if sent else data)
                if sent == len(data):
                    break
                self._wait_until_writable(deadline)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ConnectionClosedError(str(error)) if first and not sent else error from None
        self._unanswered.update(ids)
        return ids

    def _post(self, requests: Sequence[pb.StreamRequest]) -> bool:
        """Send requests whose replies are dropped; False if nothing was sent."""
        self._discard_buffered()
        ids, data = self._numbered(requests)
        if len(data) > _MAX_POST_BYTES:
            return False
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            return False
        if sent != len(data):
            raise ConnectionError("a message was sent in part")
        self._posted.update(ids)
        return True

    def _receive(self, expected: int, deadline: float) -> pb.StreamReply:
        """The reply of this id; earlier replies are discarded."""
        while (reply := self._next_reply(deadline)).id != expected:
            self._discard(reply, expected)
            _remaining(deadline)  # a service may send old replies without end
        self._unanswered.discard(expected)
        return reply

    def _drain(self) -> bool:
        budget = _MAX_DRAIN_BYTES
        with suppress(OSError):
            try:
                while budget > 0 and (received := self._socket.recv(_READ_BYTES)):
                    self._frames.feed(received)
                    budget -= len(received)
            except BlockingIOError:
                return True
        self._shut_down()
        return False

    def _discard_buffered(self) -> None:
        """Discard the replies that were read: none is awaited."""
        while (data := self._frames.next()) is not None:
            self._discard(parse(pb.StreamReply, data), self._sent + 1)

    def _shut_down(self) -> None:
        self.broken = True
        if self._forks == Forks.count:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _discard(self, reply: pb.StreamReply, expected: int) -> None:
        if reply.id == 0 and reply.WhichOneof("reply") == "error":
            raise wire.error_from_detail(reply.error)
        if reply.id in self._unanswered and reply.id < expected:
            self._unanswered.discard(reply.id)
            self._on_late_reply()
        elif reply.id in self._posted:
            self._posted.discard(reply.id)
        else:
            raise ProtocolError("replies must come in order", expected=f"id {expected}", got=reply.id)

    def _numbered(self, requests: Sequence[pb.StreamRequest]) -> tuple[range, bytes]:
        ids = range(self._sent + 1, self._sent + 1 + len(requests))
        self._sent = ids.stop - 1
        data = b""
        for number, request in zip(ids, requests, strict=True):
            request.id = number
            data += frame(request.SerializeToString())
        return ids, data

    def _next_reply(self, deadline: float) -> pb.StreamReply:
        while (data := self._frames.next()) is None:
            if not self._readable.poll(1e3 * max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            try:
                received = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                continue
            if not received:
                raise ConnectionResetError("end of the stream")
            self._frames.feed(received)
        return parse(pb.StreamReply, data)

    def _wait_until_writable(self, deadline: float) -> None:
        writable = select.poll()
        writable.register(self._socket, select.POLLOUT)
        if not writable.poll(1e3 * max(0.0, deadline - time.monotonic())):
            self._shut_down()  # a part may have been sent
            raise TimeoutError

    def _read_greeting(self, deadline: float) -> None:
        greeting = b""
        while len(greeting) < len(GREETING):
            self._socket.settimeout(_remaining(deadline))
            received = self._socket.recv(len(GREETING) - len(greeting))
            greeting += received
            if not received or not GREETING.startswith(greeting):
                raise ConnectionRefusedError(f"another protocol: {greeting!r}")


def _remaining(deadline: float) -> float:
    """Seconds until the deadline. Raises TimeoutError after it."""
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining
