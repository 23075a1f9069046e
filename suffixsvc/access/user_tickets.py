"""User tickets of a server: issued to a user, accepted for some minutes, and stored nowhere.

A ticket is ``sfu_`` and base64url of the user id, the time at which it expires, and their HMAC-SHA256 with a
key that the server draws when it starts. So tickets end with the server, take no memory, and need no bound.
The principal of a user is looked up in each call, so a policy without the user ends its tickets.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import struct
import time
from collections.abc import Callable
from typing import Final

TICKET_PREFIX: Final = "sfu_"
#: whole seconds for which a ticket is accepted
LIFETIME_SECONDS: Final = 600
_KEY_BYTES: Final = 32
#: user id, milliseconds of the server's monotonic clock
_CLAIM: Final = struct.Struct("<IQ")
_MAC_BYTES: Final = 32
_CHARACTERS: Final = len(TICKET_PREFIX) + -(-(_CLAIM.size + _MAC_BYTES) * 4 // 3)


class UserTickets:
    """Issues tickets, and verifies those that are presented. Thread-safe.

    Args:
        clock: seconds, monotonic.
        lifetime_s: whole seconds for which a ticket is accepted; None: LIFETIME_SECONDS.

    Attributes:
        lifetime_s: the same.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, lifetime_s: int | None = None) -> None:
        self._clock = clock
        self.lifetime_s = LIFETIME_SECONDS if lifetime_s is None else lifetime_s
        self._key = secrets.token_bytes(_KEY_BYTES)

    def issue(self, uid: int) -> str:
        """A ticket for a user."""
        claim = _CLAIM.pack(uid, self._now_ms() + self.lifetime_s * 1000)
        return TICKET_PREFIX + base64.urlsafe_b64encode(claim + self._mac(claim)).decode("ascii").rstrip("=")

    def user_of(self, ticket: str) -> int | None:
        """The user of a ticket; None: it was not issued here, was altered, or has expired."""
        if len(ticket) != _CHARACTERS or not ticket.startswith(TICKET_PREFIX):
            return None
        text = ticket.removeprefix(TICKET_PREFIX)
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        claim, mac = data[: _CLAIM.size], data[_CLAIM.size :]
        if not hmac.compare_digest(mac, self._mac(claim)):
            return None
        uid, expires_ms = _CLAIM.unpack(claim)
        return int(uid) if self._now_ms() < expires_ms else None

    def _mac(self, claim: bytes) -> bytes:
        return hmac.digest(self._key, claim, "sha256")

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
