"""Erasure of deleted texts from the disk: rewrites segments, then overwrites what the log's file still holds.

    repair    damaged segments are dropped, so that no file is left out
    segments  each one with deleted outputs is merged into a new file without them; its file is removed
    sweep     files that no manifest names are removed: of other versions, too, which the log can replace
    scrub     free pages and gaps of the log's file are overwritten
    finish    the request is removed from the log, unless a later deletion made another one

Any step can be interrupted by a crash: the request is durable, and the erasure begins again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog

from suffixsvc.engine.catalog import Catalog
from suffixsvc.engine.sealing import segment_files
from suffixsvc.engine.sealing.sealer import Sealer
from suffixsvc.runtime.sync_points import SyncPoint
from suffixsvc.store.base import Store

log = structlog.get_logger(__name__)

#: least pause after an erasure in the background, in seconds and in units of its duration: each one reads the
#: whole log
_PAUSE_SECONDS: Final = 60.0
_PAUSE_SHARE: Final = 20.0


class Eraser:
    """Erases deleted texts of one cache. Not thread-safe (``Maintenance.work``), except :meth:`due`.

    Args:
        store: the log.
        catalog: the namespaces of the cache.
        sealer: None for a cache in memory.
        finish_removals: removes texts of deleted outputs that are still indexed.
        sync_point: see :mod:`suffixsvc.runtime.sync_points`.

    Attributes:
        failed: the last :meth:`run` failed.
    """

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        sealer: Sealer | None,
        finish_removals: Callable[[], object],
        sync_point: SyncPoint,
    ) -> None:
        self._store, self._catalog, self._sealer = store, catalog, sealer
        self._finish_removals, self._sync_point = finish_removals, sync_point
        self._not_before = 0.0
        self.failed = False

    def due(self) -> bool:
        """Whether an erasure was requested, and the last one was long enough ago for another one."""
        return bool(self._store.erasure_due()) and time.monotonic() >= self._not_before

    def run(self) -> None:
        """Erase what was deleted before this call.

        Raises:
            StoreError: a part may be erased; the request stays.
            SegmentCancelledError: the cache is being closed.
        """
        started = time.monotonic()
        self.failed, self._not_before = True, started + _PAUSE_SECONDS  # unless it succeeds
        requested = self._store.erasure_due()
        self._finish_removals()
        self._sync_point("erase-begun")
        if self._sealer is not None:
            indexes = self._catalog.stored()
            for index in indexes:
                self._sealer.purge(index)
            self._sync_point("erase-segments")
            keep = {record.name for index in indexes for record in self._store.segments(index.path)}
            segment_files.remove_all_but(self._sealer.builder.folder, keep)
        self._sync_point("erase-swept")
        self._store.scrub()
        self._sync_point("erase-scrubbed")
        if requested:
            self._store.finish_erasure(requested)
        self._sync_point("erase-done")
        now = time.monotonic()
        self.failed = False
        self._not_before = now + max(_PAUSE_SECONDS, _PAUSE_SHARE * (now - started))
        log.info("deleted outputs are erased from the disk", seconds=round(now - started, 3))
