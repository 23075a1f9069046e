"""Messages on a byte stream, each behind its length: what the direct socket carries (docs/protocol.md).

server: GREETING, once
both:   u32 little endian n, n bytes of a message; and so on
"""

from __future__ import annotations

import struct
from typing import Final

from suffixsvc.errors import LimitExceededError

__all__ = ["DIRECT_SUFFIX", "GREETING", "FrameBuffer", "frame"]

#: a service at unix:PATH listens for direct streams at PATH and this
DIRECT_SUFFIX: Final = ".direct"
#: the first bytes a server sends; another protocol or another version says something else
GREETING: Final = b"suffixsvc direct 1\n"

_LENGTH: Final = struct.Struct("<I")


def frame(message: bytes) -> bytes:
    """A message behind its length."""
    return _LENGTH.pack(len(message)) + message


class FrameBuffer:
    """Bytes as they come in, messages as they are complete.

    Args:
        most: bytes of a message.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def next(self) -> bytes | None:
        """The next message; None while it is not complete.

        Raises:
            LimitExceededError: it is longer than allowed. What follows cannot be read any more.
        """
        held = self._bytes
        if len(held) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(held)
        if length > self._most:
            raise LimitExceededError(
                "a message is too long", expected=f"at most {self._most} bytes", got=f"{length} bytes"
            )
        end = _LENGTH.size + length
        if len(held) < end:
            return None
        message = bytes(held[_LENGTH.size : end])
        del held[:end]
        return message
