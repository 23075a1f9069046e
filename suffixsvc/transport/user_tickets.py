"""User tickets: how a process proves its user at a unix socket that other users can open.

gRPC for Python does not report the user of a connection. A server whose socket PATH other users can open
therefore listens at PATH.identity as well. There it sends each connection one message and closes it; it reads
nothing. The kernel reports the user of the connecting process (SO_PEERCRED), and the message has a ticket for
that user, which is a bearer token of calls to PATH for some minutes. The message is little-endian:

    offset  bytes
    0       4      "SFXU"
    4       1      version: 1
    5       1      status: 0 a ticket, 1 no principal has this user
    6       2      length of the ticket
    8       4      user id, as the server sees it
    12      4      seconds for which the server accepts the ticket
    16             the ticket, ASCII
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Final

from suffixsvc.errors import ProtocolError, UnauthenticatedError, UnsupportedVersionError
from suffixsvc.transport.peer_credentials import (
    AbsentPeerError,
    CheckedSocket,
    ExpectedPeer,
    require_trusted_peer,
)

MAGIC: Final = b"SFXU"
VERSION: Final = 1
#: bytes of a message
MAX_MESSAGE_BYTES: Final = 512
_HEADER: Final = struct.Struct("<4sBBHII")
_TICKET, _NO_PRINCIPAL = 0, 1
#: time for the server to answer
_FETCH_SECONDS: Final = 1.0
#: pause between attempts to connect while the queue of the listener is full
_BUSY_SECONDS: Final = 0.005
#: part of a ticket's lifetime after which the next one is fetched
_RENEWED_AFTER: Final = 0.5


def identity_path(path: str) -> str:
    """Path of the identity socket that belongs to a socket."""
    return f"{path}.identity"


@dataclass(frozen=True, slots=True)
class TicketMessage:
    """What an identity socket sends.

    Attributes:
        uid: the user of the connection.
        ticket: None: no principal has this user.
        lifetime_s: whole seconds for which the ticket is accepted.
    """

    uid: int
    ticket: str | None = field(repr=False)
    lifetime_s: int = 0

    def encode(self) -> bytes:
        """The bytes of the message."""
        text = b"" if self.ticket is None else self.ticket.encode("ascii")
        status = _NO_PRINCIPAL if self.ticket is None else _TICKET
        return _HEADER.pack(MAGIC, VERSION, status, len(text), self.uid, self.lifetime_s) + text

    @staticmethod
    def decode(data: bytes) -> TicketMessage:
        """Parse a message.

        Raises:
            ProtocolError: it is malformed.
            UnsupportedVersionError: it is of a later version.
        """
        if len(data) < _HEADER.size or data[:4] != MAGIC:
            raise ProtocolError(
                "the message of an identity socket cannot be parsed",
                expected=f"{MAGIC!r} and {_HEADER.size - len(MAGIC)} or more bytes",
                got=f"{len(data)} bytes",
            )
        _, version, status, length, uid, lifetime_s = _HEADER.unpack_from(data)
        if version != VERSION:
            raise UnsupportedVersionError(
                "the message of an identity socket must have a known version",
                expected=VERSION,
                got=version,
                remedy="Upgrade this client.",
            )
        text = data[_HEADER.size :]
        valid = text.isascii() and len(text) == length and (length > 0) == (status == _TICKET)
        if not valid or status not in (_TICKET, _NO_PRINCIPAL):
            raise ProtocolError(
                "the message of an identity socket cannot be parsed",
                expected="a ticket of the given length with status 0, or none with status 1",
                got=f"status {status}, {len(text)} of {length} bytes",
            )
        return TicketMessage(uid, text.decode("ascii") if status == _TICKET else None, lifetime_s)


class UserTicket:
    """The ticket of this process's user at one listener, fetched when it is first needed. Thread-safe.

    Args:
        listener: the socket that the ticket is presented to. If only its owner can open it, none is needed.
        path: of that socket.
        peer: the program that should listen at the identity socket.
    """

    def __init__(self, listener: CheckedSocket, path: str, peer: ExpectedPeer) -> None:
        self._listener = listener
        self._path = identity_path(path)
        self._peer = peer
        self._lock = threading.Lock()
        self._ticket: str | None = None
        self._renew_at = self._expires_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether :meth:`current` would fetch a ticket."""
        return not self._is_fresh() and not self._listener.is_owner_only()

    def current(self, timeout_s: float = _FETCH_SECONDS) -> str | None:
        """A ticket that is valid now; None: the listener needs none.

        Args:
            timeout_s: time for the server to answer, at most a second.

        Raises:
            UnauthenticatedError: no principal has this user.
            ServiceUnavailableError: the server does not answer, or its user is not trusted.
            ProtocolError, UnsupportedVersionError: its answer cannot be parsed.
        """
        if self._is_fresh():
            return self._ticket
        if self._listener.is_owner_only():
            return None
        with self._lock:
            if not self._is_fresh():
                self._renew(min(timeout_s, _FETCH_SECONDS))
            return self._ticket

    def refused(self, ticket: str | None) -> bool:
        """Forget a ticket that the server refused. Returns whether another one may be accepted."""
        if ticket is None:
            return False
        with self._lock:
            if ticket == self._ticket:
                self._ticket = None
        return True

    def _is_fresh(self) -> bool:
        return self._ticket is not None and time.monotonic() < self._renew_at

    def _renew(self, timeout_s: float) -> None:
        began = time.monotonic()
        try:
            found = fetch_ticket(self._path, self._peer, timeout_s)
        except AbsentPeerError:
            if self._ticket is None or began >= self._expires_at:
                raise
            self._renew_at = min(began + _FETCH_SECONDS, self._expires_at)  # the ticket is still valid
            return
        if found is None:
            self._ticket = None
            return
        if found.ticket is None:
            self._ticket = None
            raise UnauthenticatedError(
                f"a principal must have the user id {found.uid}, for calls without a token",
                got="none",
                remedy=f'An operator can name one: [principals."NAME"] uids = [{found.uid}]. Or set '
                "SUFFIXSVC_TOKEN_FILE.",
            )
        self._ticket = found.ticket
        self._expires_at = began + found.lifetime_s
        self._renew_at = began + found.lifetime_s * _RENEWED_AFTER


