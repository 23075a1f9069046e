"""Output identity: uuids, the node that wrote a row, and the incomplete outputs of a session.

A row has a uuid. One that its writer chose is in the index ``uuids``, so that an output sent several times is
logged once. A generated one consists of node id and LSN, and needs no index. In a folder of an older schema
that had no room for these databases, lookups find nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from suffixsvc.errors import StoreCorruptError, StoreError
from suffixsvc.store.records.identity_records import (
    Range,
    decode_lsn,
    encode_lsn,
    encode_pending,
    generated_uuid,
    incomplete_key,
    lsn_of_generated,
    uuid_key,
)
from suffixsvc.store.records.output_records import LogRecord, log_key
from suffixsvc.store.records.validation import CheckedOutput, require_same_content, reserved_uuid
from suffixsvc.store.transactions.read_view import LSN_END, ReadView
from suffixsvc.store.transactions.row_writer import RowWriter
from suffixsvc.types import IncompleteOutput, OutputId

__all__ = [
    "add_to_indexes",
    "find",
    "find_repeated",
    "incomplete",
    "is_indexed",
    "new_row_identity",
    "put_pending",
    "remove_from_indexes",
]


def is_indexed(record: LogRecord) -> bool:
    """Whether the writer chose the row's uuid, so that it is in the index."""
    return bool(record.uuid) and record.uuid != generated_uuid(record.node_id, record.lsn)


def find(view: ReadView, number: int, uuid: bytes) -> LogRecord | None:
    """Return the row with this uuid in a namespace, or None.

    Raises:
        StoreCorruptError: the index entry does not lead to such a row.
    """
    if view.dbs.uuids is None:
        return None
    lsn = lsn_of_generated(uuid, view.node_id)
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
            f"the index entry of uuid {uuid.hex()} must lead to an output with that uuid",
            remedy="Restore the data folder from a backup.",
        )
    return record


def find_repeated(
    view: ReadView, number: int, output: CheckedOutput, last_lsn: OutputId, own: OutputId
) -> OutputId | None:
    """Return the id of the logged output with the uuid of ``output``, or None.

    Args:
        last_lsn: the last LSN assigned so far.
        own: first LSN of the append that ``output`` belongs to; 0 if it has written no row yet.

    Raises:
        InvalidInputError: the logged output has other tokens, or the store will generate this uuid.
        StoreError: the logged output belongs to an unfinished append, which may still be undone.
    """
    if not output.uuid:
        return None
    record = find(view, number, output.uuid)
    if record is not None:
        require_same_content(output, record.payload.digest, record.lsn)
        _require_finished(view, record.lsn, own)
        return record.lsn
    lsn = lsn_of_generated(output.uuid, view.node_id)
    if lsn is not None and lsn > last_lsn:
        raise reserved_uuid(output.uuid)
    return None


def _require_finished(view: ReadView, lsn: OutputId, own: OutputId) -> None:
    for ranges in view.unfinished():
        if ranges[0][0] != own and any(first <= lsn <= last for first, last in ranges):
            raise StoreError(
                "uuid must not be one that another append is writing",
                got=f"output {lsn}, which may still be undone",
                remedy="Try again; nothing of this was stored.",
            )


def new_row_identity(view: ReadView, output: CheckedOutput, lsn: OutputId) -> tuple[bytes, int, int, str]:
    """Return (uuid, node id, principal, session id) of a row to be written."""
    if view.dbs.uuids is None:
        return b"", 0, 0, ""
    return output.uuid or generated_uuid(view.node_id, lsn), view.node_id, 0, output.session_id


def add_to_indexes(view: RowWriter, record: LogRecord) -> None:
    """Add a new row to the indexes ``uuids`` and ``incomplete``."""
    if view.dbs.uuids is not None and is_indexed(record):
        key = uuid_key(record.payload.namespace_id, record.uuid)
        view.put(key, encode_lsn(record.lsn), view.dbs.uuids)
    if view.dbs.incomplete is not None and record.incomplete and record.session_id:
        view.put(incomplete_key(record.session_id, record.lsn), b"", view.dbs.incomplete)


def remove_from_indexes(view: RowWriter, record: LogRecord) -> None:
    """Remove a deleted row from the indexes ``uuids`` and ``incomplete``."""
    if view.dbs.uuids is not None and is_indexed(record):
        view.drop(uuid_key(record.payload.namespace_id, record.uuid), view.dbs.uuids)
    if view.dbs.incomplete is not None and record.incomplete and record.session_id:
        view.drop(incomplete_key(record.session_id, record.lsn), view.dbs.incomplete)


def incomplete(view: ReadView, session_id: str) -> list[IncompleteOutput]:
    """Return the incomplete outputs of sessions with this id, in id order; StoreCorruptError."""
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


def put_pending(view: RowWriter, first: OutputId, ranges: Sequence[Range]) -> None:
    """Record the rows of an unfinished append, for the next open to delete; no ranges: it is finished."""
    if view.dbs.pending is None or not 0 < first < LSN_END:
        return
    if ranges:
        view.put(log_key(first), encode_pending(ranges), view.dbs.pending)
    else:
        view.drop(log_key(first), view.dbs.pending)
