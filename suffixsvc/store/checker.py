"""Consistency check of all records of a store: reads every record and compares the databases.

    log row ── names a namespace ─────────────── namespaces
       ├───── refers to a payload ────────────── payloads: the content has the hash in its key
       ├───── is counted ─────────────────────── refs: the number of rows that refer to the payload
       ├───── is indexed by namespace ────────── by_namespace: no other entries
       ├───── is indexed by a chosen uuid ────── uuids: no other entries
       ├───── is indexed by session ──────────── incomplete: of incomplete rows, no other entries
       ├───── is indexed by expiry time ──────── expiry: of rows with a TTL, no other entries
       └───── or a tombstone is in its range ─── segments: rows and tombstones add up to the sealed totals

    and every key that iteration finds is found by a lookup

StoreCorruptError names the first broken invariant. Pages are verified before (``datafile.verify_pages``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import lmdb

from suffixsvc.errors import StoreCorruptError
from suffixsvc.store.records.clock_record import CLOCK_KEY, decode_clock
from suffixsvc.store.records.identity_records import incomplete_key
from suffixsvc.store.records.manifest import find_covering
from suffixsvc.store.records.manifest_records import decode_tombstone
from suffixsvc.store.records.output_records import (
    COUNTERS_KEY,
    NODE_KEY,
    SCHEMA_KEY,
    LogRecord,
    PayloadKey,
    content_hash,
    decode_log,
    decode_payload,
    decode_refs,
    decode_schema,
    expiry_key,
    namespace_row_key,
    payload_key,
)
from suffixsvc.store.records.state_records import decode_state
from suffixsvc.store.transactions.identity import find, is_indexed
from suffixsvc.store.transactions.read_view import ReadView
from suffixsvc.store.transactions.snapshot import load_snapshot

__all__ = ["check_view"]


def check_view(view: ReadView) -> None:
    """Check the databases of one transaction against each other and against the view's snapshot.

    Raises:
        StoreCorruptError: a record is damaged, or an invariant is broken.
    """
    _check_meta(view)
    rows = 0
    tokens = 0
    expiring = indexed = unfinished = 0
    references: Counter[PayloadKey] = Counter()
    sealed = _Sealed(view)
    for key, value in _items(view, view.dbs.log, 8):
        lsn = int.from_bytes(key, "big")
        record = decode_log(value, lsn)
        _check_row(view, record)
        _check_identity(view, record)
        rows += 1
        tokens += record.token_count
        expiring += record.expires_us is not None
        indexed += is_indexed(record)
        unfinished += record.incomplete and bool(record.session_id)
        references[record.payload] += 1
        sealed.count(record.payload.namespace_id, lsn, record.token_count)
    sealed.check()
    _check_payloads(view, references)
    _check_state(view)
    for what, expected, got in (
        ("outputs", view.counters.outputs, rows),
        ("tokens", view.counters.tokens, tokens),
        ("payloads", view.counters.payloads, len(references)),
        ("rows of by_namespace", rows, _entries(view, view.dbs.by_namespace)),
        ("rows of expiry", expiring, _entries(view, view.dbs.expiry)),
        ("rows of refs", len(references), _entries(view, view.dbs.refs)),
        ("rows of uuids", indexed, _entries(view, view.dbs.uuids)),
        ("rows of incomplete", unfinished, _entries(view, view.dbs.incomplete)),
    ):
        if expected != got:
            raise _broken(f"the number of {what} is wrong", expected, got)


def _check_meta(view: ReadView) -> None:
    raw = view.txn.get(SCHEMA_KEY, db=view.dbs.meta)
    if raw is None:
        raise _broken("the schema record is missing")
    decode_schema(raw)
    for key, value in _items(view, view.dbs.meta):
        if key == CLOCK_KEY:
            decode_clock(value)
        elif key not in (SCHEMA_KEY, COUNTERS_KEY, NODE_KEY):
            raise _broken(f"meta holds an unknown key {key!r}")
    found = load_snapshot(view.txn, view.dbs)
    if found.node_id != view.node_id:
        raise _broken("the node id on disk must be the one in memory", view.node_id, found.node_id)
    if found.counters != view.counters:
        raise _broken("the counters on disk must be those in memory", view.counters, found.counters)
    if found.names != view.names:
        raise _broken("the namespaces on disk must be those in memory")
    if found.manifests != {number: manifest for number, manifest in view.manifests.items() if manifest}:
        raise _broken("the manifests on disk must be those in memory")


def _check_row(view: ReadView, record: LogRecord) -> None:
    lsn, number = record.lsn, record.payload.namespace_id
    if not 0 < lsn <= view.counters.last_lsn:
        raise _broken(
            f"log record {lsn} has an LSN that was never assigned", f"1 .. {view.counters.last_lsn}", lsn
        )
    if number not in view.names.by_id:
        raise _broken(f"log record {lsn} is of an unknown namespace", got=number)
    if view.txn.get(namespace_row_key(number, lsn), db=view.dbs.by_namespace) != b"":
        raise _broken(f"log record {lsn} is not listed by its namespace")
    expires_us = record.expires_us
    if expires_us is not None and view.txn.get(expiry_key(expires_us, lsn), db=view.dbs.expiry) != b"":
        raise _broken(f"log record {lsn} is not listed by its expiry time")


def _check_identity(view: ReadView, record: LogRecord) -> None:
    lsn = record.lsn
    if is_indexed(record):
        found = find(view, record.payload.namespace_id, record.uuid)
        if found is None or found.lsn != lsn:
            raise _broken(f"log record {lsn} is not found by its uuid")
    if record.incomplete and record.session_id and view.dbs.incomplete is not None:
        key = incomplete_key(record.session_id, lsn)
        if view.txn.get(key, db=view.dbs.incomplete) != b"":
            raise _broken(f"log record {lsn} is not listed by its session")


class _Sealed:
    """Outputs and tokens found in the ranges of segments, compared with the segment records."""

    def __init__(self, view: ReadView) -> None:
        self._view = view
        self._outputs: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()

    def count(self, number: int, lsn: int, tokens: int) -> bool:
        """Count one output of the log or one tombstone; whether a segment covers it."""
        record = find_covering(self._view.manifest(number), lsn)
        if record is not None:
            self._outputs[record.name] += 1
            self._tokens[record.name] += tokens
        return record is not None

    def check(self) -> None:
        """Count the tombstones and compare, after the log was counted."""
        self._count_tombstones()
        names: set[str] = set()
        for number, manifest in self._view.manifests.items():
            if number not in self._view.names.by_id:
                raise _broken("segments are of an unknown namespace", got=number)
            for record in manifest:
                if record.name in names:
                    raise _broken(f"segment {record.name} is in the manifest twice")
                names.add(record.name)
                for what, expected, got in (
                    ("outputs", record.outputs, self._outputs[record.name]),
                    ("tokens", record.tokens, self._tokens[record.name]),
                ):
                    if expected != got:
                        raise _broken(
                            f"the number of {what} of segment {record.name} is wrong", expected, got
                        )

    def _count_tombstones(self) -> None:
        database = self._view.dbs.tombstones
        if database is None:
            return
        for key, value in _items(self._view, database, 12):
            lsn, tokens = decode_tombstone(value, key)
            number = int.from_bytes(key[:4], "big")
            if number in self._view.names.by_id and self._view.names.by_id[number].deleting:
                continue  # its manifest is deleted first
            if self._view.log_record(lsn) is not None:
                raise _broken(f"output {lsn} has a tombstone and is in the log")
            if not self.count(number, lsn, tokens):
                raise _broken(f"output {lsn} has a tombstone and is in no segment")


def _check_payloads(view: ReadView, references: Counter[PayloadKey]) -> None:
    found = 0
    for raw_key, value in _items(view, view.dbs.payloads, 24):
        number, digest = int.from_bytes(raw_key[:4], "big"), raw_key[4:20]
        key = PayloadKey(number, digest, int.from_bytes(raw_key[20:], "big"))
        payload = decode_payload(value, key)
        if content_hash(payload.content()) != digest:
            raise _broken(f"payload {raw_key.hex()} does not match its hash")
        refs = view.txn.get(raw_key, db=view.dbs.refs)
        counted = 0 if refs is None else decode_refs(refs, key)
        if counted != references[key]:
            raise _broken(f"reference count of payload {raw_key.hex()} is wrong", references[key], counted)
        if not counted:
            raise _broken(f"payload {raw_key.hex()} belongs to no log record")
        found += 1
    if found != len(references):
        txn, payloads = view.txn, view.dbs.payloads
        lost = next(k for k in references if txn.get(payload_key(k), db=payloads) is None)
        raise _broken(f"payload {payload_key(lost).hex()} is missing but referred to", references[lost], 0)


def _check_state(view: ReadView) -> None:
    for key, value in _items(view, view.dbs.state):
        number = int.from_bytes(key[:4], "big")
        if number not in view.names.by_id:
            raise _broken(f"state {key.hex()} is of an unknown namespace", got=number)
        decode_state(value, key)


def _items(
    view: ReadView, database: lmdb._Database, key_bytes: int | None = None
) -> Iterator[tuple[bytes, bytes]]:
    with view.txn.cursor(db=database) as cursor:
        for key, value in cursor:
            if key_bytes is not None and len(key) != key_bytes:
                raise _broken(f"key {key.hex()} has a wrong length", key_bytes, len(key))
            # with a damaged separator in a branch page iteration finds the key, a lookup does not
            if view.txn.get(key, db=database) != value:
                raise _broken(f"key {key.hex()} cannot be looked up")
            yield key, value


def _entries(view: ReadView, database: lmdb._Database | None) -> int:
    return 0 if database is None else view.txn.stat(db=database)["entries"]


def _broken(what: str, expected: object = None, got: object = None) -> StoreCorruptError:
    return StoreCorruptError(
        what, expected=expected, got=got, remedy="Restore the data folder from a backup and check it again."
    )
