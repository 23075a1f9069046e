"""Snapshot scans without a long read transaction.

Rows are immutable: they are appended with ascending LSNs, and deleted. A snapshot is therefore determined by
the highest LSN at its start (the horizon) and the rows deleted since:

    rows of the snapshot  =  existing rows with LSN <= horizon  +  rows deleted since

The writer passes every row that it is about to delete to the active scans. A scan reads chunks in short
transactions and merges these rows. A slow reader thus blocks neither the growth of the map nor the reuse of
freed pages, and needs memory only for rows deleted meanwhile.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Final

from suffixsvc.store.transactions.environment import Environment
from suffixsvc.store.transactions.read_view import ReadView
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.types import StoredOutput

__all__ = ["Scans"]

_CHUNK_ROWS: Final = 256
_CHUNK_TOKENS: Final = 1 << 20


class _Scan:
    """An active scan and the rows deleted since it began, by LSN."""

    __slots__ = ("__weakref__", "deleted", "horizon", "namespace_id")

    def __init__(self, namespace_id: int | None, horizon: int) -> None:
        self.namespace_id = namespace_id
        self.horizon = horizon
        self.deleted: dict[int, StoredOutput] = {}


class Scans:
    """The active scans of a store. An abandoned scan is removed when it is collected."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._active: weakref.WeakSet[_Scan] = weakref.WeakSet()
        self._lock = threading.Lock()

    def record_deletions(self, view: WriteView) -> None:
        """Pass the rows that a commit deletes to active scans. Writer thread, with the commit lock held."""
        if not view.deleted:
            return
        with self._lock:
            for scan in self._active:
                for stored in view.deleted:
                    number = view.names.number_of(stored.output.namespace)
                    if stored.output_id <= scan.horizon and scan.namespace_id in (None, number):
                        scan.deleted[stored.output_id] = stored

    def scan(self, namespace_id: int | None, from_lsn: int) -> Iterator[StoredOutput]:
        """Iterate over the rows with LSN >= ``from_lsn`` of one namespace or all, as of the first step."""
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
                    # a row deleted after the chunk was read is in both
                    if lsn > at:
                        chunk.setdefault(lsn, stored)
            at = reached
            for lsn in sorted(chunk):
                environment.require_usable()
                yield chunk[lsn]

    def _chunk(self, scan: _Scan, after: int) -> tuple[dict[int, StoredOutput], int]:
        """Read the next rows after LSN ``after``; return them and the LSN up to which they are complete."""
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
