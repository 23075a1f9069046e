"""Scans that see one moment without holding a read transaction.

Rows never change: they are appended with ever higher LSNs, and deleted. So the moment at which a scan
starts is told by the highest LSN then, and what was deleted since:

    rows of that moment  =  rows with LSN <= horizon still there  +  rows deleted since

The writer hands every row it is about to delete to the scans under way; a scan reads chunks, each in a
short transaction of its own, and merges what it was handed. A slow reader therefore blocks neither the
growth of the map nor the reuse of freed pages, and costs memory only for what is deleted meanwhile.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Final

from suffixsvc.store.environment import Environment
from suffixsvc.store.read_view import ReadView
from suffixsvc.store.tables import WriteView
from suffixsvc.types import StoredOutput

__all__ = ["Scans"]

_CHUNK_ROWS: Final = 256
_CHUNK_TOKENS: Final = 1 << 20


class _Scan:
    """One scan under way: the rows deleted since it began, by LSN."""

    __slots__ = ("__weakref__", "deleted", "horizon", "namespace_id")

    def __init__(self, namespace_id: int | None, horizon: int) -> None:
        self.namespace_id = namespace_id
        self.horizon = horizon
        self.deleted: dict[int, StoredOutput] = {}


class Scans:
    """All scans of a store. A scan that is dropped half way leaves the set by itself."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._active: weakref.WeakSet[_Scan] = weakref.WeakSet()
        self._lock = threading.Lock()

    def hand_over(self, view: WriteView) -> None:
        """Called by the writer with the commit lock held, before it commits deletions."""
        if not view.deleted:
            return
        with self._lock:
            for scan in self._active:
                for stored in view.deleted:
                    number = view.names.number_of(stored.output.namespace)
                    if stored.output_id <= scan.horizon and scan.namespace_id in (None, number):
                        scan.deleted[stored.output_id] = stored

    def run(self, namespace_id: int | None, from_lsn: int) -> Iterator[StoredOutput]:
        environment = self._environment
        environment.require_usable()
        with environment.commit_lock:
            scan = _Scan(namespace_id, environment.snapshot.counters.last_lsn)
            with self._lock:
                self._active.add(scan)
        at = max(from_lsn, 1) - 1
        while at < scan.horizon:
            chunk, reached = self._chunk(scan, at)
            with self._lock:
                for lsn in [lsn for lsn in scan.deleted if lsn <= reached]:
                    stored = scan.deleted.pop(lsn)
                    # handed over and still there when the chunk was read: the same row twice
                    if lsn > at:
                        chunk.setdefault(lsn, stored)
            at = reached
            for lsn in sorted(chunk):
                environment.require_usable()
                yield chunk[lsn]

    def _chunk(self, scan: _Scan, after: int) -> tuple[dict[int, StoredOutput], int]:
        """Rows behind ``after`` as they are now, and the LSN up to which nothing is missing."""
        with self._environment.read() as (txn, snapshot):
            view = ReadView(txn, self._environment.dbs, snapshot)
            lsns = view.lsns(scan.namespace_id, after, scan.horizon, _CHUNK_ROWS)
            chunk: dict[int, StoredOutput] = {}
            tokens = 0
            for lsn in lsns:
                chunk[lsn] = view.output(lsn)
                tokens += len(chunk[lsn].output.token_ids)
                if tokens >= _CHUNK_TOKENS:
                    return chunk, lsn
            return chunk, lsns[-1] if len(lsns) == _CHUNK_ROWS else scan.horizon
