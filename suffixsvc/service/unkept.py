"""Sessions whose close failed because the store could not take their output.

They stay open for a while, so that their client can close them again when the store has recovered. How long,
how many and how large they may be together is bounded: a full disk would otherwise fill the service with
sessions that cannot end, until none can be opened. One beyond is released without its output, and counted.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Final

from suffixsvc.service.entries import Entry

__all__ = ["BYTES_A_TOKEN", "GRACE_SECONDS", "MAX_UNKEPT_BYTES", "MAX_UNKEPT_SESSIONS", "UnkeptSessions"]

#: how long after its first failed close a session stays, at most; shorter where idle sessions expire sooner
GRACE_SECONDS: Final = 60.0
MAX_UNKEPT_SESSIONS: Final = 256
MAX_UNKEPT_BYTES: Final = 256 << 20
#: what a token of a live session takes in memory
BYTES_A_TOKEN: Final = 50


class UnkeptSessions:
    """The live sessions whose last close failed, the first that failed first. Thread-safe.

    Args:
        grace_seconds: how long after its first failed close a session may stay.
    """

    def __init__(self, grace_seconds: float) -> None:
        self._grace = grace_seconds
        self._lock = threading.Lock()
        #: by session id: the entry, when its close failed first and last, its bytes
        self._held: OrderedDict[str, tuple[Entry, float, float, int]] = OrderedDict()
        self._bytes = 0
        self._lost = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def lost(self) -> int:
        """Sessions released without their output."""
        return self._lost

    def note(self, entry: Entry, tokens: int) -> None:
        """A close of this session has just failed."""
        now = time.monotonic()
        with self._lock:
            before = self._forget(entry)
            size = tokens * BYTES_A_TOKEN
            # Its place in the order, and its grace, are those of the first failure since it was last used; a
            # close is no use, or a client that repeats it would renew the grace for ever.
            first = before[1] if before is not None and not _used_since(entry, before[2]) else now
            self._held[entry.session_id] = entry, first, now, size
            self._bytes += size
            if before is not None:
                self._held.move_to_end(entry.session_id, last=first == now)

    def forget(self, entry: Entry, *, lost: bool = False) -> None:
        """The session has ended: kept, discarded or ``lost``."""
        with self._lock:
            self._forget(entry)
            self._lost += lost

    def _forget(self, entry: Entry) -> tuple[Entry, float, float, int] | None:
        held = self._held.get(entry.session_id)
        if held is None or held[0] is not entry:
            return None
        self._bytes -= held[3]
        return self._held.pop(entry.session_id)

    def is_unkept(self, entry: Entry) -> bool:
        """Its last close failed and it was not used since: it may be released."""
        with self._lock:
            held = self._held.get(entry.session_id)
            return held is not None and held[0] is entry and not _used_since(entry, held[2])

    def due(self) -> list[Entry]:
        """Those whose grace is over."""
        before = time.monotonic() - self._grace
        with self._lock:
            self._drop_used()
            return [entry for entry, first, _, _ in self._held.values() if first <= before]

    def oldest(self) -> list[Entry]:
        """The one to go first where a place is needed, or none."""
        with self._lock:
            self._drop_used()
            return [held[0] for held in list(self._held.values())[:1]]

    def surplus(self) -> list[Entry]:
        """Those beyond the number and the bytes that there may be."""
        with self._lock:
            if len(self._held) <= MAX_UNKEPT_SESSIONS and self._bytes <= MAX_UNKEPT_BYTES:
                return []
            self._drop_used()
            count, size, found = len(self._held), self._bytes, []
            for entry, _, _, bytes_ in self._held.values():
                if count <= MAX_UNKEPT_SESSIONS and size <= MAX_UNKEPT_BYTES:
                    break
                found.append(entry)
                count, size = count - 1, size - bytes_
            return found

    def _drop_used(self) -> None:
        """A session that was stepped since is alive like any other."""
        for entry in [held[0] for held in self._held.values() if _used_since(held[0], held[2])]:
            self._forget(entry)


def _used_since(entry: Entry, then: float) -> bool:
    return entry.touched > then
