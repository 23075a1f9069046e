"""Row writes of one LMDB transaction, with a count."""

from __future__ import annotations

from dataclasses import replace

import lmdb

from suffixsvc.store.records.output_records import COUNTERS_KEY, encode_counters
from suffixsvc.store.transactions.databases import Databases
from suffixsvc.store.transactions.read_view import ReadView
from suffixsvc.store.transactions.snapshot import Snapshot

__all__ = ["RowWriter"]


class RowWriter(ReadView):
    """A view that also writes rows.

    Attributes:
        writes: number of row writes so far; 0 means that the transaction changes nothing.
    """

    def __init__(self, txn: lmdb.Transaction[bytes], dbs: Databases, snapshot: Snapshot) -> None:
        super().__init__(txn, dbs, snapshot)
        self.writes = 0

    def finish(self) -> None:
        """Write the counters row; called last before the commit."""
        if self.writes:
            self.counters = replace(self.counters, txn=self.txn.id())
            self.txn.put(COUNTERS_KEY, encode_counters(self.counters), db=self.dbs.meta)

    def touch(self) -> None:
        """Make the transaction commit even if it changes no row."""
        self.writes += 1

    def put(self, key: bytes, value: bytes, db: lmdb._Database) -> None:
        """Write one row."""
        self.writes += 1
        self.txn.put(key, value, db=db)

    def drop(self, key: bytes, db: lmdb._Database) -> None:
        """Delete one row."""
        self.writes += 1
        self.txn.delete(key, db=db)
