"""gRPC channels of clients to a service or draft worker whose peer credentials were checked.

gRPC connects automatically, when a channel is first used and after every lost connection, and sends queued
data to the process that it reaches. For ``unix:PATH`` a channel is therefore bound to one checked socket
(peer_credentials.py), not to the path: it reaches that listener or none. When the path names another socket,
the next call creates another channel, and the old one is closed when its last call ends.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from suffixsvc.errors import InvalidConfigError, ServiceUnavailableError
from suffixsvc.transport.forks import FORKS
from suffixsvc.transport.peer_credentials import CheckedSocket, ExpectedPeer, socket_path
from suffixsvc.transport.user_tickets import UserTicket

C = TypeVar("C")


@dataclass(eq=False, slots=True)
class SharedChannel(Generic[C]):
    """A reference-counted channel, its socket, and the ticket of this process's user there."""

    channel: C
    socket: CheckedSocket | None
    ticket: UserTicket | None = None
    #: calls that have not ended
    active_calls: int = 0


class Channels(Generic[C]):
    """The channel to one target, created when it is first used. Thread-safe.

    Args:
        target: ``unix:PATH``, whose listener is checked, or ``HOST:PORT``.
        peer: the program that should listen there.
        connect: creates a channel to a gRPC address.
        disconnect: closes a channel and its calls, then calls its second argument.
        closed_at_forks: close the channels before this process forks (forks.py); ``disconnect`` does that in
            any thread.

    Raises:
        InvalidConfigError: ``target`` is not an address.
    """

    def __init__(
        self,
        target: str,
        peer: ExpectedPeer,
        connect: Callable[[str], C],
        disconnect: Callable[[C, Callable[[], None]], None],
        *,
        closed_at_forks: bool = True,
    ) -> None:
        self._target = _checked_target(target, peer)
        self._path = socket_path(target) if CheckedSocket.is_possible(target) else None
        self._peer = peer
        self._connect = connect
        self._disconnect = disconnect
        self._lock = threading.RLock()  # reentrant: a signal handler may call close()
        self._current: SharedChannel[C] | None = None
        #: the current channel, and earlier ones with active calls
        self._open: set[SharedChannel[C]] = set()
        self._closed = False
        self._closed_at_forks = closed_at_forks
        #: threads of the blocks of call() that have not ended
        self._callers: list[int] = []
        if closed_at_forks:
            FORKS.add(self)

    @property
    def calls(self) -> int:
        """Blocks of :meth:`call` that have not ended."""
        with self._lock:  # an acquisition that a fork did not stop is counted
            return len(self._callers)

    @contextlib.contextmanager
    def use(self) -> Iterator[SharedChannel[C]]:
        """Acquire a channel for the block. Raises as :meth:`acquire`."""
        with self.call():
            held = self.acquire()
            try:
                yield held
            finally:
                self.release(held)

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """A call over a channel that was, or will be, acquired: a fork waits for its end."""
        caller = threading.get_ident()
        with self._between_forks():
            self._callers.append(caller)
        try:
            yield
        finally:
            with self._lock:
                self._callers.remove(caller)

    def acquire(self) -> SharedChannel[C]:
        """Return a channel to the process that listens now, to be passed to :meth:`release`.

        Raises:
            AbsentPeerError: no process listens.
            ServiceUnavailableError: its user is not trusted, or :meth:`close` was called.
        """
        with self._between_forks():
            self._require_open()
            held = self._current
            if held is None or (
                self._path is not None and held.socket is not None and not held.socket.is_at(self._path)
            ):
                made = self._make()
                unused, self._current = self._current, made
                self._open.add(made)
                if self._closed:  # by a signal handler, which may have missed this channel
                    self._current = None
                    self._close_unused(made)
                    self._require_open()
                if unused is not None:
                    self._close_unused(unused)
                held = made
            held.active_calls += 1
            return held

    @contextlib.contextmanager
    def _between_forks(self) -> Iterator[None]:
        """Hold the lock while no other thread forks.

        A thread within a call does not wait: the fork waits for the call.
        """
        waits = self._closed_at_forks and threading.get_ident() not in self._callers
        while True:
            if waits:
                FORKS.wait()
            with self._lock:
                if not (waits and FORKS.in_progress):
                    yield
                    return

    def release(self, held: SharedChannel[C]) -> None:
        """Release a channel after a call; an outdated one is closed with its last call."""
        with self._lock:
            held.active_calls -= 1
            self._close_unused(held)

    def close(self) -> None:
        """Close all channels and their calls. Idempotent."""
        with self._lock:
            self._closed = True
        self.disconnect()

    def disconnect(self) -> list[SharedChannel[C]]:
        """Close all channels and their calls, and return them; the next call makes another channel."""
        with self._lock:
            self._current = None
            channels, self._open = self._open, set()
        for held in channels:
            self._end(held)
        return list(channels)

    def _require_open(self) -> None:
        if self._closed:
            raise ServiceUnavailableError("the client is closed", remedy="Make a new client.")

    def _make(self) -> SharedChannel[C]:
        if self._closed_at_forks:
            FORKS.add(self)  # in a child again
        if self._path is None:
            return SharedChannel(self._connect(self._target), None)
        checked = CheckedSocket(self._path, self._peer)
        try:
            ticket = UserTicket(checked, self._path, self._peer)
            return SharedChannel(self._connect(f"unix:{checked.address}"), checked, ticket)
        except BaseException:
            checked.close()
            raise

    def _close_unused(self, held: SharedChannel[C]) -> None:
        if held.active_calls == 0 and held is not self._current and held in self._open:
            self._open.remove(held)
            self._end(held)

    def _end(self, held: SharedChannel[C]) -> None:
        # gRPC may connect until the channel is closed: only then may the descriptor in the address be reused
        self._disconnect(held.channel, (lambda: None) if held.socket is None else held.socket.close)


class _Closeable(Protocol):
    def close(self) -> object: ...


def close_channel(channel: _Closeable, done: Callable[[], None]) -> None:
    """Close a channel without calls in progress: the ``disconnect`` of synchronous channels."""
    channel.close()
    done()


def _checked_target(target: str, peer: ExpectedPeer) -> str:
    text = target if isinstance(target, str) else ""
    host, _, port = text.rpartition(":")
    unix = text.startswith("unix:") and len(text) > len("unix:")
    number = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536
    # an IPv6 address, which alone has colons, stands in brackets
    single = re.fullmatch(r"\[[^\s/\[\]]+\]|[^\s/\[\]:]+", host)
    if not (unix or (single and number)):
        raise InvalidConfigError(
            f"the address of {peer.name} must be unix:PATH or HOST:PORT",
            got=repr(target)[:200],
            remedy="Leave out what stands before HOST." if "://" in text else None,
        )
    return target
