"""Memory of the bodies of all requests together, from the first byte until a request is admitted or refused.

Bytes count as they arrive, so a client that announces a long body and sends nothing takes no memory from
others. Part of the memory is for short bodies: those that fill the rest do not keep ordinary requests out.
Used in the event loop only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: bytes of all bodies together
MAX_TOTAL_BYTES: Final = 256 << 20
#: bytes of a short body
SHORT_BODY_BYTES: Final = 100 << 10
#: one part of so many is used by short bodies only
_PARTS: Final = 8


class BodyMemory:
    """The bytes of all bodies.

    Args:
        limit: bytes that they have at most.

    Attributes:
        held: bytes that they have now.
    """

    def __init__(self, limit: int = MAX_TOTAL_BYTES) -> None:
        self.limit, self.held = limit, 0

    @contextmanager
    def body(self) -> Iterator[HeldBody]:
        """Hold one more body for the block, however it ends."""
        body = HeldBody(self)
        try:
            yield body
        finally:
            body.drop()


class HeldBody:
    """A body on its way.

    Attributes:
        data: the bytes so far.
        size: number of bytes that count.
    """

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self.data, self.size = bytearray(), 0

    def add(self, part: bytes) -> bool:
        """Append bytes; return False, and append nothing, if there is no memory for them."""
        memory = self._memory
        short = self.size + len(part) <= SHORT_BODY_BYTES
        limit = memory.limit if short else memory.limit - memory.limit // _PARTS
        if memory.held + len(part) > limit:
            return False
        self.data += part
        self.size += len(part)
        memory.held += len(part)
        return True

    def parsed(self) -> None:
        """Free the bytes. They still count: what was parsed from them is as large, until :meth:`drop`."""
        self.data = bytearray()

    def drop(self) -> None:
        """Give the memory back. Idempotent."""
        self._memory.held -= self.size
        self.data, self.size = bytearray(), 0
