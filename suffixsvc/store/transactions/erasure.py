"""Deletions whose texts are to be erased from the disk, and the record of what is still to be erased.

    request   in the transaction that deletes: the record holds the LSN of the last deletion
    finish    after every file was rewritten or overwritten: the record is removed, unless a later deletion
              requested another erasure meanwhile

After a crash the record remains, and the erasure is done again. A folder of an older schema has no record,
because its releases would take it for damage: a restart forgets the request.
"""

from __future__ import annotations

from collections.abc import Sequence

from suffixsvc.store.records import keys
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.types import OutputId, StoredOutput


def delete_many(
    view: WriteView, namespace: str, lsns: Sequence[OutputId], *, erase: bool
) -> list[StoredOutput]:
    """Delete those of the rows that exist in the namespace.

    Args:
        erase: request the erasure of their texts.
    """
    number = view.names.require(namespace)
    deleted = [view.delete(lsn) for lsn in lsns if _is_of(view, number, lsn)]
    if deleted and erase:
        request(view)
    return deleted


def _is_of(view: WriteView, number: int, lsn: int) -> bool:
    return (
        0 < lsn <= keys.LAST_LSN
        and view.tables.get("by_namespace", keys.namespace_row_key(number, lsn)) is not None
    )


def drop_state(view: WriteView, namespace: str, name: str) -> bool:
    """Delete a state of a namespace, and request its erasure; whether there was one.

    Raises:
        UnknownNamespaceError.
    """
    key = keys.state_key(view.names.require(namespace), name)
    if view.tables.get("state", key) is None:
        return False
    view.drop("state", key)
    request(view)
    return True


def request(view: WriteView) -> None:
    """Record that everything deleted so far is to be erased from the disk."""
    view.put_erasure(max(1, view.counters.last_lsn))


def finish(view: WriteView, lsn: OutputId) -> None:
    """Record that what was requested at ``lsn`` is erased; a later request stays."""
    if view.erasure == lsn:
        view.erasure = 0
        view.drop("meta", keys.ERASURE_KEY)
