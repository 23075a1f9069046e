"""What one transaction does to the databases: append, delete, look up.

    namespaces    path                  -> number, fingerprint, whether it is being deleted
    log           LSN                   -> one occurrence, refers to a payload         (the truth)
    payloads      namespace, hash, slot -> token ids and segment lengths, once
    refs          namespace, hash, slot -> how many log rows refer to the payload
    by_namespace  namespace, LSN        -> nothing    (index of log)
    expiry        expiry time, LSN      -> nothing    (index of log rows that have a TTL)
    state         namespace, name       -> a blob
    uuids         namespace, uuid       -> LSN        (index of log rows whose uuid their writer chose)
    incomplete    session id, LSN       -> nothing    (index of incomplete log rows of named sessions)
    pending       first LSN             -> rows of an append that is not finished
    segments      namespace, first LSN  -> a segment file and the range of the log that it stands for
    tombstones    namespace, LSN        -> a row that was deleted and that a segment still holds
    meta          "schema", "counters", "clock", "node"

Writers run on the store's writer thread only. Whatever an operation refuses, it refuses before its
first write; the writer relies on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import lmdb

from suffixsvc.clock import ClockReading, Due
from suffixsvc.errors import StoreCorruptError, StoreError, StoreFullError, TokenizerMismatchError
from suffixsvc.store import identity
from suffixsvc.store import manifest as plans
from suffixsvc.store.clock_record import CLOCK_KEY, encode_clock
from suffixsvc.store.environment import Databases
from suffixsvc.store.identity_records import encode_node
from suffixsvc.store.manifest import Manifest
from suffixsvc.store.manifest_records import encode_segment, encode_tombstone
from suffixsvc.store.read_view import LSN_END, ReadView, unknown_output
from suffixsvc.store.records import (
    COUNTERS_KEY,
    NODE_KEY,
    SCHEMA_KEY,
    LogRecord,
    NamespaceRow,
    PayloadKey,
    decode_payload,
    decode_refs,
    encode_counters,
    encode_log,
    encode_namespace,
    encode_payload_content,
    encode_refs,
    encode_state,
    expiry_key,
    log_key,
    namespace_row_key,
    payload_key,
    state_key,
)
from suffixsvc.store.snapshot import Snapshot
from suffixsvc.store.validation import CheckedOutput
from suffixsvc.types import AppendedIds, NamespaceRecord, OutputId, SegmentRecord, StoredOutput

__all__ = ["WriteView"]


class WriteView(ReadView):
    """Writes of one transaction. ``writes`` counts them, ``deleted`` holds what rows were."""

    def __init__(self, txn: lmdb.Transaction[bytes], dbs: Databases, snapshot: Snapshot) -> None:
        super().__init__(txn, dbs, snapshot)
        self.writes = 0
        self.deleted: list[StoredOutput] = []
        self.taken_back: list[StoredOutput] = []

    def finish(self) -> None:
        """The last write before the commit."""
        if self.writes:
            self.counters = replace(self.counters, txn=self.txn.id())
            self.txn.put(COUNTERS_KEY, encode_counters(self.counters), db=self.dbs.meta)

    def touch(self) -> None:
        """Let the transaction be one, though nothing is changed."""
        self.writes += 1

    def put(self, key: bytes, value: bytes, db: lmdb._Database) -> None:
        """Write one row."""
        self.writes += 1
        self.txn.put(key, value, db=db)

    def drop(self, key: bytes, db: lmdb._Database) -> None:
        """Delete one row."""
        self.writes += 1
        self.txn.delete(key, db=db)

    def add_namespace(self, record: NamespaceRecord) -> NamespaceRecord:
        known = self.names.by_path.get(record.path)
        if known is not None:
            if not record.tokenizer or record.tokenizer == known.tokenizer:
                return NamespaceRecord(known.path, known.tokenizer)
            if known.tokenizer:
                raise TokenizerMismatchError(
                    f"namespace {record.path} holds tokens of another tokenizer",
                    expected=known.tokenizer,
                    got=record.tokenizer,
                    remedy="Use another namespace for this model.",
                )
            row = replace(known, tokenizer=record.tokenizer)
        else:
            if record.path in self.names.deleting:
                raise _being_deleted(record.path)
            number = self.counters.last_namespace_id + 1
            row = NamespaceRow(number, record.path, record.tokenizer)
            self.counters = replace(self.counters, last_namespace_id=number)
        self.put(row.path.encode("utf-8", "surrogatepass"), encode_namespace(row), self.dbs.namespaces)
        self.names = self.names.plus(row)
        return NamespaceRecord(row.path, row.tokenizer)

    def append(
        self,
        outputs: Sequence[CheckedOutput],
        written_us: int,
        create: Sequence[NamespaceRecord] = (),
        own: OutputId = 0,
    ) -> AppendedIds:
        """Log outputs; namespaces in ``create`` are made first where they are missing. ``own``: the first LSN
        that earlier transactions of the same append have written."""
        self.require_namespaces(outputs, create)
        for namespace in create:
            self.add_namespace(namespace)
        ids = AppendedIds()
        before = self.counters
        lsn, new_payloads, tokens = before.last_lsn, 0, 0
        with self.txn.cursor(db=self.dbs.payloads) as cursor:
            for place, output in enumerate(outputs):
                number = self.names.require(output.namespace).namespace_id
                there = identity.repeated(self, number, output, lsn, own)
                if there is not None:
                    ids.append(there)
                    ids.repeated.append(place)
                    continue
                lsn += 1
                key, is_new = self._intern(cursor, number, output)
                record = LogRecord(
                    lsn,
                    key,
                    len(output.payload.token_ids),
                    written_us,
                    output.ttl_seconds,
                    output.incomplete,
                    output.corpus,
                    output.prompt_tail,
                    output.labels,
                    *identity.of_new(self, output, lsn),
                )
                self.put(log_key(lsn), encode_log(record), self.dbs.log)
                self.put(namespace_row_key(number, lsn), b"", self.dbs.by_namespace)
                if record.expires_us is not None:
                    self.put(expiry_key(record.expires_us, lsn), b"", self.dbs.expiry)
                identity.enter(self, record)
                new_payloads += is_new
                tokens += record.token_count
                ids.append(lsn)
        self.counters = replace(
            before,
            last_lsn=lsn,
            outputs=before.outputs + lsn - before.last_lsn,
            payloads=before.payloads + new_payloads,
            tokens=before.tokens + tokens,
        )
        return ids

    def require_namespaces(self, outputs: Sequence[CheckedOutput], create: Sequence[NamespaceRecord]) -> None:
        """UnknownNamespaceError unless each output's is there, or will be made."""
        made = {namespace.path for namespace in create}
        for path in {output.namespace for output in outputs} - made:
            self.names.require(path)

    def _intern(
        self, cursor: lmdb.Cursor[bytes], namespace_id: int, output: CheckedOutput
    ) -> tuple[PayloadKey, bool]:
        """Store the payload or count one more reference to it; (its key, whether it is new)."""
        taken: set[int] = set()
        key = PayloadKey(namespace_id, output.digest, 0)
        raw_key = payload_key(key)
        prefix = raw_key[:20]
        positioned = cursor.set_range(prefix)
        while positioned and cursor.key().startswith(prefix):
            raw_key = cursor.key()
            key = PayloadKey(namespace_id, output.digest, int.from_bytes(raw_key[20:], "big"))
            if decode_payload(cursor.value(), key).content() == output.content:
                self.put(raw_key, encode_refs(key, self._refs(key) + 1), self.dbs.refs)
                return key, False
            taken.add(key.slot)
            positioned = cursor.next()
        if taken:  # other contents with this hash keep their slots; a forgotten one leaves a hole
            slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
            key = PayloadKey(namespace_id, output.digest, slot)
            raw_key = payload_key(key)
        raw = encode_payload_content(key, len(output.payload.token_ids), output.content)
        self.put(raw_key, raw, self.dbs.payloads)
        self.put(raw_key, encode_refs(key, 1), self.dbs.refs)
        return key, True

    def _refs(self, key: PayloadKey) -> int:
        raw = self.txn.get(payload_key(key), db=self.dbs.refs)
        if raw is None:
            raise StoreCorruptError(
                f"payload {payload_key(key).hex()} has no reference count",
                remedy="Restore the data folder from a backup.",
            )
        return decode_refs(raw, key)

    def delete(self, lsn: int, namespace: str | None = None) -> StoredOutput:
        """Remove a row, and its payload with the last reference to it."""
        record = self.log_record(lsn)
        if record is None:
            raise unknown_output(lsn, namespace)
        stored = self.assemble(record)
        if namespace is not None and stored.output.namespace != namespace:
            raise unknown_output(lsn, namespace)
        key, raw_key = record.payload, payload_key(record.payload)
        refs = self._refs(key)
        self.drop(log_key(lsn), self.dbs.log)
        self.drop(namespace_row_key(key.namespace_id, lsn), self.dbs.by_namespace)
        if record.expires_us is not None:
            self.drop(expiry_key(record.expires_us, lsn), self.dbs.expiry)
        identity.leave(self, record)
        if refs > 1:
            self.put(raw_key, encode_refs(key, refs - 1), self.dbs.refs)
        else:
            self.drop(raw_key, self.dbs.payloads)
            self.drop(raw_key, self.dbs.refs)
        self.counters = replace(
            self.counters,
            outputs=self.counters.outputs - 1,
            payloads=self.counters.payloads - (refs == 1),
            tokens=self.counters.tokens - record.token_count,
        )
        if plans.covering(self.manifest(key.namespace_id), lsn) is not None:
            self._bury(key.namespace_id, lsn, record.token_count)
        self.deleted.append(stored)
        return stored

    def take_back(self, lsns: Sequence[OutputId]) -> None:
        """Delete those of the rows that are there. They were never acknowledged, so no scan is told."""
        for lsn in lsns:
            if self.log_record(lsn) is not None:
                self.delete(lsn)
                self.taken_back.append(self.deleted.pop())

    def delete_many(self, namespace: str, lsns: Sequence[OutputId]) -> list[StoredOutput]:
        """Those of them that are there and the namespace's."""
        number = self.names.require(namespace).namespace_id
        there = [lsn for lsn in lsns if self._is_of(number, lsn)]
        return [self.delete(lsn, namespace) for lsn in there]

    def _is_of(self, number: int, lsn: int) -> bool:
        key = namespace_row_key(number, lsn) if 0 < lsn < LSN_END else b""
        return bool(key) and self.txn.get(key, db=self.dbs.by_namespace) is not None

    def delete_expired(self, due: Due, opened_lsn: int, limit: int, tokens: int) -> list[StoredOutput]:
        """At most ``limit`` rows whose time is up, and no further ones after ``tokens`` of them."""
        gone: list[StoredOutput] = []
        for lsn in self.expired(due, opened_lsn, limit):
            if tokens <= 0:
                break
            gone.append(self.delete(lsn))
            tokens -= len(gone[-1].output.token_ids)
        return gone

    def keep_clock(self, reading: ClockReading) -> None:
        self.put(CLOCK_KEY, encode_clock(reading), self.dbs.meta)

    def put_state(self, namespace: str, name: str, value: bytes) -> None:
        number = self.names.require(namespace).namespace_id
        self.put(state_key(number, name), encode_state(number, name, value), self.dbs.state)

    def upgrade(self, schema_record: bytes, node_id: int) -> None:
        """The last step to the current schema; its databases were made in this transaction."""
        self.put(SCHEMA_KEY, schema_record, self.dbs.meta)
        self.put(NODE_KEY, encode_node(node_id), self.dbs.meta)
        self.node_id = node_id

    # --- the manifest -----------------------------------------------------------------------------

    def add_segment(
        self, namespace: str, name: str, file_bytes: int, outputs: Mapping[OutputId, int]
    ) -> SegmentRecord:
        number = self.names.require(namespace).namespace_id
        done = plans.add(self.manifest(number), name, file_bytes, outputs, self._rows_in(number))
        self._enter(number, done.record, done.manifest)
        for output_id, tokens in done.deleted.items():
            self._bury(number, output_id, tokens)
        return done.record

    def replace_segments(
        self, namespace: str, names: Sequence[str], name: str, file_bytes: int, left_out: Collection[OutputId]
    ) -> SegmentRecord:
        number = self.names.require(namespace).namespace_id
        first, last = min(left_out, default=1), max(left_out, default=0)
        buried = self.tombstones(number, first, last)
        done = plans.replace(
            self.manifest(number), names, name, file_bytes, left_out, buried, self._rows_in(number)
        )
        for record in done.removed:
            self.drop(namespace_row_key(number, record.first_lsn), self.manifest_db("segments"))
        self._enter(number, done.record, done.manifest)
        for output_id in done.needless:
            self.drop(namespace_row_key(number, output_id), self.manifest_db("tombstones"))
        return done.record

    def drop_segments(self, namespace: str, names: Sequence[str]) -> None:
        number = self.names.require(namespace).namespace_id
        manifest = self.manifest(number)
        removed = plans.named(manifest, names)
        for record in removed:
            self.drop(namespace_row_key(number, record.first_lsn), self.manifest_db("segments"))
            for output_id in self.tombstones(number, record.first_lsn, record.last_lsn):
                self.drop(namespace_row_key(number, output_id), self.manifest_db("tombstones"))
        rest = tuple(record for record in manifest if record not in removed)
        self.manifests = {**self.manifests, number: rest}

    def _rows_in(self, number: int) -> plans.RowsIn:
        return lambda first, last, limit: self.lsns(
            number, first - 1, last, LSN_END if limit is None else limit
        )

    def _enter(self, number: int, record: SegmentRecord, manifest: Manifest) -> None:
        key = namespace_row_key(number, record.first_lsn)
        self.put(key, encode_segment(number, record), self.manifest_db("segments"))
        self.manifests = {**self.manifests, number: manifest}

    def _bury(self, number: int, lsn: OutputId, tokens: int) -> None:
        raw = encode_tombstone(number, lsn, tokens)
        self.put(namespace_row_key(number, lsn), raw, self.manifest_db("tombstones"))

    def manifest_db(self, name: str) -> lmdb._Database:
        """One of the manifest's; StoreFullError where there was no room for them."""
        database: lmdb._Database | None = getattr(self.dbs, name)
        if database is None:
            raise StoreFullError(
                "the data folder has no manifest yet",
                expected="room for one when the folder was opened",
                remedy="Free disk space or raise Limits.max_store_bytes, and open it again.",
            )
        return database


def _being_deleted(path: str) -> StoreError:
    return StoreError(
        f"namespace {path} is being deleted",
        expected="a namespace that is there, or a path that is free",
        remedy="Try again when it is gone; delete it again if its deletion failed.",
    )
