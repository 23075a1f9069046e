"""What one transaction reads: rows, manifests, tombstones, what is due. ``tables.py`` lists the databases."""

from __future__ import annotations

from typing import Final

import lmdb

from suffixsvc.clock import Due
from suffixsvc.errors import StoreCorruptError, UnknownOutputError
from suffixsvc.store.environment import Databases
from suffixsvc.store.identity_records import Range, decode_pending, drawn_uuid
from suffixsvc.store.manifest import Manifest
from suffixsvc.store.manifest_records import decode_tombstone
from suffixsvc.store.records import (
    LogRecord,
    decode_log,
    decode_payload,
    expiry_key,
    log_key,
    namespace_row_key,
    outline_of,
    payload_key,
)
from suffixsvc.store.snapshot import Snapshot
from suffixsvc.types import NewOutput, OutputId, OutputOutline, StoredOutput

__all__ = ["LSN_END", "ReadView", "unknown_output"]

_MICROSECONDS: Final = 1_000_000
#: no LSN is so high
LSN_END: Final = 2**64


class ReadView:
    """Reads of one transaction."""

    def __init__(self, txn: lmdb.Transaction[bytes], dbs: Databases, snapshot: Snapshot) -> None:
        self.txn = txn
        self.dbs = dbs
        self.names = snapshot.names
        self.counters = snapshot.counters
        self.manifests = snapshot.manifests
        self.node_id = snapshot.node_id

    def log_record(self, lsn: int) -> LogRecord | None:
        if not 0 < lsn < LSN_END:
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
                uuid=self.uuid_of(record),
                session_id=record.session_id,
            ),
        )

    def uuid_of(self, record: LogRecord) -> bytes:
        """Of a row of an older schema the one it would have been given; b"" in a folder of such a schema."""
        if record.uuid or not self.node_id:
            return record.uuid
        return drawn_uuid(self.node_id, record.lsn)

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
        for lsn in self.lsns(namespace_id, after, LSN_END - 1, limit):
            raw = self.txn.get(log_key(lsn), db=self.dbs.log)
            if raw is not None:
                tokens, written_us, ttl_seconds, corpus = outline_of(raw, lsn)
                found.append(OutputOutline(lsn, written_us / _MICROSECONDS, tokens, ttl_seconds, corpus))
        return found

    def manifest(self, namespace_id: int) -> Manifest:
        return self.manifests.get(namespace_id, ())

    def tombstones(self, namespace_id: int, first: int = 0, last: int = LSN_END - 1) -> dict[OutputId, int]:
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

    def unfinished(self) -> list[list[Range]]:
        """The rows of appends that are not finished."""
        if self.dbs.pending is None:
            return []
        with self.txn.cursor(db=self.dbs.pending) as cursor:
            return [decode_pending(value, key) for key, value in cursor]

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


def unknown_output(output_id: int, namespace: str | None = None) -> UnknownOutputError:
    where = "" if namespace is None else f" in namespace {namespace}"
    return UnknownOutputError(
        f"no output {output_id}{where}", remedy="It was never written, was forgotten, or has expired."
    )
