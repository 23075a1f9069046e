"""Length-prefixed messages of the direct socket (docs/protocol.md).

server: GREETING, once
both:   u32 little endian n, n bytes of a message; repeated
"""

from __future__ import annotations

import struct
from typing import Final

from suffixsvc.errors import LimitExceededError

#: a service at unix:PATH listens for direct streams at PATH + this suffix
DIRECT_SUFFIX: Final = ".direct"
#: the first bytes that a server sends; they identify protocol and version
GREETING: Final = b"suffixsvc direct 1\n"

_LENGTH: Final = struct.Struct("<I")


def frame(message: bytes) -> bytes:
    """Return a message prefixed with its length."""
    return _LENGTH.pack(len(message)) + message


class FrameBuffer:
    """Reassembles messages from received bytes.

    Args:
        max_bytes: longest message that is accepted.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        self._bytes += data

    def next(self) -> bytes | None:
        """Remove and return the next message; None while it is incomplete.

        Raises:
            LimitExceededError: it is too long. The stream cannot be read any further.
        """
        received = self._bytes
        if len(received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(received)
        if length > self._max_bytes:
            raise LimitExceededError(
                f"a message must have at most {self._max_bytes} bytes", got=f"{length} bytes"
            )
        end = _LENGTH.size + length
        if len(received) < end:
            return None
        message = bytes(received[_LENGTH.size : end])
        del received[:end]
        return message
