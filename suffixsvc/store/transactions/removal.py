"""Deletion of a namespace, in bounded transactions.

    mark_deleting  flags the namespace's row: its path is unknown and its manifest void from then on
    delete_slice   tombstones, segment records, outputs, states, a bounded number of rows each; the row last

After a crash the flagged row remains, and the next open continues. The number of a namespace is never reused,
so that its remains (a segment file, for example) cannot be attributed to another namespace.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from suffixsvc.errors import unknown_namespace
from suffixsvc.store.records.framing import encode_text
from suffixsvc.store.records.keys import state_key
from suffixsvc.store.transactions import erasure
from suffixsvc.store.transactions.tables import Database
from suffixsvc.store.transactions.write_view import WriteView


def mark_deleting(view: WriteView, path: str) -> int:
    """Flag the namespace as being deleted; return its number. UnknownNamespaceError."""
    row = view.names.by_path.get(path) or view.names.deleting.get(path)
    if row is None:
        raise unknown_namespace(path)
    if not row.deleting:
        view.put_namespace(replace(row, deleting=True))
        view.put_deletion(row.namespace_id)
        view.set_manifest(row.namespace_id, ())
        erasure.request(view)
    return row.namespace_id


def delete_slice(view: WriteView, number: int, rows: int) -> tuple[int, bool]:
    """Delete up to ``rows`` rows of a flagged namespace; return (outputs deleted, whether none is left)."""
    row = view.names.by_id.get(number)
    if row is None:
        return 0, True  # completed by another call
    budget = rows - _drop(view, "tombstones", number, rows)
    budget -= _drop(view, "segments", number, budget)
    lsns = view.lsns(number, limit=budget)
    for lsn in lsns:
        view.delete(lsn)
    budget -= len(lsns)
    budget -= _drop(view, "state", number, budget)
    if budget == rows:  # alone: listeners of the earlier deletions need the namespace's row
        view.drop("namespaces", encode_text(row.path))
        view.names = view.names.without(number)
        return 0, True
    return len(lsns), False


def _drop(view: WriteView, database: Database, number: int, limit: int) -> int:
    prefix = state_key(number, "")
    # up to the last key with the prefix: UTF-8 has no byte ff
    keys = list(islice(view.tables.keys(database, prefix, prefix + b"\xff" * 8), limit))
    for key in keys:
        view.drop(database, key)
    return len(keys)
