"""Opens the segments of the namespaces that are followed; those that must be fetched, in the background."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from suffixsvc.index import Sealed
from suffixsvc.log_types import SealedContents
from suffixsvc.runtime.background import PeriodicTask
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.types import SegmentRecord
from suffixsvc_follower.contents.segment_source import SegmentSource
from suffixsvc_follower.stream.followed import Followed, FollowedTable

#: period of another attempt to fetch what is missing, and of the maintenance of the copies
_PERIOD_SECONDS: Final = 10.0


class SegmentOpener(ClosedOnExit):
    """Opens segments. Thread-safe.

    Args:
        table: the namespaces.
        source: of segment files.

    Attributes:
        lock: held while copies change.
        folder: where a service on this host has its segments; "" = unknown.
    """

    def __init__(self, table: FollowedTable, source: SegmentSource) -> None:
        self._table = table
        self._source = source
        self.lock = threading.RLock()
        self.folder = ""
        self._task = PeriodicTask("suffixsvc-segments", self._work, period_seconds=_PERIOD_SECONDS)
        self._task.start()

    def open_local(
        self,
        entry: Followed,
        sealed: SealedContents,
        digests: Mapping[str, bytes],
        *,
        again: bool = False,
    ) -> list[Sealed]:
        """Open those segments of another manifest that are on this host and not attached yet.

        Args:
            digests: of the headers of the manifest's files, by name.
            again: open attached ones as well. Outputs that were deleted since a backup are in the log again
                when that was restored, and an attached segment has forgotten them.
        """
        before, entry.digests = entry.digests, digests
        held = {
            each.record.name
            for each in entry.copy.sealed()
            if not again
            and not each.segment.corrupt
            and before.get(each.record.name) == digests.get(each.record.name)
        }
        self._source.release(entry.path, set(before.values()) - set(digests.values()))
        found = (self._open(entry, each, fetch=False) for each in sealed.segments if each.name not in held)
        return [each for each in found if each is not None]

    def fetch_missing(self, entry: Followed) -> None:
        """Begin to fetch what a namespace lacks, in the background, if anything is missing."""
        if entry.copy.missing_segments():
            self._task.wake()

    def discard(self, path: str) -> None:
        """Delete what was fetched of a namespace that this process may not follow any more."""
        self._source.discard(path)

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._task.stop()

    def _work(self) -> None:
        for entry in self._table.values():
            for record in entry.copy.missing_segments():
                if self._task.stopping:
                    return
                opened = self._open(entry, record, fetch=True)
                if opened is not None:
                    with self.lock:
                        entry.copy.attach_opened([opened])
            with self.lock:
                entry.copy.maintain()

    def _open(self, entry: Followed, record: SegmentRecord, *, fetch: bool) -> Sealed | None:
        digest = entry.digests.get(record.name)
        if digest is None:
            return None  # the manifest has changed
        segment = self._source.open(entry.path, record, digest, (), self.folder, fetch=fetch)
        return None if segment is None else Sealed(record, segment, record.outputs, record.tokens)
