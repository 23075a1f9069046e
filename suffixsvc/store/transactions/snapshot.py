"""In-memory state of one commit: namespaces, principals, manifests and totals.

Read with a transaction of that commit.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from suffixsvc.errors import unknown_namespace
from suffixsvc.store.records import keys, table_records
from suffixsvc.store.records.framing import corrupt
from suffixsvc.store.transactions.tables import Tables
from suffixsvc.types import SegmentRecord

#: segments of a namespace, ordered by range; the ranges never overlap
Manifest = tuple[SegmentRecord, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """All namespaces, by path and by number. Immutable: changes create a new object.

    A namespace that is being deleted is in ``by_id`` and ``deleting`` only.
    """

    by_path: Mapping[str, table_records.NamespaceRow] = field(default_factory=dict)
    by_id: Mapping[int, table_records.NamespaceRow] = field(default_factory=dict)
    deleting: Mapping[str, table_records.NamespaceRow] = field(default_factory=dict)

    @staticmethod
    def of(by_id: Mapping[int, table_records.NamespaceRow]) -> Names:
        """Return the namespaces with these rows."""
        paths: tuple[dict[str, table_records.NamespaceRow], dict[str, table_records.NamespaceRow]] = {}, {}
        for row in by_id.values():
            paths[row.deleting][row.path] = row
        return Names(paths[False], by_id, paths[True])

    def plus(self, row: table_records.NamespaceRow) -> Names:
        """Return a copy with this row added or replaced."""
        return Names.of({**self.by_id, row.namespace_id: row})

    def without(self, number: int) -> Names:
        """Return a copy without a namespace."""
        return Names.of({other: row for other, row in self.by_id.items() if other != number})

    def require(self, path: str) -> int:
        """Return the number of a path; UnknownNamespaceError also while it is being deleted."""
        try:
            return self.by_path[path].namespace_id
        except KeyError:
            raise unknown_namespace(path) from None

    def number_of(self, path: str) -> int:
        """Return the number of a namespace that exists or is being deleted."""
        return (self.by_path.get(path) or self.deleting[path]).namespace_id


@dataclass(frozen=True, slots=True)
class Principals:
    """The writers of outputs that the store knows. Immutable: an addition creates a new object.

    Attributes:
        names: the name of number n is at n - 1. Numbers are never reused.
        numbers: number of each name.
    """

    names: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)

    def plus(self, name: str) -> Principals:
        """Return a copy with one more name."""
        return Principals((*self.names, name), {**self.numbers, name: len(self.names) + 1})

    def name_of(self, number: int) -> str | None:
        """Return the name of a number, "" for 0; None if the number is unknown."""
        return "" if not number else self.names[number - 1] if number <= len(self.names) else None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of the last commit. Immutable, so that readers need no lock."""

    names: Names = field(default_factory=Names)
    counters: table_records.Counters = field(default_factory=table_records.Counters)
    #: by namespace number; without those that have no segment
    manifests: Mapping[int, Manifest] = field(default_factory=dict)
    #: 64 random bits drawn when the store was created: rows carry the node that wrote them. 0 in a folder of
    #: an older schema that had no space for one
    node_id: int = 0
    history: table_records.History = field(default_factory=table_records.History)
    principals: Principals = field(default_factory=Principals)
    #: LSN up to which deleted texts are still to be erased from the disk; 0: none
    erasure: int = 0
    #: a server with access control has served the log
    access_controlled: bool = False
    #: number of this run
    run: int = field(default_factory=lambda: secrets.randbits(64) or 1, compare=False)


def load_snapshot(tables: Tables) -> Snapshot:
    """Read the snapshot at open; StoreCorruptError names a damaged record."""
    raw = tables.get("meta", keys.COUNTERS_KEY)
    if raw is None:
        raise corrupt("the counters record is missing")
    counters = table_records.decode_counters(raw)
    by_id: dict[int, table_records.NamespaceRow] = {}
    for key, value in tables.rows("namespaces"):
        row = table_records.decode_namespace(value, key)
        if row.namespace_id in by_id or not 0 < row.namespace_id <= counters.last_namespace_id:
            raise corrupt(
                f"namespace {row.path} must have a unique number",
                f"1 .. {counters.last_namespace_id}",
                row.namespace_id,
            )
        by_id[row.namespace_id] = row
    names = Names.of(by_id)
    manifests = _load_manifests(tables)
    for row in names.deleting.values():  # its segments are void
        manifests.pop(row.namespace_id, None)
    node = tables.get("meta", keys.NODE_KEY)
    history = tables.get("meta", keys.HISTORY_KEY)
    erasure = tables.get("meta", keys.ERASURE_KEY)
    schema = tables.get("meta", keys.SCHEMA_KEY)
    return Snapshot(
        names,
        counters,
        manifests,
        0 if node is None else table_records.decode_node(node),
        # a folder of an older schema has no record of deletions
        table_records.History(counters.last_lsn)
        if history is None
        else table_records.decode_history(history),
        _load_principals(tables),
        0 if erasure is None else table_records.decode_erasure(erasure),
        schema is not None and table_records.decode_schema(schema).access_controlled,
    )


def _load_principals(tables: Tables) -> Principals:
    numbers: dict[str, int] = {}
    for key, value in tables.rows("principals"):
        number, name = table_records.decode_principal(value, key)
        if number != len(numbers) + 1 or name in numbers:
            raise corrupt(
                f"principal {number} must have the next number and a name of its own",
                f"number {len(numbers) + 1}",
                f"name {name!r}",
            )
        numbers[name] = number
    return Principals(tuple(numbers), numbers)


def _load_manifests(tables: Tables) -> dict[int, Manifest]:
    manifests: dict[int, Manifest] = {}
    for key, value in tables.rows("segments"):
        number, record = table_records.decode_segment(value, key)
        before = manifests.get(number, ())
        if before and before[-1].last_lsn >= record.first_lsn:
            raise corrupt(f"segments {before[-1].name} and {record.name} overlap")
        manifests[number] = (*before, record)
    return manifests
