"""Memory of the bodies of all requests together, from the first byte until a request is admitted or refused.

Bytes count as they arrive, so a client that announces a long body and sends nothing takes no memory from
others. Part of the memory is for short bodies: those that fill the rest do not keep ordinary requests out.
Of several principals the bodies of each take at most as much as they leave, so that it cannot keep others
out; its short bodies are counted apart. Its only body may take more: else the largest would never find room.
Used in the event loop only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
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
        principals: returns the number of principals; a single one may take all.

    Attributes:
        held: bytes that they have now.
        shares: these bytes by principal, and by whether they are of short bodies.
        parsing: held while a long body is parsed. The interpreter runs nothing else meanwhile, so that the
            event loop would wait for all that are parsed at the same time.
    """

    def __init__(self, limit: int = MAX_TOTAL_BYTES, principals: Callable[[], int] = lambda: 2) -> None:
        self.limit, self.held = limit, 0
        self._principals = principals
        self.shares: Counter[tuple[str, bool]] = Counter()
        self.parsing = asyncio.Lock()

    @property
    def shared(self) -> bool:
        """Whether there are several principals."""
        return self._principals() > 1

    @contextmanager
    def body(self, principal: str) -> Iterator[HeldBody]:
        """Hold one more body of a principal for the block, however it ends."""
        body = HeldBody(self, principal)
        try:
            yield body
        finally:
            body.drop()


class HeldBody:
    """A body on its way.

    Attributes:
        data: the bytes so far.
        size: number of bytes that count.
        parsing: see :class:`BodyMemory`.
    """

    def __init__(self, memory: BodyMemory, principal: str) -> None:
        self._memory, self._principal, self.parsing = memory, principal, memory.parsing
        self.data, self.size, self._short = bytearray(), 0, True
        self._received = 0  # bytes, by which the body is short or long

    def add(self, part: bytes) -> bool:
        """Append bytes; return False, and append nothing, if there is no memory for them."""
        if not self._take(len(part), short=self._received + len(part) <= SHORT_BODY_BYTES):
            return False
        self.data += part
        self._received += len(part)
        return True

    def add_parsed(self, size: int) -> bool:
        """Count what the body is parsed to, besides its bytes; return False if there is no memory for it."""
        return self._take(size, short=self._received <= SHORT_BODY_BYTES)

    def add_stored(self, size: int) -> bool:
        """Count bytes that are read from stored responses; return False if there is no memory for them."""
        return not size or self._take(size, short=self._received + size <= SHORT_BODY_BYTES)

    def parsed(self) -> None:
        """Free the bytes. They still count, as texts that were parsed from them, until :meth:`drop`."""
        self.data = bytearray()

    def _take(self, size: int, *, short: bool) -> bool:
        memory = self._memory
        limit = memory.limit if short else memory.limit - memory.limit // _PARTS
        left = limit - memory.held
        # a long body is weighed with all of its principal, a short one with the short ones
        own = sum(memory.shares[self._principal, kind] for kind in {True, short})
        if size > left or (memory.shared and own > self.size and own + size > left):
            return False
        size += self.size
        self._count(-self.size)
        self._short = short
        self._count(size)
        return True

    def _count(self, size: int) -> None:
        memory = self._memory
        self.size += size
        memory.held += size
        share = self._principal, self._short
        memory.shares[share] += size
        if not memory.shares[share]:
            del memory.shares[share]

    def drop(self) -> None:
        """Give the memory back. Idempotent."""
        self._count(-self.size)
        self.data = bytearray()
