"""What readers need to know beside the database: namespaces, manifests and totals, as of one commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import lmdb

from suffixsvc.errors import StoreCorruptError, unknown_namespace
from suffixsvc.store.identity_records import decode_node
from suffixsvc.store.manifest import Manifest
from suffixsvc.store.manifest_records import decode_segment
from suffixsvc.store.records import (
    COUNTERS_KEY,
    NODE_KEY,
    Counters,
    NamespaceRow,
    decode_counters,
    decode_namespace,
)

if TYPE_CHECKING:  # it holds snapshots
    from suffixsvc.store.environment import Databases

__all__ = ["Names", "Snapshot", "load_snapshot"]


@dataclass(frozen=True, slots=True)
class Names:
    """All namespaces, by path and by number. Replaced as a whole when one is added or goes.

    One that is being deleted is found by its number only, and listed in ``deleting``.
    """

    by_path: Mapping[str, NamespaceRow] = field(default_factory=dict)
    by_id: Mapping[int, NamespaceRow] = field(default_factory=dict)
    deleting: Mapping[str, NamespaceRow] = field(default_factory=dict)

    def plus(self, row: NamespaceRow) -> Names:
        """With this row, or with what it is now."""
        by_path = {path: other for path, other in self.by_path.items() if path != row.path}
        deleting = dict(self.deleting)
        (deleting if row.deleting else by_path)[row.path] = row
        return Names(by_path, {**self.by_id, row.namespace_id: row}, deleting)

    def without(self, number: int) -> Names:
        """Without one that was being deleted."""
        by_id = {other: row for other, row in self.by_id.items() if other != number}
        deleting = {path: row for path, row in self.deleting.items() if row.namespace_id != number}
        return Names(self.by_path, by_id, deleting)

    def require(self, path: str) -> NamespaceRow:
        """UnknownNamespaceError if there is none, or it is being deleted."""
        try:
            return self.by_path[path]
        except KeyError:
            raise unknown_namespace(path) from None

    def number_of(self, path: str) -> int:
        """Of a namespace that is there or is being deleted."""
        return (self.by_path.get(path) or self.deleting[path]).namespace_id


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the last commit left. Replaced as a whole, so whoever holds one needs no lock."""

    names: Names = field(default_factory=Names)
    counters: Counters = field(default_factory=Counters)
    #: by number of the namespace; one without segments is not there
    manifests: Mapping[int, Manifest] = field(default_factory=dict)
    #: of the folder; 0 before schema 3
    node_id: int = 0


def load_snapshot(txn: lmdb.Transaction[bytes], dbs: Databases) -> Snapshot:
    """Read it back at open; StoreCorruptError names the record that is damaged."""
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
                    f"namespace {row.path} has a number that is taken or was never given",
                    expected=f"a free one in 1 .. {counters.last_namespace_id}",
                    got=row.namespace_id,
                    remedy="Restore the folder from a backup.",
                )
            by_id[row.namespace_id] = row
            (deleting if row.deleting else by_path)[row.path] = row
    manifests = _load_manifests(txn, dbs.segments)
    for row in deleting.values():  # its segments stand for nothing any more
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
