"""What one transaction does to the databases: append, delete, look up.

    namespaces    path                  -> number, fingerprint, whether it is being deleted
    log           LSN                   -> one occurrence, refers to a payload         (the truth)
    payloads      namespace, hash, slot -> token ids and segment lengths, once
    refs          namespace, hash, slot -> how many log rows refer to the payload
    by_namespace  namespace, LSN        -> nothing    (index of log)
    expiry        expiry time, LSN      -> nothing    (index of log rows that have a TTL)
    state         namespace, name       -> a blob
    segments      namespace, first LSN  -> a segment file and the range of the log that it stands for
    tombstones    namespace, LSN        -> a row that was deleted and that a segment still holds
    meta          "schema", "counters", "clock"

Writers run on the store's writer thread only. Whatever an operation refuses, it refuses before its
first write; the writer relies on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import lmdb

from suffixsvc.clock import ClockReading, Due
from suffixsvc.errors import (
    StoreCorruptError,
    StoreError,
    StoreFullError,
    TokenizerMismatchError,
    UnknownOutputError,
)
from suffixsvc.store import manifest as plans
from suffixsvc.store.clock_record import CLOCK_KEY, encode_clock
from suffixsvc.store.environment import Databases
from suffixsvc.store.manifest import Manifest
from suffixsvc.store.manifest_records import decode_tombstone, encode_segment, encode_tombstone
from suffixsvc.store.records import (
    COUNTERS_KEY,
    SCHEMA_KEY,
    LogRecord,
    NamespaceRow,
    PayloadKey,
    decode_log,
    decode_payload,
    decode_refs,
    encode_counters,
    encode_log,
    encode_namespace,
    encode_payload,
    encode_refs,
    encode_state,
    expiry_key,
    log_key,
    namespace_row_key,
    outline_of,
    payload_key,
    state_key,
)
from suffixsvc.store.snapshot import Snapshot
from suffixsvc.store.validation import CheckedOutput
from suffixsvc.types import (
    NamespaceRecord,
    NewOutput,
    OutputId,
    OutputOutline,
    SegmentRecord,
    StoredOutput,
)

__all__ = ["ReadView", "WriteView", "unknown_output"]

_MICROSECONDS: Final = 1_000_000
_LSN_END: Final = 2**64


class ReadView:
    """Reads of one transaction."""

    def __init__(self, txn: lmdb.Transaction[bytes], dbs: Databases, snapshot: Snapshot) -> None:
        self.txn = txn
        self.dbs = dbs
        self.names = snapshot.names
        self.counters = snapshot.counters
        self.manifests = snapshot.manifests

    def log_record(self, lsn: int) -> LogRecord | None:
        if not 0 < lsn < _LSN_END:
            return None
        raw = self.txn.get(log_key(lsn), db=self.dbs.log)
        return None if raw is None else decode_log(raw, lsn)

    def output(self, lsn: int) -> StoredOutput:
        """UnknownOutputError if the log has no such row."""
        record = self.log_record(lsn)
        if record is None:
            raise unknown_output(lsn)
        return self.assemble(record)

    def assemble(self, record: LogRecord) -> StoredOutput:
        """The row with its payload and the path of its namespace."""
        row = self.names.by_id.get(record.payload.namespace_id)
        raw = self.txn.get(payload_key(record.payload), db=self.dbs.payloads)
        if row is None or raw is None:
            what = "namespace" if row is None else "payload"
            raise StoreCorruptError(
                f"log record {record.lsn} refers to a {what} that is not there",
                remedy="Restore the data folder from a backup.",
            )
        payload = decode_payload(raw, record.payload)
        if len(payload.token_ids) != record.token_count:
            raise StoreCorruptError(
                f"log record {record.lsn} and its payload disagree",
                expected=f"{record.token_count} tokens",
                got=f"{len(payload.token_ids)} tokens",
                remedy="Restore the data folder from a backup.",
            )
        return StoredOutput(
            record.lsn,
            record.written_us / _MICROSECONDS,
            NewOutput(
                namespace=row.path,
                token_ids=payload.token_ids,
                segment_lens=payload.segment_lens,
                prompt_tail=record.prompt_tail,
                labels=record.labels,
                incomplete=record.incomplete,
                ttl_seconds=record.ttl_seconds,
                corpus=record.corpus,
            ),
        )

    def lsns(self, namespace_id: int | None, after: int, upto: int, limit: int) -> list[int]:
        """At most ``limit`` LSNs with after < LSN <= upto, ascending."""
        found: list[int] = []
        if namespace_id is None:
            database, prefix = self.dbs.log, b""
        else:
            database, prefix = self.dbs.by_namespace, namespace_row_key(namespace_id, 0)[:4]
        with self.txn.cursor(db=database) as cursor:
            positioned = cursor.set_range(prefix + log_key(after + 1))
            while positioned and len(found) < limit:
                key = cursor.key()
                lsn = int.from_bytes(key[len(prefix) :], "big")
                if not key.startswith(prefix) or lsn > upto:
                    break
                found.append(lsn)
                positioned = cursor.next()
        return found

    def outline(self, namespace_id: int, after: int, limit: int) -> list[OutputOutline]:
        """At most ``limit`` rows of the namespace behind ``after``, without their payloads."""
        found = []
        for lsn in self.lsns(namespace_id, after, _LSN_END - 1, limit):
            raw = self.txn.get(log_key(lsn), db=self.dbs.log)
            if raw is not None:
                tokens, written_us, ttl_seconds, corpus = outline_of(raw, lsn)
                found.append(OutputOutline(lsn, written_us / _MICROSECONDS, tokens, ttl_seconds, corpus))
        return found

    def manifest(self, namespace_id: int) -> Manifest:
        return self.manifests.get(namespace_id, ())

    def tombstones(self, namespace_id: int, first: int = 0, last: int = _LSN_END - 1) -> dict[OutputId, int]:
        """Those with first <= LSN <= last, and the tokens of what was deleted."""
        found: dict[OutputId, int] = {}
        if self.dbs.tombstones is None:
            return found
        end = namespace_row_key(namespace_id, last)
        with self.txn.cursor(db=self.dbs.tombstones) as cursor:
            positioned = cursor.set_range(namespace_row_key(namespace_id, first))
            while positioned and cursor.key() <= end:
                output_id, tokens = decode_tombstone(cursor.value(), cursor.key())
                found[output_id] = tokens
                positioned = cursor.next()
        return found

    def expired(self, due: Due, opened_lsn: int, limit: int) -> list[int]:
        """At most ``limit`` LSNs whose time is up, the longest overdue first.

        Args:
            opened_lsn: the last one that was in the log when the store was opened.
        """
        found = self._expired(0, due.earlier_us, 0, limit)
        if due.earlier_us < due.opened_us:  # what lies between is due only because of the gap
            found += self._expired(due.opened_us, due.now_us, opened_lsn, limit - len(found))
        return found

    def any_expired_in_gap(self, due: Due) -> bool:
        """Whether the grace period spares an output at the opening."""
        return bool(self._expired(due.earlier_us + 1, due.opened_us, 0, 1))

    def _expired(self, first_us: int, last_us: int, after: int, limit: int) -> list[int]:
        """At most ``limit`` LSNs beyond ``after`` that expire in first..last (both included)."""
        found: list[int] = []
        with self.txn.cursor(db=self.dbs.expiry) as cursor:
            positioned = cursor.set_range(expiry_key(first_us, 0))
            while positioned and len(found) < limit:
                key = cursor.key()
                if int.from_bytes(key[:8], "big") > last_us:
                    break
                lsn = int.from_bytes(key[8:], "big")
                if lsn > after:
                    found.append(lsn)
                positioned = cursor.next()
        return found


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
        self, outputs: Sequence[CheckedOutput], written_us: int, create: Sequence[NamespaceRecord] = ()
    ) -> list[OutputId]:
        """Log outputs; namespaces in ``create`` are made first where they are missing."""
        self.require_namespaces(outputs, create)
        for namespace in create:
            self.add_namespace(namespace)
        ids = []
        for output in outputs:
            row = self.names.require(output.namespace)
            key, is_new = self._intern(row.namespace_id, output)
            lsn = self.counters.last_lsn + 1
            record = LogRecord(
                lsn=lsn,
                payload=key,
                token_count=len(output.payload.token_ids),
                written_us=written_us,
                ttl_seconds=output.ttl_seconds,
                incomplete=output.incomplete,
                corpus=output.corpus,
                prompt_tail=output.prompt_tail,
                labels=output.labels,
            )
            self.put(log_key(lsn), encode_log(record), self.dbs.log)
            self.put(namespace_row_key(row.namespace_id, lsn), b"", self.dbs.by_namespace)
            if record.expires_us is not None:
                self.put(expiry_key(record.expires_us, lsn), b"", self.dbs.expiry)
            self.counters = replace(
                self.counters,
                last_lsn=lsn,
                outputs=self.counters.outputs + 1,
                payloads=self.counters.payloads + is_new,
                tokens=self.counters.tokens + record.token_count,
            )
            ids.append(lsn)
        return ids

    def require_namespaces(self, outputs: Sequence[CheckedOutput], create: Sequence[NamespaceRecord]) -> None:
        """UnknownNamespaceError unless each output's is there, or will be made."""
        made = {namespace.path for namespace in create}
        for path in {output.namespace for output in outputs} - made:
            self.names.require(path)

    def _intern(self, namespace_id: int, output: CheckedOutput) -> tuple[PayloadKey, bool]:
        """Store the payload or count one more reference to it; (its key, whether it is new)."""
        taken: set[int] = set()
        start = PayloadKey(namespace_id, output.digest, 0)
        prefix = payload_key(start)[:20]
        with self.txn.cursor(db=self.dbs.payloads) as cursor:
            positioned = cursor.set_range(prefix)
            while positioned and cursor.key().startswith(prefix):
                key = replace(start, slot=int.from_bytes(cursor.key()[20:], "big"))
                if decode_payload(cursor.value(), key).content() == output.content:
                    self.put(payload_key(key), encode_refs(key, self._refs(key) + 1), self.dbs.refs)
                    return key, False
                taken.add(key.slot)
                positioned = cursor.next()
        # other contents with this hash keep their slots; a forgotten one leaves a hole
        key = replace(start, slot=next(slot for slot in range(len(taken) + 1) if slot not in taken))
        self.put(payload_key(key), encode_payload(key, output.payload), self.dbs.payloads)
        self.put(payload_key(key), encode_refs(key, 1), self.dbs.refs)
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
        key = namespace_row_key(number, lsn) if 0 < lsn < _LSN_END else b""
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

    # --- the manifest -----------------------------------------------------------------------------

    def add_manifest(self, schema_record: bytes) -> None:
        """The last step from schema 1 to 2; the databases were made in this transaction."""
        self.put(SCHEMA_KEY, schema_record, self.dbs.meta)

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
            number, first - 1, last, _LSN_END if limit is None else limit
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


def unknown_output(output_id: int, namespace: str | None = None) -> UnknownOutputError:
    where = "" if namespace is None else f" in namespace {namespace}"
    return UnknownOutputError(
        f"no output {output_id}{where}", remedy="It was never written, was forgotten, or has expired."
    )
