"""One thread's connection to a direct socket: frames out, frames in, answers to their questions.

A decode step waits for what happens here, and behind tens of milliseconds of the target's work everything is
cold: what is not needed is not done, system calls above all.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from suffixsvc import wire
from suffixsvc.errors import ProtocolError, SuffixError
from suffixsvc.frames import GREETING, FrameBuffer, frame
from suffixsvc.peers import ExpectedPeer, require_trusted_peer
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client.forks import Forks
from suffixsvc_client.transport import parse

__all__ = ["Connection", "HungUpError"]

_READ_BYTES: Final = 1 << 16
#: messages that are sent before their answers are read: more could fill both sides' sockets, and each would
#: wait for the other to read
_WINDOW: Final = 16
#: what is posted without waiting has to find room in the socket's buffer
_POSTED_BYTES: Final = 1 << 16
_MOST_REPLY_BYTES: Final = 1 << 26
#: read at once of what nobody waits for; a service that says more than that is none
_MOST_UNASKED_BYTES: Final = 1 << 24


class HungUpError(ConnectionError):
    """The service that was there is gone, and took nothing of what was to be sent."""


class Connection:
    """One thread's. After anything but a reply that is late it is of no use any more.

    Args:
        late: told of each reply that came after its step had given up.
        peer: which program should listen there.

    Raises:
        ServiceUnavailableError: the socket is another user's.
        TimeoutError: not greeted in time.
        OSError: there is no service of this kind.
    """

    def __init__(self, path: str, deadline: float, late: Callable[[], None], peer: ExpectedPeer) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        #: held while something is sent or waited for
        self._in_use = threading.Lock()
        self._forks = Forks.count
        self._late = late
        self._sent = 0
        self._given_up: set[int] = set()
        self._frames = FrameBuffer(_MOST_REPLY_BYTES)
        self._owed: set[int] = set()  # answers to what was posted
        self.broken = False
        self._readable = select.poll()
        try:
            self._socket.settimeout(_left(deadline))
            self._socket.connect(path)
            require_trusted_peer(self._socket, path, peer)
            self._be_greeted(deadline)
            self._socket.setblocking(False)
            self._readable.register(self._socket, select.POLLIN)
        except BaseException:
            self._socket.close()
            raise

    @property
    def usable(self) -> bool:
        """A forked process leaves its parent's connection alone: both would read each other's answers."""
        return not self.broken and self._forks == Forks.count

    @property
    def quiet(self) -> bool:
        """Whether nothing is on its way here that nobody waits for any more."""
        return not self._owed and not self._given_up

    def exchange(self, requests: Sequence[pb.StreamRequest], deadline: float) -> list[pb.StreamReply]:
        """Send, and wait for a reply to each.

        Raises:
            HungUpError: nothing was sent; another connection may do.
            TimeoutError: the connection stays of use.
            OSError, SuffixError: it does not.
        """
        if not self._in_use.acquire(timeout=_left(deadline)):  # another thread catches up here
            raise TimeoutError
        try:
            replies: list[pb.StreamReply] = []
            for at in range(0, len(requests), _WINDOW):
                ids = self._send(requests[at : at + _WINDOW], deadline, first=at == 0)
                for expected in ids:
                    replies.append(self._receive(expected, deadline))
            return replies
        finally:
            self._in_use.release()

    def post(self, requests: Sequence[pb.StreamRequest]) -> bool:
        """Send without waiting; False where that cannot be."""
        if not self._in_use.acquire(blocking=False):
            return False
        try:
            return self._take_in() and self._say(requests)
        except (OSError, SuffixError):
            self._hang_up()
            return False
        except BaseException:  # part of it may have gone out
            self._hang_up()
            raise
        finally:
            self._in_use.release()

    def take_in(self) -> bool:
        """Read what came meanwhile, lest it fills the socket. False where the service has hung up."""
        if not self._in_use.acquire(blocking=False):
            return True  # another thread reads
        try:
            return self._take_in()
        finally:
            self._in_use.release()

    def settled(self) -> bool:
        """Whether everything posted here is answered, as far as that can be seen without waiting. From any
        thread."""
        if not self._in_use.acquire(blocking=False):
            return False
        try:
            if self.usable and self._owed and self._take_in():
                self._drop_all()
        except SuffixError:
            self._hang_up()
        finally:
            self._in_use.release()
        return not self.usable or not self._owed

    def catch_up(self, deadline: float) -> None:
        """Wait until everything posted here is answered. From any thread."""
        if not self._in_use.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return
        try:
            while self._owed:
                self._drop(self._next_reply(deadline), self._sent + 1)
                _left(deadline)
        except TimeoutError:
            return
        except (OSError, SuffixError):
            self._hang_up()
        except BaseException:
            self._hang_up()
            raise
        finally:
            self._in_use.release()

    def close(self) -> None:
        """From any thread, also in a signal's handler; whoever waits for an answer is told. Idempotent."""
        if self._forks != Forks.count:
            return  # the parent's
        self._hang_up()
        # Not under somebody who still reads: the number could be another file's by then. Who reads lets go.
        if self._in_use.acquire(blocking=False):
            self._socket.close()
            self._in_use.release()

    def __del__(self) -> None:
        self._socket.close()

    def _send(self, requests: Sequence[pb.StreamRequest], deadline: float, *, first: bool) -> range:
        """The numbers that the requests went out under."""
        ids, data = self._numbered(requests)
        try:
            sent = 0
            while True:
                with suppress(BlockingIOError):
                    sent += self._socket.send(data[sent:] if sent else data)
                if sent == len(data):
                    break
                self._wait_for_room(deadline)
        except (BrokenPipeError, ConnectionResetError) as error:
            self._hang_up()
            raise HungUpError(str(error)) if first and not sent else error from None
        except BaseException:  # part of it may have gone out
            self._hang_up()
            raise
        self._given_up.update(ids)
        return ids

    def _say(self, requests: Sequence[pb.StreamRequest]) -> bool:
        """What nobody waits for an answer to; False where nothing went out."""
        self._drop_all()
        ids, data = self._numbered(requests)
        if len(data) > _POSTED_BYTES:
            return False
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            return False
        if sent != len(data):
            raise ConnectionError("only a part went out")
        self._owed.update(ids)
        return True

    def _receive(self, expected: int, deadline: float) -> pb.StreamReply:
        """The answer of this number, those before it dropped."""
        try:
            while True:
                reply = self._next_reply(deadline)
                if reply.id == expected:
                    self._given_up.discard(expected)
                    return reply
                self._drop(reply, expected)
                _left(deadline)  # old answers without end are no answer
        except TimeoutError:
            raise
        except BaseException:
            self._hang_up()
            raise

    def _take_in(self) -> bool:
        room = _MOST_UNASKED_BYTES
        try:
            while room > 0 and (received := self._socket.recv(_READ_BYTES)):
                self._frames.feed(received)
                room -= len(received)
        except BlockingIOError:
            return True
        except OSError:
            pass
        except BaseException:  # what was read last may be lost
            self._hang_up()
            raise
        self._hang_up()
        return False

    def _drop_all(self) -> None:
        """What was read is nobody's answer."""
        while (data := self._frames.next()) is not None:
            self._drop(parse(pb.StreamReply, data), self._sent + 1)

    def _hang_up(self) -> None:
        self.broken = True
        if self._forks == Forks.count:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _drop(self, reply: pb.StreamReply, expected: int) -> None:
        if reply.id == 0 and reply.WhichOneof("reply") == "error":
            raise wire.error_from_detail(reply.error)
        if reply.id in self._given_up and reply.id < expected:
            self._given_up.discard(reply.id)
            self._late()
        elif reply.id in self._owed:
            self._owed.discard(reply.id)
        else:
            raise ProtocolError("answers come out of order", expected=f"id {expected}", got=reply.id)

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
            if not self._readable.poll(1e3 * _left(deadline)):
                raise TimeoutError
            try:
                received = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                continue
            if not received:
                raise ConnectionResetError("end of the stream")
            self._frames.feed(received)
        return parse(pb.StreamReply, data)

    def _wait_for_room(self, deadline: float) -> None:
        writable = select.poll()
        writable.register(self._socket, select.POLLOUT)
        if not writable.poll(1e3 * _left(deadline)):
            raise TimeoutError

    def _be_greeted(self, deadline: float) -> None:
        heard = b""
        while len(heard) < len(GREETING):
            self._socket.settimeout(_left(deadline))
            received = self._socket.recv(len(GREETING) - len(heard))
            heard += received
            if not received or not GREETING.startswith(heard):
                raise ConnectionRefusedError(f"no direct stream: {heard!r}")


def _left(deadline: float) -> float:
    """Seconds; TimeoutError where none are left."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
