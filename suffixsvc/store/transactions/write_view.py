"""Writes of one transaction: outputs, namespaces, states, the manifest.

    namespaces    path                  -> number, fingerprint, whether it is being deleted
    log           LSN                   -> one occurrence, refers to a payload      (authoritative)
    payloads      namespace, hash, slot -> token ids and segment lengths, once
    refs          namespace, hash, slot -> number of log rows that refer to the payload
    by_namespace  namespace, LSN        -> nothing    (index of log)
    expiry        expiry time, LSN      -> nothing    (index of log rows with a TTL)
    state         namespace, name       -> a blob
    uuids         namespace, uuid       -> LSN        (index of log rows with a chosen uuid)
    incomplete    session id, LSN       -> nothing    (index of incomplete log rows of named sessions)
    pending       first LSN             -> rows of an unfinished append
    segments      namespace, first LSN  -> a segment file and its range of the log
    tombstones    namespace, LSN        -> a deleted row that a segment still holds
    meta          "schema", "counters", "clock", "node"

Views are used on the writer thread only. An operation that raises because of its arguments must do so before
its first write; the writer relies on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import lmdb

from suffixsvc.clock import ClockReading, ExpiryCutoff
from suffixsvc.errors import StoreCorruptError, StoreError, StoreFullError, TokenizerMismatchError
from suffixsvc.store.records import manifest as manifest_edits
from suffixsvc.store.records.clock_record import CLOCK_KEY, encode_clock
from suffixsvc.store.records.identity_records import encode_node
from suffixsvc.store.records.manifest import Manifest
from suffixsvc.store.records.manifest_records import encode_segment, encode_tombstone
from suffixsvc.store.records.output_records import (
    NODE_KEY,
    SCHEMA_KEY,
    LogRecord,
    NamespaceRow,
    PayloadKey,
    decode_payload,
    decode_refs,
    encode_log,
    encode_namespace,
    encode_payload,
    encode_refs,
    expiry_key,
    log_key,
    namespace_row_key,
    payload_key,
)
from suffixsvc.store.records.state_records import encode_state, state_key
from suffixsvc.store.records.validation import CheckedOutput, unknown_output
from suffixsvc.store.transactions import identity
from suffixsvc.store.transactions.databases import Databases
from suffixsvc.store.transactions.read_view import LSN_END
from suffixsvc.store.transactions.row_writer import RowWriter
from suffixsvc.store.transactions.snapshot import Snapshot
from suffixsvc.types import AppendedIds, NamespaceRecord, OutputId, SegmentRecord, StoredOutput

__all__ = ["WriteView"]


class WriteView(RowWriter):
    """Writes of one transaction.

    Attributes:
        deleted: rows that were deleted.
        undone: rows of interrupted appends that were deleted; scans do not receive them.
    """

    def __init__(self, txn: lmdb.Transaction[bytes], dbs: Databases, snapshot: Snapshot) -> None:
        super().__init__(txn, dbs, snapshot)
        self.deleted: list[StoredOutput] = []
        self.undone: list[StoredOutput] = []

    def add_namespace(self, record: NamespaceRecord) -> NamespaceRecord:
        """Create the namespace, or fill in its fingerprint. TokenizerMismatchError, StoreError."""
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
        """Log outputs and return their ids.

        Args:
            outputs: validated outputs.
            written_us: time stamp, in microseconds of store time.
            create: namespaces to create first, where they are missing.
            own: first LSN that earlier transactions of the same append have written; 0 if none.

        Raises:
            UnknownNamespaceError, TokenizerMismatchError, InvalidInputError, StoreError: before any write of
                this append.
        """
        self.require_namespaces(outputs, create)
        for namespace in create:
            self.add_namespace(namespace)
        ids = AppendedIds()
        before = self.counters
        lsn, new_payloads, tokens = before.last_lsn, 0, 0
        with self.txn.cursor(db=self.dbs.payloads) as cursor:
            for place, output in enumerate(outputs):
                number = self.names.require(output.namespace).namespace_id
                there = identity.find_repeated(self, number, output, lsn, own)
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
                    *identity.new_row_identity(self, output, lsn),
                )
                self.put(log_key(lsn), encode_log(record), self.dbs.log)
                self.put(namespace_row_key(number, lsn), b"", self.dbs.by_namespace)
                if record.expires_us is not None:
                    self.put(expiry_key(record.expires_us, lsn), b"", self.dbs.expiry)
                identity.add_to_indexes(self, record)
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
        """Raise UnknownNamespaceError unless the namespace of each output exists or is in ``create``."""
        created = {namespace.path for namespace in create}
        for path in {output.namespace for output in outputs} - created:
            self.names.require(path)

    def _intern(
        self, cursor: lmdb.Cursor[bytes], namespace_id: int, output: CheckedOutput
    ) -> tuple[PayloadKey, bool]:
        """Store the payload or add a reference to it; return (its key, whether it is new)."""
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
        if taken:  # other contents have this hash; the lowest free slot is reused
            slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
            key = PayloadKey(namespace_id, output.digest, slot)
            raw_key = payload_key(key)
        raw = encode_payload(key, len(output.payload.token_ids), output.content)
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
        """Delete a row, and its payload with the last reference to it. UnknownOutputError."""
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
        identity.remove_from_indexes(self, record)
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
        if manifest_edits.find_covering(self.manifest(key.namespace_id), lsn) is not None:
            self._put_tombstone(key.namespace_id, lsn, record.token_count)
        self.deleted.append(stored)
        return stored

    def undo_append(self, lsns: Sequence[OutputId]) -> None:
        """Delete existing rows of an interrupted append into ``undone``; they were never acknowledged."""
        for lsn in lsns:
            if self.log_record(lsn) is not None:
                self.delete(lsn)
                self.undone.append(self.deleted.pop())

    def delete_many(self, namespace: str, lsns: Sequence[OutputId]) -> list[StoredOutput]:
        """Delete those of the rows that exist in the namespace."""
        number = self.names.require(namespace).namespace_id
        existing = [lsn for lsn in lsns if self._is_of(number, lsn)]
        return [self.delete(lsn, namespace) for lsn in existing]

    def _is_of(self, number: int, lsn: int) -> bool:
        key = namespace_row_key(number, lsn) if 0 < lsn < LSN_END else b""
        return bool(key) and self.txn.get(key, db=self.dbs.by_namespace) is not None

    def delete_expired(
        self, cutoff: ExpiryCutoff, opened_lsn: int, limit: int, tokens: int
    ) -> list[StoredOutput]:
        """Delete at most ``limit`` expired rows, until they have ``tokens`` tokens; at least one row."""
        removed: list[StoredOutput] = []
        for lsn in self.expired(cutoff, opened_lsn, limit):
            if tokens <= 0:
                break
            removed.append(self.delete(lsn))
            tokens -= len(removed[-1].output.token_ids)
        return removed

    def put_clock(self, reading: ClockReading) -> None:
        """Write the clock record."""
        self.put(CLOCK_KEY, encode_clock(reading), self.dbs.meta)

    def put_state(self, namespace: str, name: str, value: bytes) -> None:
        """Write a state of a namespace. UnknownNamespaceError."""
        number = self.names.require(namespace).namespace_id
        self.put(state_key(number, name), encode_state(number, name, value), self.dbs.state)

    def upgrade(self, schema_record: bytes, node_id: int) -> None:
        """Write the records of the current schema, whose databases were created in this transaction."""
        self.put(SCHEMA_KEY, schema_record, self.dbs.meta)
        self.put(NODE_KEY, encode_node(node_id), self.dbs.meta)
        self.node_id = node_id

    # --- the manifest -----------------------------------------------------------------------------

    def add_segment(
        self, namespace: str, name: str, file_bytes: int, outputs: Mapping[OutputId, int]
    ) -> SegmentRecord:
        """Add a segment to the manifest, with tombstones of outputs deleted since it was read."""
        number = self.names.require(namespace).namespace_id
        done = manifest_edits.add(self.manifest(number), name, file_bytes, outputs, self._rows_in(number))
        self._put_segment(number, done.record, done.manifest)
        for output_id, tokens in done.deleted.items():
            self._put_tombstone(number, output_id, tokens)
        return done.record

    def replace_segments(
        self, namespace: str, names: Sequence[str], name: str, file_bytes: int, left_out: Collection[OutputId]
    ) -> SegmentRecord:
        """Replace segments by one and remove the tombstones of ``left_out``."""
        number = self.names.require(namespace).namespace_id
        first, last = min(left_out, default=1), max(left_out, default=0)
        tombstones = self.tombstones(number, first, last)
        done = manifest_edits.replace(
            self.manifest(number), names, name, file_bytes, left_out, tombstones, self._rows_in(number)
        )
        for record in done.removed:
            self.drop(namespace_row_key(number, record.first_lsn), self.manifest_db("segments"))
        self._put_segment(number, done.record, done.manifest)
        for output_id in done.obsolete:
            self.drop(namespace_row_key(number, output_id), self.manifest_db("tombstones"))
        return done.record

    def drop_segments(self, namespace: str, names: Sequence[str]) -> None:
        """Remove segments and the tombstones of their ranges."""
        number = self.names.require(namespace).namespace_id
        manifest = self.manifest(number)
        removed = manifest_edits.require_named(manifest, names)
        for record in removed:
            self.drop(namespace_row_key(number, record.first_lsn), self.manifest_db("segments"))
            for output_id in self.tombstones(number, record.first_lsn, record.last_lsn):
                self.drop(namespace_row_key(number, output_id), self.manifest_db("tombstones"))
        rest = tuple(record for record in manifest if record not in removed)
        self.manifests = {**self.manifests, number: rest}

    def _rows_in(self, number: int) -> manifest_edits.RowsIn:
        return lambda first, last, limit: self.lsns(
            number, first - 1, last, LSN_END if limit is None else limit
        )

    def _put_segment(self, number: int, record: SegmentRecord, manifest: Manifest) -> None:
        key = namespace_row_key(number, record.first_lsn)
        self.put(key, encode_segment(number, record), self.manifest_db("segments"))
        self.manifests = {**self.manifests, number: manifest}

    def _put_tombstone(self, number: int, lsn: OutputId, tokens: int) -> None:
        raw = encode_tombstone(number, lsn, tokens)
        self.put(namespace_row_key(number, lsn), raw, self.manifest_db("tombstones"))

    def manifest_db(self, name: str) -> lmdb._Database:
        """Return a database of the manifest; StoreFullError in an older folder that could not be upgraded."""
        database: lmdb._Database | None = getattr(self.dbs, name)
        if database is None:
            raise StoreFullError(
                "the data folder must have a manifest",
                expected="room for one when the folder was opened",
                remedy="Free disk space or raise Limits.max_store_bytes, and open it again.",
            )
        return database


def _being_deleted(path: str) -> StoreError:
    return StoreError(
        f"namespace {path} is being deleted",
        remedy="Try again when it is deleted; delete it again if its deletion failed.",
    )
