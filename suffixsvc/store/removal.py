"""The deletion of a namespace, in bounded transactions.

    begin    its row says "being deleted": its path is unknown from now on, its manifest counts no more
    part     tombstones, segments' records, outputs, states, so many rows a transaction; the row last

A crash leaves a row that says so, and the next open goes on. The number of the namespace is never given
again, so that nothing that is left of it (a segment's file, say) can be taken for another's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import lmdb

from suffixsvc.errors import unknown_namespace
from suffixsvc.store.records import encode_namespace, state_key
from suffixsvc.store.tables import WriteView

__all__ = ["Part", "begin", "part"]


@dataclass(frozen=True, slots=True)
class Part:
    """What one transaction deleted, and whether that was the last of it."""

    outputs: int
    finished: bool


def begin(view: WriteView, path: str) -> int:
    """Mark the namespace; its number. UnknownNamespaceError."""
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


def part(view: WriteView, number: int, rows: int) -> Part:
    """Delete up to ``rows`` rows of a namespace that is marked."""
    row = view.names.by_id.get(number)
    if row is None:
        return Part(0, True)  # by another call
    prefix = state_key(number, "")
    left = rows
    for database in (view.dbs.tombstones, view.dbs.segments):
        if database is not None:
            left -= _drop(view, prefix, database, left)
    lsns = view.lsns(number, 0, 2**64 - 1, left)
    for lsn in lsns:
        view.delete(lsn)
    left -= len(lsns)
    left -= _drop(view, prefix, view.dbs.state, left)
    if left == rows:  # nothing else is left; alone, so that what was deleted before knows its namespace
        view.drop(row.path.encode("utf-8", "surrogatepass"), view.dbs.namespaces)
        view.names = view.names.without(number)
        return Part(0, True)
    return Part(len(lsns), False)


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
