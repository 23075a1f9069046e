"""Snapshot scans without a long read transaction.

Rows are immutable: they are appended with ascending LSNs, and deleted. A snapshot is therefore determined by
the highest LSN at its start (the horizon) and the rows deleted since:

    rows of the snapshot  =  existing rows with LSN <= horizon  +  rows deleted since

The store's thread passes every row that it is about to delete to the active scans. A scan reads chunks in
short transactions and merges these rows. A slow reader thus blocks neither the growth of the map nor the
reuse of freed pages, and needs memory only for rows deleted meanwhile.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol

from suffixsvc.store.transactions.read_view import ReadView
from suffixsvc.store.transactions.snapshot import Snapshot
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.types import StoredOutput

_CHUNK_ROWS: Final = 256
_CHUNK_TOKENS: Final = 1 << 20


class Log(Protocol):
    """An open log: its last commit, and short read transactions."""

    #: the last commit
    snapshot: Snapshot

    @property
    def commit_lock(self) -> AbstractContextManager[object]:
        """Held while a commit and its snapshot change together."""

    def require_usable(self) -> None:
        """Raise StoreClosedError after the close."""

    def read(self) -> AbstractContextManager[ReadView]:
        """Open a short read transaction. Must not be nested, and must not yield to callers inside."""

    def disk_bytes(self) -> int:
        """Return the bytes that the log occupies."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Scan:
    """An active scan and the rows deleted since it began, by LSN."""

    namespace_id: int | None
    horizon: int
    deleted: dict[int, StoredOutput] = field(default_factory=dict)


class Scans:
    """The active scans of a store. An abandoned scan is removed when it is collected."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._active: weakref.WeakSet[_Scan] = weakref.WeakSet()
        self._lock = threading.Lock()

    def record_deletions(self, view: WriteView) -> None:
        """Pass the rows that a commit deletes to active scans. Store's thread, with the commit lock held."""
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
        log = self._log
        log.require_usable()
        with log.commit_lock:
            scan = _Scan(namespace_id, log.snapshot.counters.last_lsn)
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
                log.require_usable()
                yield chunk[lsn]

    def _chunk(self, scan: _Scan, after: int) -> tuple[dict[int, StoredOutput], int]:
        """Read the next rows after LSN ``after``; return them and the LSN up to which they are complete."""
        with self._log.read() as view:
            lsns = view.lsns(scan.namespace_id, after + 1, scan.horizon, _CHUNK_ROWS)
            chunk: dict[int, StoredOutput] = {}
            tokens = 0
            for lsn in lsns:
                chunk[lsn] = view.output(lsn)
                tokens += len(chunk[lsn].output.token_ids)
                if tokens >= _CHUNK_TOKENS:
                    return chunk, lsn
            return chunk, lsns[-1] if len(lsns) == _CHUNK_ROWS else scan.horizon
