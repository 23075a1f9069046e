"""Deletion of a namespace, in bounded transactions.

    mark_deleting  flags the namespace's row: its path is unknown and its manifest void from then on
    delete_slice   tombstones, segment records, outputs, states, a bounded number of rows each; the row last

After a crash the flagged row remains, and the next open continues. The number of a namespace is never reused,
so that its remains (a segment file, for example) cannot be attributed to another namespace.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import lmdb

from suffixsvc.errors import unknown_namespace
from suffixsvc.store.records.output_records import encode_namespace
from suffixsvc.store.records.state_records import state_key
from suffixsvc.store.transactions.write_view import WriteView

__all__ = ["DeletedSlice", "delete_slice", "mark_deleting"]


@dataclass(frozen=True, slots=True)
class DeletedSlice:
    """Number of outputs that one transaction deleted, and whether the deletion is complete."""

    outputs: int
    finished: bool


def mark_deleting(view: WriteView, path: str) -> int:
    """Flag the namespace as being deleted; return its number. UnknownNamespaceError."""
    row = view.names.by_path.get(path)
    if row is None:
        if path in view.names.deleting:
            return view.names.deleting[path].namespace_id
        raise unknown_namespace(path)
    row = replace(row, deleting=True)
    view.put(path.encode("utf-8", "surrogatepass"), encode_namespace(row), view.dbs.namespaces)
    view.names = view.names.plus(row)
    view.manifests = {n: manifest for n, manifest in view.manifests.items() if n != row.namespace_id}
    return row.namespace_id


def delete_slice(view: WriteView, number: int, rows: int) -> DeletedSlice:
    """Delete up to ``rows`` rows of a flagged namespace."""
    row = view.names.by_id.get(number)
    if row is None:
        return DeletedSlice(0, True)  # completed by another call
    prefix = state_key(number, "")
    budget = rows
    for database in (view.dbs.tombstones, view.dbs.segments):
        if database is not None:
            budget -= _drop(view, prefix, database, budget)
    lsns = view.lsns(number, 0, 2**64 - 1, budget)
    for lsn in lsns:
        view.delete(lsn)
    budget -= len(lsns)
    budget -= _drop(view, prefix, view.dbs.state, budget)
    if budget == rows:  # alone: listeners of the earlier deletions need the namespace's row
        view.drop(row.path.encode("utf-8", "surrogatepass"), view.dbs.namespaces)
        view.names = view.names.without(number)
        return DeletedSlice(0, True)
    return DeletedSlice(len(lsns), False)


def _drop(view: WriteView, prefix: bytes, database: lmdb._Database, limit: int) -> int:
    keys = list(_keys(view, prefix, database, limit))
    for key in keys:
        view.drop(key, database)
    return len(keys)


def _keys(view: WriteView, prefix: bytes, database: lmdb._Database, limit: int) -> Iterator[bytes]:
    with view.txn.cursor(db=database) as cursor:
        positioned = cursor.set_range(prefix)
        while positioned and limit and cursor.key().startswith(prefix):
            yield cursor.key()
            limit -= 1
            positioned = cursor.next()
