"""In-memory state of one commit: namespaces, manifests and totals. Read with a transaction of that commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import lmdb

from suffixsvc.errors import StoreCorruptError, unknown_namespace
from suffixsvc.store.records.identity_records import decode_node
from suffixsvc.store.records.manifest import Manifest
from suffixsvc.store.records.manifest_records import decode_segment
from suffixsvc.store.records.output_records import (
    COUNTERS_KEY,
    NODE_KEY,
    Counters,
    NamespaceRow,
    decode_counters,
    decode_namespace,
)
from suffixsvc.store.transactions.databases import Databases

__all__ = ["Names", "Snapshot", "load_snapshot"]


@dataclass(frozen=True, slots=True)
class Names:
    """All namespaces, by path and by number. Immutable: changes create a new object.

    A namespace that is being deleted is in ``by_id`` and ``deleting`` only.
    """

    by_path: Mapping[str, NamespaceRow] = field(default_factory=dict)
    by_id: Mapping[int, NamespaceRow] = field(default_factory=dict)
    deleting: Mapping[str, NamespaceRow] = field(default_factory=dict)

    def plus(self, row: NamespaceRow) -> Names:
        """Return a copy with this row added or replaced."""
        by_path = {path: other for path, other in self.by_path.items() if path != row.path}
        deleting = dict(self.deleting)
        (deleting if row.deleting else by_path)[row.path] = row
        return Names(by_path, {**self.by_id, row.namespace_id: row}, deleting)

    def without(self, number: int) -> Names:
        """Return a copy without a namespace that was being deleted."""
        by_id = {other: row for other, row in self.by_id.items() if other != number}
        deleting = {path: row for path, row in self.deleting.items() if row.namespace_id != number}
        return Names(self.by_path, by_id, deleting)

    def require(self, path: str) -> NamespaceRow:
        """Return the row of a path; UnknownNamespaceError also while it is being deleted."""
        try:
            return self.by_path[path]
        except KeyError:
            raise unknown_namespace(path) from None

    def number_of(self, path: str) -> int:
        """Return the number of a namespace that exists or is being deleted."""
        return (self.by_path.get(path) or self.deleting[path]).namespace_id


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of the last commit. Immutable, so that readers need no lock."""

    names: Names = field(default_factory=Names)
    counters: Counters = field(default_factory=Counters)
    #: by namespace number; without those that have no segment
    manifests: Mapping[int, Manifest] = field(default_factory=dict)
    #: id of the folder; 0 before schema 3
    node_id: int = 0


def load_snapshot(txn: lmdb.Transaction[bytes], dbs: Databases) -> Snapshot:
    """Read the snapshot at open; StoreCorruptError names a damaged record."""
    raw = txn.get(COUNTERS_KEY, db=dbs.meta)
    if raw is None:
        raise StoreCorruptError("the counters record is missing", remedy="Restore the folder from a backup.")
    counters = decode_counters(raw)
    by_path: dict[str, NamespaceRow] = {}
    by_id: dict[int, NamespaceRow] = {}
    deleting: dict[str, NamespaceRow] = {}
    with txn.cursor(db=dbs.namespaces) as cursor:
        for key, value in cursor:
            row = decode_namespace(value, key)
            if row.namespace_id in by_id or not 0 < row.namespace_id <= counters.last_namespace_id:
                raise StoreCorruptError(
                    f"namespace {row.path} must have a unique number",
                    expected=f"1 .. {counters.last_namespace_id}",
                    got=row.namespace_id,
                    remedy="Restore the folder from a backup.",
                )
            by_id[row.namespace_id] = row
            (deleting if row.deleting else by_path)[row.path] = row
    manifests = _load_manifests(txn, dbs.segments)
    for row in deleting.values():  # its segments are void
        manifests.pop(row.namespace_id, None)
    node = txn.get(NODE_KEY, db=dbs.meta)
    return Snapshot(
        Names(by_path, by_id, deleting), counters, manifests, 0 if node is None else decode_node(node)
    )


def _load_manifests(txn: lmdb.Transaction[bytes], segments: lmdb._Database | None) -> dict[int, Manifest]:
    manifests: dict[int, Manifest] = {}
    if segments is None:
        return manifests
    with txn.cursor(db=segments) as cursor:
        for key, value in cursor:
            number, record = decode_segment(value, key)
            before = manifests.get(number, ())
            if before and before[-1].last_lsn >= record.first_lsn:
                raise StoreCorruptError(
                    f"segments {before[-1].name} and {record.name} overlap",
                    remedy="Restore the folder from a backup.",
                )
            manifests[number] = (*before, record)
    return manifests