def fetch_ticket(path: str, peer: ExpectedPeer, timeout_s: float) -> TicketMessage | None:
    """Fetch a ticket for this process's user.

    Args:
        path: of the identity socket.
        peer: the program that should listen there. Nothing is sent to it.
        timeout_s: time for its answer.

    Returns:
        The message; None: there is no such socket.

    Raises:
        AbsentPeerError: no process listens, or it does not answer in time.
        ServiceUnavailableError: the listener belongs to another user.
        ProtocolError, UnsupportedVersionError: its message cannot be parsed.
    """
    deadline = time.monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            _connect(connection, path, deadline)
            require_trusted_peer(connection, path, peer)
            data = b""
            while len(data) <= MAX_MESSAGE_BYTES:
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                part = connection.recv(MAX_MESSAGE_BYTES + 1 - len(data))
                if not part:
                    break
                data += part
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AbsentPeerError(
            f"{peer.name} must answer at its identity socket {path}",
            expected=f"a ticket within {timeout_s:.3g} s",
            got=error,
            remedy=peer.start,
        ) from None
    return TicketMessage.decode(data)


def _connect(connection: socket.socket, path: str, deadline: float) -> None:
    """Connect; while the listener's queue is full, try again until the deadline."""
    connection.setblocking(False)  # a unix socket connects at once or not at all
    while True:
        try:
            connection.connect(path)
        except BlockingIOError:
            if time.monotonic() + _BUSY_SECONDS >= deadline:
                raise
            time.sleep(_BUSY_SECONDS)
        else:
            return
