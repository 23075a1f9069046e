"""Reads of one transaction: rows, manifests, tombstones, expiry. ``write_view.py`` lists the databases."""

from __future__ import annotations

from typing import Final

import lmdb

from suffixsvc.clock import ExpiryCutoff
from suffixsvc.errors import StoreCorruptError
from suffixsvc.store.records.identity_records import Range, decode_pending, generated_uuid
from suffixsvc.store.records.manifest import Manifest
from suffixsvc.store.records.manifest_records import decode_tombstone
from suffixsvc.store.records.output_records import (
    LogRecord,
    decode_log,
    decode_payload,
    expiry_key,
    log_key,
    namespace_row_key,
    outline_of,
    payload_key,
)
from suffixsvc.store.records.validation import unknown_output
from suffixsvc.store.transactions.databases import Databases
from suffixsvc.store.transactions.snapshot import Snapshot
from suffixsvc.types import NewOutput, OutputId, OutputOutline, StoredOutput

__all__ = ["LSN_END", "ReadView"]

_MICROSECONDS: Final = 1_000_000
#: greater than every LSN
LSN_END: Final = 2**64


class ReadView:
    """Reads of one transaction and its snapshot."""

    def __init__(self, txn: lmdb.Transaction[bytes], dbs: Databases, snapshot: Snapshot) -> None:
        self.txn = txn
        self.dbs = dbs
        self.names = snapshot.names
        self.counters = snapshot.counters
        self.manifests = snapshot.manifests
        self.node_id = snapshot.node_id

    def log_record(self, lsn: int) -> LogRecord | None:
        """Return a row of the log, or None; StoreCorruptError."""
        if not 0 < lsn < LSN_END:
            return None
        raw = self.txn.get(log_key(lsn), db=self.dbs.log)
        return None if raw is None else decode_log(raw, lsn)

    def output(self, lsn: int) -> StoredOutput:
        """Return a row with its payload; UnknownOutputError if the log does not have it."""
        record = self.log_record(lsn)
        if record is None:
            raise unknown_output(lsn)
        return self.assemble(record)

    def assemble(self, record: LogRecord) -> StoredOutput:
        """Add payload and namespace path to a row; StoreCorruptError if one is missing or does not match."""
        row = self.names.by_id.get(record.payload.namespace_id)
        raw = self.txn.get(payload_key(record.payload), db=self.dbs.payloads)
        if row is None or raw is None:
            what = "namespace" if row is None else "payload"
            raise StoreCorruptError(
                f"log record {record.lsn} refers to a missing {what}",
                remedy="Restore the data folder from a backup.",
            )
        payload = decode_payload(raw, record.payload)
        if len(payload.token_ids) != record.token_count:
            raise StoreCorruptError(
                f"log record {record.lsn} must have the token count of its payload",
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
                uuid=self.uuid_of(record),
                session_id=record.session_id,
            ),
        )

    def uuid_of(self, record: LogRecord) -> bytes:
        """Return the uuid of a row; a generated one for a row of an older schema, b"" in a folder of one."""
        if record.uuid or not self.node_id:
            return record.uuid
        return generated_uuid(self.node_id, record.lsn)

    def lsns(self, namespace_id: int | None, after: int, upto: int, limit: int) -> list[int]:
        """Return at most ``limit`` LSNs with after < LSN <= upto, ascending."""
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
        """Return at most ``limit`` rows of the namespace with LSN > ``after``, without payloads."""
        found = []
        for lsn in self.lsns(namespace_id, after, LSN_END - 1, limit):
            raw = self.txn.get(log_key(lsn), db=self.dbs.log)
            if raw is not None:
                tokens, written_us, ttl_seconds, corpus = outline_of(raw, lsn)
                found.append(OutputOutline(lsn, written_us / _MICROSECONDS, tokens, ttl_seconds, corpus))
        return found

    def manifest(self, namespace_id: int) -> Manifest:
        """Return the manifest of a namespace; empty if it has no segment."""
        return self.manifests.get(namespace_id, ())

    def tombstones(self, namespace_id: int, first: int = 0, last: int = LSN_END - 1) -> dict[OutputId, int]:
        """Return the tombstones with first <= LSN <= last: id -> token count of the deleted output."""
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

    def unfinished(self) -> list[list[Range]]:
        """Return the LSN ranges of each unfinished append."""
        if self.dbs.pending is None:
            return []
        with self.txn.cursor(db=self.dbs.pending) as cursor:
            return [decode_pending(value, key) for key, value in cursor]

    def expired(self, cutoff: ExpiryCutoff, opened_lsn: int, limit: int) -> list[int]:
        """Return at most ``limit`` LSNs of expired rows, in order of their expiry times.

        Args:
            opened_lsn: the last LSN when the store was opened.
        """
        found = self._expired(0, cutoff.earlier_us, 0, limit)
        if cutoff.earlier_us < cutoff.opened_us:  # rows between are due only because of the gap
            found += self._expired(cutoff.opened_us, cutoff.now_us, opened_lsn, limit - len(found))
        return found

    def any_expired_in_gap(self, cutoff: ExpiryCutoff) -> bool:
        """Whether the grace period retains an output when the store is opened."""
        return bool(self._expired(cutoff.earlier_us + 1, cutoff.opened_us, 0, 1))

    def _expired(self, first_us: int, last_us: int, after: int, limit: int) -> list[int]:
        """Return at most ``limit`` LSNs > ``after`` that expire in first..last (both included)."""
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
