"""Which output is which: uuids, who wrote a row, and the incomplete outputs of a session.

A row carries its uuid. One that its writer chose is in the index ``uuids``, so that the same output is logged
once however often it is sent; one that was drawn here is the node and the LSN, which needs no index. In a
folder of an older schema that had no room for these databases nothing is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from suffixsvc.errors import StoreCorruptError, StoreError
from suffixsvc.store.identity_records import (
    Range,
    decode_lsn,
    drawn_uuid,
    encode_lsn,
    encode_pending,
    incomplete_key,
    lsn_of_drawn,
    uuid_key,
)
from suffixsvc.store.read_view import LSN_END, ReadView
from suffixsvc.store.records import LogRecord, log_key
from suffixsvc.store.validation import CheckedOutput, own_uuid, require_same_content
from suffixsvc.types import IncompleteOutput, OutputId

if TYPE_CHECKING:  # it builds on this module
    from suffixsvc.store.tables import WriteView

__all__ = [
    "enter",
    "find",
    "incomplete",
    "is_indexed",
    "leave",
    "note_pending",
    "of_new",
    "repeated",
]


def is_indexed(record: LogRecord) -> bool:
    """Whether its uuid was chosen by its writer."""
    return bool(record.uuid) and record.uuid != drawn_uuid(record.node_id, record.lsn)


def find(view: ReadView, number: int, uuid: bytes) -> LogRecord | None:
    """The row of this uuid in a namespace."""
    if view.dbs.uuids is None:
        return None
    lsn = lsn_of_drawn(uuid, view.node_id)
    if lsn is not None:
        record = view.log_record(lsn)
        if record is not None and record.payload.namespace_id == number and view.uuid_of(record) == uuid:
            return record
    raw = view.txn.get(uuid_key(number, uuid), db=view.dbs.uuids)
    if raw is None:
        return None
    record = view.log_record(decode_lsn(raw, uuid))
    if record is None or record.uuid != uuid or record.payload.namespace_id != number:
        raise StoreCorruptError(
            f"uuid {uuid.hex()} leads to an output that has another one, or to none",
            remedy="Restore the data folder from a backup.",
        )
    return record


def repeated(
    view: ReadView, number: int, output: CheckedOutput, last_lsn: OutputId, own: OutputId
) -> OutputId | None:
    """The id of the output, if its namespace has one of this uuid. InvalidInputError if that one has other
    tokens, or if the uuid is one that this store is going to draw for another output; StoreError if it is of
    an append that is not finished and may be taken back.

    Args:
        own: the first LSN of the append that this output belongs to, where that has written some already.
    """
    if not output.uuid:
        return None
    record = find(view, number, output.uuid)
    if record is not None:
        require_same_content(output, record.payload.digest, record.lsn)
        _require_finished(view, record.lsn, own)
        return record.lsn
    lsn = lsn_of_drawn(output.uuid, view.node_id)
    if lsn is not None and lsn > last_lsn:
        raise own_uuid(output.uuid)
    return None


def _require_finished(view: ReadView, lsn: OutputId, own: OutputId) -> None:
    for ranges in view.unfinished():
        if ranges[0][0] != own and any(first <= lsn <= last for first, last in ranges):
            raise StoreError(
                "uuid must not be one that another append is writing",
                expected="that append to be finished",
                got=f"output {lsn}, which may still be taken back",
                remedy="Try again; nothing of this was kept.",
            )


def of_new(view: ReadView, output: CheckedOutput, lsn: OutputId) -> tuple[bytes, int, int, str]:
    """(uuid, node, principal, session id) of a row to be written."""
    if view.dbs.uuids is None:
        return b"", 0, 0, ""
    return output.uuid or drawn_uuid(view.node_id, lsn), view.node_id, 0, output.session_id


def enter(view: WriteView, record: LogRecord) -> None:
    """A row is in the log."""
    if view.dbs.uuids is not None and is_indexed(record):
        key = uuid_key(record.payload.namespace_id, record.uuid)
        view.put(key, encode_lsn(record.lsn), view.dbs.uuids)
    if view.dbs.incomplete is not None and record.incomplete and record.session_id:
        view.put(incomplete_key(record.session_id, record.lsn), b"", view.dbs.incomplete)


def leave(view: WriteView, record: LogRecord) -> None:
    """A row is in the log no more."""
    if view.dbs.uuids is not None and is_indexed(record):
        view.drop(uuid_key(record.payload.namespace_id, record.uuid), view.dbs.uuids)
    if view.dbs.incomplete is not None and record.incomplete and record.session_id:
        view.drop(incomplete_key(record.session_id, record.lsn), view.dbs.incomplete)


def incomplete(view: ReadView, session_id: str) -> list[IncompleteOutput]:
    """Incomplete outputs of a session, in id order."""
    found: list[IncompleteOutput] = []
    if view.dbs.incomplete is None:
        return found
    start = incomplete_key(session_id, 0)
    with view.txn.cursor(db=view.dbs.incomplete) as cursor:
        positioned = cursor.set_range(start)
        while positioned and cursor.key()[:16] == start[:16]:
            record = view.log_record(int.from_bytes(cursor.key()[16:], "big"))
            if record is None:
                raise StoreCorruptError(
                    f"an incomplete output of session {session_id} is not in the log",
                    remedy="Restore the data folder from a backup.",
                )
            row = view.names.by_id[record.payload.namespace_id]
            if record.session_id == session_id and not row.deleting:
                found.append(IncompleteOutput(record.lsn, row.path, record.uuid))
            positioned = cursor.next()
    return found


def note_pending(view: WriteView, first: OutputId, ranges: Sequence[Range]) -> None:
    """Rows of an append that is not finished: an open deletes them. No ranges: it is finished."""
    if view.dbs.pending is None or not 0 < first < LSN_END:
        return
    if ranges:
        view.put(log_key(first), encode_pending(ranges), view.dbs.pending)
    else:
        view.drop(log_key(first), view.dbs.pending)
