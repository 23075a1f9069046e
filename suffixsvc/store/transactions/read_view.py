"""Reads of one transaction: rows, uuids, tombstones, expiry. ``tables.py`` lists the databases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from suffixsvc.clock import ClockReading, ExpiryCutoff
from suffixsvc.selection import Selection
from suffixsvc.store.records import keys, log_records, table_records
from suffixsvc.store.records.framing import corrupt
from suffixsvc.store.records.validation import unknown_output
from suffixsvc.store.transactions.snapshot import Manifest, Snapshot
from suffixsvc.store.transactions.tables import Database, Tables
from suffixsvc.types import IncompleteOutput, NewOutput, OutputId, OutputOutline, SegmentRecord, StoredOutput

_MICROSECONDS: Final = 1_000_000


def index_entries(record: log_records.LogRecord) -> Iterator[tuple[Database, bytes, bytes]]:
    """Yield (database, key, value) of each index entry of a row of the log."""
    lsn, number = record.lsn, record.payload.namespace_id
    yield "by_namespace", keys.namespace_row_key(number, lsn), b""
    if record.expires_us is not None:
        yield "expiry", keys.expiry_key(record.expires_us, lsn), b""
    if record.has_chosen_uuid:
        yield "uuids", keys.uuid_key(number, record.uuid), keys.log_key(lsn)
    if record.incomplete and record.session_id:
        yield "incomplete", keys.incomplete_key(record.session_id, lsn), b""


class ReadView:
    """Reads of one transaction and its snapshot."""

    def __init__(self, tables: Tables, snapshot: Snapshot) -> None:
        self.tables = tables
        self.names = snapshot.names
        self.counters = snapshot.counters
        self.manifests = snapshot.manifests
        self.node_id = snapshot.node_id
        self.history = snapshot.history
        self.principals = snapshot.principals
        self.erasure = snapshot.erasure
        self.access_controlled = snapshot.access_controlled
        self.run = snapshot.run

    def snapshot(self) -> Snapshot:
        """Return the state of the view, changes of this transaction included."""
        return Snapshot(
            self.names,
            self.counters,
            self.manifests,
            self.node_id,
            self.history,
            self.principals,
            self.erasure,
            self.access_controlled,
            self.run,
        )

    def log_record(self, lsn: int) -> log_records.LogRecord | None:
        """Return a row of the log, or None; StoreCorruptError."""
        if not 0 < lsn <= keys.LAST_LSN:
            return None
        raw = self.tables.get("log", keys.log_key(lsn))
        return None if raw is None else log_records.decode_log(raw, lsn)

    def output(self, lsn: int) -> StoredOutput:
        """Return a row with its payload; UnknownOutputError if the log does not have it."""
        record = self.log_record(lsn)
        if record is None:
            raise unknown_output(lsn)
        return self.assemble(record)

    def row(self, lsn: int) -> tuple[log_records.LogRecord, bytes]:
        """Return a row of the log with its uuid, and its encoded payload, which is not verified.

        Raises:
            StoreCorruptError: the record is damaged, or one of the two is missing.
        """
        record = self.log_record(lsn)
        payload = None if record is None else self.tables.get("payloads", keys.payload_key(record.payload))
        if record is None or payload is None:
            raise corrupt(f"log record {lsn} or its payload is missing")
        return self.identified(record), payload

    def assemble(self, record: log_records.LogRecord) -> StoredOutput:
        """Add payload and namespace path to a row; StoreCorruptError if one is missing or does not match."""
        row = self.names.by_id.get(record.payload.namespace_id)
        raw = self.tables.get("payloads", keys.payload_key(record.payload))
        if row is None or raw is None:
            what = "namespace" if row is None else "payload"
            raise corrupt(f"log record {record.lsn} refers to a missing {what}")
        payload = log_records.payload_of(record, raw)
        principal = self.principals.name_of(record.principal)
        if principal is None:
            raise corrupt(f"log record {record.lsn} refers to a missing principal", got=record.principal)
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
                uuid=self._uuid_of(record),
                session_id=record.session_id,
                principal=principal,
            ),
        )

    def _uuid_of(self, record: log_records.LogRecord) -> bytes:
        """Return the uuid of a row; a generated one for a row of an older schema, b"" in a folder of one."""
        return self.identified(record).uuid

    def identified(self, record: log_records.LogRecord) -> log_records.LogRecord:
        """Return a row with the uuid and the node id that a row of an older schema has without a record."""
        if record.uuid or not self.node_id:
            return record
        uuid = keys.generated_uuid(self.node_id, record.lsn)
        return replace(record, uuid=uuid, node_id=self.node_id)

    def lsns(
        self, number: int | None, first: int = 0, last: int = keys.LAST_LSN, limit: int | None = None
    ) -> list[int]:
        """Return at most ``limit`` LSNs of a namespace, or of all, with first <= LSN <= last, ascending."""
        first, last = max(first, 0), min(last, keys.LAST_LSN)
        if first > last:
            return []
        if number is None:
            found = self.tables.keys("log", keys.log_key(first), keys.log_key(last))
        else:
            found = self.tables.keys(
                "by_namespace", keys.namespace_row_key(number, first), keys.namespace_row_key(number, last)
            )
        return [keys.lsn_of(key) for key in islice(found, limit)]

    def outline(self, number: int, first: int, limit: int) -> list[OutputOutline]:
        """Return at most ``limit`` rows of the namespace with LSN >= ``first``, without payloads."""
        found = []
        for lsn in self.lsns(number, first, limit=limit):
            raw = self.tables.get("log", keys.log_key(lsn))
            if raw is not None:
                head = log_records.outline_of(raw, lsn)
                found.append(
                    OutputOutline(
                        lsn,
                        head.written_us / _MICROSECONDS,
                        head.tokens,
                        head.ttl_seconds,
                        head.corpus,
                        self.principals.name_of(head.principal) or "",
                        head.tail_tokens,
                        head.attribute_bytes,
                    )
                )
        return found

    def select(
        self, number: int, selection: Selection, first: int, limit: int, written_before_us: int
    ) -> tuple[list[int], int]:
        """Return the LSNs of selected rows among at most ``limit`` rows of the namespace from ``first`` on.

        Args:
            written_before_us: time up to which a row was written.

        Returns:
            (LSNs of selected rows, the last LSN that was looked at; 0: there is no further row).
        """
        lsns = self.lsns(number, first, limit=limit)
        found = []
        for lsn in lsns:
            record = self.log_record(lsn)
            if record is None or record.written_us > written_before_us:
                continue
            principal = self.principals.name_of(record.principal)
            if selection.takes(record.session_id, record.labels, principal or ""):
                found.append(lsn)
        return found, lsns[-1] if lsns else 0

    # --- identity: the uuid of a row, and incomplete outputs of a session -------------------------------
    #
    # A uuid that its writer chose is in the index "uuids", so that an output sent several times is logged
    # once. A generated one consists of node id and LSN, and needs no index; in a restored folder rows have
    # the node id of the log that was backed up. In a folder of an older schema that had no room for these
    # databases, lookups find nothing.

    def find(self, number: int, uuid: bytes) -> log_records.LogRecord | None:
        """Return the row with this uuid in a namespace, or None.

        Raises:
            StoreCorruptError: the index entry does not lead to such a row.
        """
        if not self.node_id:
            return None
        lsn = keys.lsn_of(uuid)
        if lsn <= self.counters.last_lsn:  # it may also be a chosen one
            record = self.log_record(lsn)
            if record is not None and record.payload.namespace_id == number and self._uuid_of(record) == uuid:
                return record
        raw = self.tables.get("uuids", keys.uuid_key(number, uuid))
        if raw is None:
            return None
        record = self.log_record(int.from_bytes(raw, "big"))
        if record is None or record.uuid != uuid or record.payload.namespace_id != number:
            raise corrupt(f"the index entry of uuid {uuid.hex()} must lead to an output with that uuid")
        return record

    def incomplete(self, session_id: str) -> list[IncompleteOutput]:
        """Return the incomplete outputs of sessions with this id, in id order; StoreCorruptError."""
        found: list[IncompleteOutput] = []
        first, last = keys.incomplete_key(session_id, 0), keys.incomplete_key(session_id, keys.LAST_LSN)
        for key in self.tables.keys("incomplete", first, last):
            record = self.log_record(keys.lsn_of(key))
            if record is None:
                raise corrupt(f"an incomplete output of session {session_id} is not in the log")
            row = self.names.by_id[record.payload.namespace_id]
            if record.session_id == session_id and not row.deleting:
                found.append(IncompleteOutput(record.lsn, row.path, record.uuid))
        return found

    def unfinished(self) -> list[list[table_records.Range]]:
        """Return the LSN ranges of each unfinished append."""
        return [table_records.decode_pending(value, key) for key, value in self.tables.rows("pending")]

    # --- manifest, expiry, clock --------------------------------------------------------------------------

    def manifest(self, number: int) -> Manifest:
        """Return the manifest of a namespace; empty if it has no segment."""
        return self.manifests.get(number, ())

    def segment_of(self, number: int, lsn: OutputId) -> SegmentRecord | None:
        """Return the segment of a namespace whose range contains an id, or None."""
        return next((record for record in self.manifest(number) if record.covers(lsn)), None)

    def tombstones(self, number: int, first: int = 0, last: int = keys.LAST_LSN) -> dict[OutputId, int]:
        """Return the tombstones with first <= LSN <= last: id -> token count of the deleted output."""
        rows = self.tables.rows(
            "tombstones", keys.namespace_row_key(number, first), keys.namespace_row_key(number, last)
        )
        return dict(table_records.decode_tombstone(value, key) for key, value in rows)

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
        first, last = keys.expiry_key(first_us, 0), keys.expiry_key(last_us, keys.LAST_LSN)
        lsns = map(keys.lsn_of, self.tables.keys("expiry", first, last))
        return list(islice((lsn for lsn in lsns if lsn > after), limit))

    def clock(self) -> ClockReading | None:
        """Return the stored reading of the clock; of a folder without one the time of its newest output.

        None: there is neither record nor output.
        """
        raw = self.tables.get("meta", keys.CLOCK_KEY)
        if raw is not None:
            return table_records.decode_clock(raw)
        newest = self.log_record(max(map(keys.lsn_of, self.tables.keys("log")), default=0))
        return None if newest is None else ClockReading(newest.written_us, newest.written_us)
