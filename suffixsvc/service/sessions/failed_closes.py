"""Live sessions whose close failed because the store could not write their output.

Such a session stays open for a grace period, so that its client can close it again after the store has
recovered. The grace period, the number of these sessions and their total size are bounded: on a full disk,
sessions that cannot end would otherwise use up the session limit until no session can be opened. A session
over a bound is released without its output, and counted as lost.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Final, NamedTuple

from suffixsvc.service.sessions.entries import SessionEntry

__all__ = ["BYTES_PER_TOKEN", "GRACE_SECONDS", "MAX_FAILED_CLOSES", "MAX_FAILED_CLOSE_BYTES", "FailedCloses"]

#: longest time a session stays after its first failed close; shorter where idle sessions expire sooner
GRACE_SECONDS: Final = 60.0
MAX_FAILED_CLOSES: Final = 256
MAX_FAILED_CLOSE_BYTES: Final = 256 << 20
#: estimated memory of one token of a live session
BYTES_PER_TOKEN: Final = 50


class _FailedClose(NamedTuple):
    entry: SessionEntry
    first_failure: float  #: since the session was last used
    last_failure: float
    size_bytes: int

    @property
    def used_since(self) -> bool:
        return self.entry.last_used > self.last_failure


class FailedCloses:
    """The live sessions whose last close failed, in order of their first failure. Thread-safe.

    A session that is stepped after a failed close is an ordinary live session again.

    Args:
        grace_seconds: how long a session may stay after its first failed close.
    """

    def __init__(self, grace_seconds: float) -> None:
        self._grace = grace_seconds
        self._lock = threading.Lock()
        self._by_id: OrderedDict[str, _FailedClose] = OrderedDict()
        self._bytes = 0
        self._lost = 0

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def lost(self) -> int:
        """Number of sessions released without their output."""
        return self._lost

    def record(self, entry: SessionEntry, tokens: int) -> None:
        """Record a failed close of a session of ``tokens`` tokens."""
        now = time.monotonic()
        with self._lock:
            previous = self._remove(entry)
            size = tokens * BYTES_PER_TOKEN
            # A close does not count as a use: a client that retries it would otherwise renew the grace period
            # without end. Order and grace period are those of the first failure since the last use.
            first = previous.first_failure if previous is not None and not previous.used_since else now
            self._by_id[entry.session_id] = _FailedClose(entry, first, now, size)
            self._bytes += size
            if previous is not None:
                self._by_id.move_to_end(entry.session_id, last=first == now)

    def remove(self, entry: SessionEntry, *, lost: bool = False) -> None:
        """Remove a session that has ended: stored, discarded, or ``lost``."""
        with self._lock:
            self._remove(entry)
            self._lost += lost

    def _remove(self, entry: SessionEntry) -> _FailedClose | None:
        failed = self._by_id.get(entry.session_id)
        if failed is None or failed.entry is not entry:
            return None
        self._bytes -= failed.size_bytes
        return self._by_id.pop(entry.session_id)

    def contains(self, entry: SessionEntry) -> bool:
        """Whether the session's last close failed and it has not been used since: it may be released."""
        with self._lock:
            failed = self._by_id.get(entry.session_id)
            return failed is not None and failed.entry is entry and not failed.used_since

    def due(self) -> list[SessionEntry]:
        """The sessions whose grace period is over."""
        before = time.monotonic() - self._grace
        with self._lock:
            self._remove_used()
            return [failed.entry for failed in self._by_id.values() if failed.first_failure <= before]

    def oldest(self) -> list[SessionEntry]:
        """The session to release first when the session limit is reached; empty if there is none."""
        with self._lock:
            self._remove_used()
            return [failed.entry for failed in list(self._by_id.values())[:1]]

    def excess(self) -> list[SessionEntry]:
        """The oldest sessions, as many as are over the limits on number and bytes."""
        with self._lock:
            if len(self._by_id) <= MAX_FAILED_CLOSES and self._bytes <= MAX_FAILED_CLOSE_BYTES:
                return []
            self._remove_used()
            count, size, found = len(self._by_id), self._bytes, []
            for failed in self._by_id.values():
                if count <= MAX_FAILED_CLOSES and size <= MAX_FAILED_CLOSE_BYTES:
                    break
                found.append(failed.entry)
                count, size = count - 1, size - failed.size_bytes
            return found

    def _remove_used(self) -> None:
        for entry in [failed.entry for failed in self._by_id.values() if failed.used_since]:
            self._remove(entry)
