"""Consistency check of all records of a store: reads every record and compares the databases.

    log row ── names a namespace ─────────────── namespaces
       ├───── names a principal, or none ─────── principals: numbers from 1 on, different names
       ├───── refers to a payload ────────────── payloads: the content has the hash in its key
       ├───── is counted ─────────────────────── refs: the number of rows that refer to the payload
       ├───── is indexed by namespace ────────── by_namespace: no other entries
       ├───── is indexed by a chosen uuid ────── uuids: no other entries
       ├───── is indexed by session ──────────── incomplete: of incomplete rows, no other entries
       ├───── is indexed by expiry time ──────── expiry: of rows with a TTL, no other entries
       ├───── shares no LSN with a deletion ──── deletions: none of an output in the log, none below the floor
       └───── or a tombstone is in its range ─── segments: rows and tombstones add up to the sealed totals

    and every key that iteration finds is found by a lookup

Pages are verified before (``datafile.verify_pages``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from suffixsvc.errors import StoreCorruptError
from suffixsvc.store.records import keys, log_records, table_records
from suffixsvc.store.records.framing import corrupt
from suffixsvc.store.transactions.read_view import ReadView, index_entries
from suffixsvc.store.transactions.snapshot import load_snapshot
from suffixsvc.store.transactions.tables import Database

#: the indexes of the log, and by what they list its rows
_INDEXES: Final[dict[Database, str]] = {
    "by_namespace": "namespace",
    "expiry": "expiry time",
    "uuids": "uuid",
    "incomplete": "session",
}


#: keys of "meta" that are read with the snapshot, or checked on their own
_META_KEYS: Final = (keys.SCHEMA_KEY, keys.COUNTERS_KEY, keys.NODE_KEY, keys.HISTORY_KEY, keys.ERASURE_KEY)


def check_view(view: ReadView) -> None:
    """Check the databases of one transaction against each other and against the view's snapshot.

    Raises:
        StoreCorruptError: a record is damaged, or an invariant is broken; the first of :func:`findings`.
    """
    for error in findings(view):
        raise error


def findings(view: ReadView) -> Iterator[StoreCorruptError]:
    """Yield the damaged records and broken invariants of one transaction, at most one of each record.

    A damaged record is not counted, so that totals may be findings as well.
    """
    yield from _meta_findings(view)
    counted: Counter[str] = Counter()
    references: Counter[keys.PayloadKey] = Counter()
    sealed: Counter[tuple[str, str]] = Counter()

    def check_log(key: bytes, value: bytes) -> None:
        record = log_records.decode_log(value, keys.lsn_of(key))
        counted.update(("log", *(database for database, _, _ in index_entries(record))))
        counted["tokens"] += record.token_count
        references[record.payload] += 1
        _count_sealed(view, sealed, record.payload.namespace_id, record.lsn, record.token_count)
        _check_row(view, record)

    yield from _checked(view, "log", check_log, 8)
    yield from _checked(view, "deletions", partial(_check_deletion, view), 8)
    yield from _checked(view, "tombstones", partial(_check_tombstone, view, sealed), 12)
    yield from _segment_findings(view, sealed)
    found: set[keys.PayloadKey] = set()
    yield from _checked(view, "payloads", partial(_check_payload, view, references, found), 24)
    for lost in references.keys() - found:
        name = keys.payload_key(lost).hex()
        yield corrupt(f"payload {name} is missing but referred to", references[lost], 0)
    yield from _checked(view, "state", partial(_check_state, view))
    yield from _checked(view, "principals", lambda _key, _value: None, 4)  # decoded with the snapshot
    totals = view.counters
    for what, expected, got in (
        ("outputs", totals.outputs, counted["log"]),
        ("tokens", totals.tokens, counted["tokens"]),
        ("payloads", totals.payloads, len(references)),
        ("rows of refs", len(references), view.tables.entries("refs")),
        *((f"rows of {name}", counted[name], view.tables.entries(name)) for name in _INDEXES),
    ):
        if expected != got:
            yield corrupt(f"the number of {what} is wrong", expected, got)


def _checked(
    view: ReadView,
    database: Database,
    check: Callable[[bytes, bytes], None],
    key_bytes: int | None = None,
) -> Iterator[StoreCorruptError]:
    """Call ``check`` with every key and value of a database; yield its errors."""
    for key, value in view.tables.rows(database):
        try:
            if key_bytes is not None and len(key) != key_bytes:
                raise corrupt(f"key {key.hex()} has a wrong length", key_bytes, len(key))
            # with a damaged separator in a branch page iteration finds the key, a lookup does not
            if view.tables.get(database, key) != value:
                raise corrupt(f"key {key.hex()} cannot be looked up")
            check(key, value)
        except StoreCorruptError as error:
            yield error


def _meta_findings(view: ReadView) -> Iterator[StoreCorruptError]:
    raw = view.tables.get("meta", keys.SCHEMA_KEY)
    if raw is None:
        yield corrupt("the schema record is missing")

    def check_meta(key: bytes, value: bytes) -> None:
        if key == keys.SCHEMA_KEY:
            table_records.decode_schema(value)
        elif key == keys.CLOCK_KEY:
            table_records.decode_clock(value)
        elif key not in _META_KEYS:
            raise corrupt(f"meta holds an unknown key {key!r}")

    yield from _checked(view, "meta", check_meta)
    try:
        found = load_snapshot(view.tables)
    except StoreCorruptError as error:
        yield error
        return
    if found.node_id != view.node_id:
        yield corrupt("the node id on disk must be the one in memory", view.node_id, found.node_id)
    if found.counters != view.counters:
        yield corrupt("the counters on disk must be those in memory", view.counters, found.counters)
    if view.tables.has("deletions") and found.history != view.history:
        yield corrupt("the history on disk must be the one in memory", view.history, found.history)
    if view.tables.has("principals") and found.erasure != view.erasure:
        yield corrupt("the erasure on disk must be the one in memory", view.erasure, found.erasure)
    if found.access_controlled != view.access_controlled:
        yield corrupt(
            "the mark of access control on disk must be the one in memory",
            view.access_controlled,
            found.access_controlled,
        )
    if found.names != view.names:
        yield corrupt("the namespaces on disk must be those in memory")
    if found.principals != view.principals:
        yield corrupt("the principals on disk must be those in memory")
    if found.manifests != view.manifests:
        yield corrupt("the manifests on disk must be those in memory")


def _check_row(view: ReadView, record: log_records.LogRecord) -> None:
    lsn, number = record.lsn, record.payload.namespace_id
    if not 0 < lsn <= view.counters.last_lsn:
        raise corrupt(
            f"log record {lsn} has an LSN that was never assigned", f"1 .. {view.counters.last_lsn}", lsn
        )
    if number not in view.names.by_id:
        raise corrupt(f"log record {lsn} is of an unknown namespace", got=number)
    if view.principals.name_of(record.principal) is None:
        raise corrupt(f"log record {lsn} is of an unknown principal", got=record.principal)
    for database, key, value in index_entries(record):
        if view.tables.get(database, key) != value:
            raise corrupt(f"log record {lsn} is not listed by its {_INDEXES[database]}")


def _check_deletion(view: ReadView, key: bytes, value: bytes) -> None:
    floor, last = view.history.floor, view.counters.last_lsn
    row = table_records.decode_deletion(value, key)
    if not floor < row.lsn <= last:
        raise corrupt(f"deletion {row.lsn} has an LSN out of range", f"{floor + 1} .. {last}", row.lsn)
    for lsn in (row.lsn, row.output_id):
        if view.tables.get("log", keys.log_key(lsn)) is not None:
            raise corrupt(f"output {lsn} is in the log, and deletion {row.lsn} excludes it")


def _check_tombstone(view: ReadView, sealed: Counter[tuple[str, str]], key: bytes, value: bytes) -> None:
    lsn, tokens = table_records.decode_tombstone(value, key)
    number = int.from_bytes(key[:4], "big")
    if number in view.names.by_id and view.names.by_id[number].deleting:
        return  # its manifest is deleted first
    if view.tables.get("log", keys.log_key(lsn)) is not None:
        raise corrupt(f"output {lsn} has a tombstone and is in the log")
    if not _count_sealed(view, sealed, number, lsn, tokens):
        raise corrupt(f"output {lsn} has a tombstone and is in no segment")


def _segment_findings(view: ReadView, sealed: Counter[tuple[str, str]]) -> Iterator[StoreCorruptError]:
    """Compare the segment records with the outputs and tombstones in their ranges.

    Args:
        sealed: outputs and tokens of the log and of tombstones in the ranges, by segment.
    """
    names: set[str] = set()
    for number, manifest in view.manifests.items():
        if number not in view.names.by_id:
            yield corrupt("segments are of an unknown namespace", got=number)
        for record in manifest:
            if record.name in names:
                yield corrupt(f"segment {record.name} is in the manifest twice")
            names.add(record.name)
            for what, expected in (("outputs", record.outputs), ("tokens", record.tokens)):
                got = sealed[record.name, what]
                if expected != got:
                    yield corrupt(f"the number of {what} of segment {record.name} is wrong", expected, got)


def _count_sealed(
    view: ReadView, sealed: Counter[tuple[str, str]], number: int, lsn: int, tokens: int
) -> bool:
    """Count one output of the log or one tombstone; whether a segment covers it."""
    record = view.segment_of(number, lsn)
    if record is not None:
        sealed[record.name, "outputs"] += 1
        sealed[record.name, "tokens"] += tokens
    return record is not None


def _check_payload(
    view: ReadView,
    references: Counter[keys.PayloadKey],
    found: set[keys.PayloadKey],
    raw_key: bytes,
    value: bytes,
) -> None:
    key = keys.payload_key_of(raw_key)
    found.add(key)
    payload = log_records.decode_payload(value, key)
    if log_records.content_hash(payload.content()) != key.digest:
        raise corrupt(f"payload {raw_key.hex()} does not match its hash")
    refs = view.tables.get("refs", raw_key)
    counted = 0 if refs is None else log_records.decode_refs(refs, key)
    if counted != references[key]:
        raise corrupt(f"reference count of payload {raw_key.hex()} is wrong", references[key], counted)
    if not counted:
        raise corrupt(f"payload {raw_key.hex()} belongs to no log record")


def _check_state(view: ReadView, key: bytes, value: bytes) -> None:
    number = int.from_bytes(key[:4], "big")
    if number not in view.names.by_id:
        raise corrupt(f"state {key.hex()} is of an unknown namespace", got=number)
    table_records.decode_state(value, key)
