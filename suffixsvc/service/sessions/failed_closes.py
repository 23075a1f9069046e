"""Live sessions whose close failed because the store could not write their output.

Such a session stays open for a grace period, so that its client can close it again after the store has
recovered. The grace period, the number of these sessions and their total size are bounded: on a full disk,
sessions that cannot end would otherwise use up the session limit until no session can be opened. A session
over a bound is released without its output, and counted as lost.
"""

from __future__ import annotations

import threading
import time
from typing import Final, NamedTuple

from suffixsvc.service.sessions.entries import SessionEntry

#: longest time a session stays after its first failed close; shorter where idle sessions expire sooner
GRACE_SECONDS: Final = 60.0
MAX_FAILED_CLOSES: Final = 256
MAX_FAILED_CLOSE_BYTES: Final = 256 << 20
#: estimated memory of one token of a live session
BYTES_PER_TOKEN: Final = 50


class _FailedClose(NamedTuple):
    first: float  #: time of the first failure since the session was last used
    last: float
    size_bytes: int


class FailedCloses:
    """The live sessions whose last close failed, in order of their first failure. Thread-safe.

    A session that is stepped after a failed close is an ordinary live session again.

    Args:
        grace_seconds: how long a session may stay after its first failed close.
    """

    def __init__(self, grace_seconds: float) -> None:
        self._grace = grace_seconds
        self._lock = threading.Lock()
        self._failed: dict[SessionEntry, _FailedClose] = {}
        #: number of sessions released without their output
        self.lost = 0

    def __len__(self) -> int:
        return len(self._failed)

    def record(self, entry: SessionEntry, tokens: int) -> None:
        """Record a failed close of a session of ``tokens`` tokens."""
        now = time.monotonic()
        with self._lock:
            # A close does not count as a use: a client that retries it would otherwise renew the grace period
            # without end. Order and grace period are those of the first failure since the last use.
            first = self._failed[entry].first if self._unused(entry) else now
            self._failed[entry] = _FailedClose(first, now, tokens * BYTES_PER_TOKEN)

    def remove(self, entry: SessionEntry, *, lost: bool = False) -> None:
        """Remove a session that has ended: stored, discarded, or ``lost``."""
        with self._lock:
            self._failed.pop(entry, None)
            self.lost += lost

    def contains(self, entry: SessionEntry) -> bool:
        """Whether the session's last close failed and it has not been used since: it may be released."""
        with self._lock:
            return self._unused(entry)

    def due(self) -> list[SessionEntry]:
        """The sessions whose grace period is over."""
        before = time.monotonic() - self._grace
        return [entry for entry, failed in self._sorted() if failed.first <= before]

    def oldest(self) -> list[SessionEntry]:
        """The session to release first when the session limit is reached; empty if there is none."""
        return [entry for entry, _ in self._sorted()[:1]]

    def excess(self) -> list[SessionEntry]:
        """The oldest sessions, as many as are over the limits on number and bytes."""
        failed = self._sorted()
        size = sum(each.size_bytes for _, each in failed)
        found: list[SessionEntry] = []
        while len(failed) - len(found) > MAX_FAILED_CLOSES or size > MAX_FAILED_CLOSE_BYTES:
            entry, oldest = failed[len(found)]
            found.append(entry)
            size -= oldest.size_bytes
        return found

    def _sorted(self) -> list[tuple[SessionEntry, _FailedClose]]:
        """The sessions that were not used since, the first failure first."""
        with self._lock:
            self._failed = {entry: failed for entry, failed in self._failed.items() if self._unused(entry)}
            return sorted(self._failed.items(), key=lambda item: item[1].first)

    def _unused(self, entry: SessionEntry) -> bool:
        failed = self._failed.get(entry)
        return failed is not None and entry.slot.last_active <= failed.last
