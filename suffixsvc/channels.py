"""The gRPC channel of a client, of the service or of a draft worker, to a listener that was checked.

gRPC connects by itself, when a channel is first used and after every loss of its connection, and sends what
is queued to the process that it finds. At ``unix:PATH`` a channel is therefore made for one checked socket
(peers.py), not for the path: it reaches that listener or none. Where the path names another socket, the next
call makes another channel; the one before is closed when its last call has ended.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from suffixsvc.errors import InvalidConfigError, ServiceUnavailableError
from suffixsvc.peers import CheckedSocket, ExpectedPeer, socket_path

__all__ = ["Channels", "HeldChannel", "close_channel"]

C = TypeVar("C")


@dataclass(eq=False, slots=True)
class HeldChannel(Generic[C]):
    """A channel in use by calls, its socket, and what else was made for it."""

    channel: C
    socket: CheckedSocket | None
    #: by method
    calls: dict[str, Any] = field(default_factory=dict)
    #: calls that have not ended
    users: int = 0


class Channels(Generic[C]):
    """The channel to one target, made when it is first used. Thread-safe.

    Args:
        target: as of a client; only the listener of ``unix:PATH`` is checked.
        peer: which program should listen there.
        connect: makes a channel to an address of gRPC's.
        disconnect: ends a channel and its calls, then calls its second argument.

    Raises:
        InvalidConfigError: not an address.
    """

    def __init__(
        self,
        target: str,
        peer: ExpectedPeer,
        connect: Callable[[str], C],
        disconnect: Callable[[C, Callable[[], None]], None],
    ) -> None:
        self._target = _checked_target(target, peer)
        self._path = socket_path(target) if CheckedSocket.is_possible(target) else None
        self._peer = peer
        self._connect = connect
        self._disconnect = disconnect
        self._lock = threading.RLock()  # a signal's handler may close while its thread holds it
        self._current: HeldChannel[C] | None = None
        #: the current one, and those before it that have calls
        self._open: set[HeldChannel[C]] = set()
        self._closed = False

    @contextlib.contextmanager
    def use(self) -> Iterator[HeldChannel[C]]:
        """A channel for as long as the block takes. Raises as :meth:`take`."""
        held = self.take()
        try:
            yield held
        finally:
            self.give_back(held)

    def take(self) -> HeldChannel[C]:
        """A channel to the process that listens now, until :meth:`give_back`.

        Raises:
            AbsentPeerError: no process listens.
            ServiceUnavailableError: it is not a trusted user's, or this is closed.
        """
        with self._lock:
            self._require_open()
            held = self._current
            if held is None or (
                self._path is not None and held.socket is not None and not held.socket.is_at(self._path)
            ):
                made = self._make()
                unused, self._current = self._current, made
                self._open.add(made)
                if self._closed:  # by a signal's handler, which may not have found this one
                    self._current = None
                    self._close_unused(made)
                    self._require_open()
                if unused is not None:
                    self._close_unused(unused)
                held = made
            held.users += 1
            return held

    def give_back(self, held: HeldChannel[C]) -> None:
        """A call of this channel has ended."""
        with self._lock:
            held.users -= 1
            self._close_unused(held)

    def close(self) -> None:
        """End all channels and their calls. Idempotent."""
        with self._lock:
            self._closed = True
            self._current = None
            channels, self._open = self._open, set()
        for held in channels:
            self._end(held)

    def _require_open(self) -> None:
        if self._closed:
            raise ServiceUnavailableError("the client is closed", remedy="Make a new client.")

    def _make(self) -> HeldChannel[C]:
        if self._path is None:
            return HeldChannel(self._connect(self._target), None)
        checked = CheckedSocket(self._path, self._peer)
        try:
            return HeldChannel(self._connect(f"unix:{checked.address}"), checked)
        except BaseException:
            checked.close()
            raise

    def _close_unused(self, held: HeldChannel[C]) -> None:
        if held.users == 0 and held is not self._current and held in self._open:
            self._open.remove(held)
            self._end(held)

    def _end(self, held: HeldChannel[C]) -> None:
        # gRPC may connect as long as the channel is there: the address must not become another file's before
        self._disconnect(held.channel, _nothing if held.socket is None else held.socket.close)


class _Closeable(Protocol):
    def close(self) -> object: ...


def close_channel(channel: _Closeable, done: Callable[[], None]) -> None:
    """The ``disconnect`` of channels that close at once."""
    channel.close()
    done()


def _checked_target(target: str, peer: ExpectedPeer) -> str:
    text = target if isinstance(target, str) else ""
    host, _, port = text.rpartition(":")
    unix = text.startswith("unix:") and len(text) > len("unix:")
    number = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536
    if not (unix or (host and "/" not in host and number)):
        raise InvalidConfigError(
            f"the address of {peer.name} must be unix:PATH or HOST:PORT",
            got=repr(target)[:200],
            remedy="Leave out what stands before HOST." if "://" in text else None,
        )
    return target


def _nothing() -> None:
    """There is no socket to close."""
