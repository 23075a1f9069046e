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

StoreCorruptError names the first broken invariant. Pages are verified before (``datafile.verify_pages``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

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
        StoreCorruptError: a record is damaged, or an invariant is broken.
    """
    _check_meta(view)
    counted: Counter[str] = Counter()
    references: Counter[keys.PayloadKey] = Counter()
    sealed: Counter[tuple[str, str]] = Counter()
    for key, value in _items(view, "log", 8):
        record = log_records.decode_log(value, keys.lsn_of(key))
        _check_row(view, record)
        counted.update(("log", *(database for database, _, _ in index_entries(record))))
        counted["tokens"] += record.token_count
        references[record.payload] += 1
        _count_sealed(view, sealed, record.payload.namespace_id, record.lsn, record.token_count)
    _check_deletions(view)
    _check_segments(view, sealed)
    _check_payloads(view, references)
    _check_state(view)
    for _ in _items(view, "principals", 4):  # decoded with the snapshot
        pass
    totals = view.counters
    for what, expected, got in (
        ("outputs", totals.outputs, counted["log"]),
        ("tokens", totals.tokens, counted["tokens"]),
        ("payloads", totals.payloads, len(references)),
        ("rows of refs", len(references), view.tables.entries("refs")),
        *((f"rows of {name}", counted[name], view.tables.entries(name)) for name in _INDEXES),
    ):
        if expected != got:
            raise corrupt(f"the number of {what} is wrong", expected, got)


def _check_meta(view: ReadView) -> None:
    raw = view.tables.get("meta", keys.SCHEMA_KEY)
    if raw is None:
        raise corrupt("the schema record is missing")
    table_records.decode_schema(raw)
    for key, value in _items(view, "meta"):
        if key == keys.CLOCK_KEY:
            table_records.decode_clock(value)
        elif key not in _META_KEYS:
            raise corrupt(f"meta holds an unknown key {key!r}")
    found = load_snapshot(view.tables)
    if found.node_id != view.node_id:
        raise corrupt("the node id on disk must be the one in memory", view.node_id, found.node_id)
    if found.counters != view.counters:
        raise corrupt("the counters on disk must be those in memory", view.counters, found.counters)
    if view.tables.has("deletions") and found.history != view.history:
        raise corrupt("the history on disk must be the one in memory", view.history, found.history)
    if view.tables.has("principals") and found.erasure != view.erasure:
        raise corrupt("the erasure on disk must be the one in memory", view.erasure, found.erasure)
    if found.names != view.names:
        raise corrupt("the namespaces on disk must be those in memory")
    if found.principals != view.principals:
        raise corrupt("the principals on disk must be those in memory")
    if found.manifests != view.manifests:
        raise corrupt("the manifests on disk must be those in memory")


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


def _check_deletions(view: ReadView) -> None:
    floor, last = view.history.floor, view.counters.last_lsn
    for key, value in _items(view, "deletions", 8):
        row = table_records.decode_deletion(value, key)
        if not floor < row.lsn <= last:
            raise corrupt(f"deletion {row.lsn} has an LSN out of range", f"{floor + 1} .. {last}", row.lsn)
        for lsn in (row.lsn, row.output_id):
            if view.tables.get("log", keys.log_key(lsn)) is not None:
                raise corrupt(f"output {lsn} is in the log, and deletion {row.lsn} excludes it")


def _check_segments(view: ReadView, sealed: Counter[tuple[str, str]]) -> None:
    """Compare the segment records with the outputs of the log in their ranges, to which tombstones are added.

    Args:
        sealed: outputs and tokens of the log in the ranges, by segment.
    """
    for key, value in _items(view, "tombstones", 12):
        lsn, tokens = table_records.decode_tombstone(value, key)
        number = int.from_bytes(key[:4], "big")
        if number in view.names.by_id and view.names.by_id[number].deleting:
            continue  # its manifest is deleted first
        if view.tables.get("log", keys.log_key(lsn)) is not None:
            raise corrupt(f"output {lsn} has a tombstone and is in the log")
        if not _count_sealed(view, sealed, number, lsn, tokens):
            raise corrupt(f"output {lsn} has a tombstone and is in no segment")
    names: set[str] = set()
    for number, manifest in view.manifests.items():
        if number not in view.names.by_id:
            raise corrupt("segments are of an unknown namespace", got=number)
        for record in manifest:
            if record.name in names:
                raise corrupt(f"segment {record.name} is in the manifest twice")
            names.add(record.name)
            for what, expected in (("outputs", record.outputs), ("tokens", record.tokens)):
                got = sealed[record.name, what]
                if expected != got:
                    raise corrupt(f"the number of {what} of segment {record.name} is wrong", expected, got)


def _count_sealed(
    view: ReadView, sealed: Counter[tuple[str, str]], number: int, lsn: int, tokens: int
) -> bool:
    """Count one output of the log or one tombstone; whether a segment covers it."""
    record = view.segment_of(number, lsn)
    if record is not None:
        sealed[record.name, "outputs"] += 1
        sealed[record.name, "tokens"] += tokens
    return record is not None


def _check_payloads(view: ReadView, references: Counter[keys.PayloadKey]) -> None:
    found = 0
    for raw_key, value in _items(view, "payloads", 24):
        key = keys.payload_key_of(raw_key)
        payload = log_records.decode_payload(value, key)
        if log_records.content_hash(payload.content()) != key.digest:
            raise corrupt(f"payload {raw_key.hex()} does not match its hash")
        refs = view.tables.get("refs", raw_key)
        counted = 0 if refs is None else log_records.decode_refs(refs, key)
        if counted != references[key]:
            raise corrupt(f"reference count of payload {raw_key.hex()} is wrong", references[key], counted)
        if not counted:
            raise corrupt(f"payload {raw_key.hex()} belongs to no log record")
        found += 1
    if found != len(references):
        lost = next(k for k in references if view.tables.get("payloads", keys.payload_key(k)) is None)
        raise corrupt(
            f"payload {keys.payload_key(lost).hex()} is missing but referred to", references[lost], 0
        )


def _check_state(view: ReadView) -> None:
    for key, value in _items(view, "state"):
        number = int.from_bytes(key[:4], "big")
        if number not in view.names.by_id:
            raise corrupt(f"state {key.hex()} is of an unknown namespace", got=number)
        table_records.decode_state(value, key)


def _items(view: ReadView, database: Database, key_bytes: int | None = None) -> Iterator[tuple[bytes, bytes]]:
    for key, value in view.tables.rows(database):
        if key_bytes is not None and len(key) != key_bytes:
            raise corrupt(f"key {key.hex()} has a wrong length", key_bytes, len(key))
        # with a damaged separator in a branch page iteration finds the key, a lookup does not
        if view.tables.get(database, key) != value:
            raise corrupt(f"key {key.hex()} cannot be looked up")
        yield key, value
