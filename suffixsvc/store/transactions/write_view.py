"""Writes of one transaction: outputs, namespaces, states. ``tables.py`` lists the databases.

Views are used on one thread at a time. An operation that raises because of its arguments should do so before
its first write: then the other operations of its transaction need not be repeated.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from suffixsvc.clock import ClockReading, ExpiryCutoff
from suffixsvc.errors import (
    InvalidInputError,
    LimitExceededError,
    StoreError,
    namespace_being_deleted,
    tokenizer_mismatch,
)
from suffixsvc.store.records import keys, log_records, table_records
from suffixsvc.store.records.framing import corrupt, encode_text
from suffixsvc.store.records.validation import CheckedOutput, unknown_output
from suffixsvc.store.transactions.read_view import ReadView, index_entries
from suffixsvc.store.transactions.snapshot import Snapshot
from suffixsvc.store.transactions.tables import Database, Tables
from suffixsvc.types import AppendedIds, NamespaceRecord, OutputId, SegmentRecord, StoredOutput

#: deletions that the log holds: a reader that has followed it up to an older one begins again
MAX_DELETIONS: Final = 1 << 16
#: principals that the store knows, all of which are in memory
MAX_PRINCIPALS: Final = 1 << 16


class WriteView(ReadView):
    """Reads and writes of one transaction.

    Args:
        tables, snapshot: see :class:`ReadView`.
        lowest_lsn: the least LSN to assign, unless the log is there already.

    Attributes:
        writes: number of row writes so far; 0 means that the transaction changes nothing.
        deleted: rows that were deleted.
        undone: rows of interrupted appends that were deleted; scans do not receive them.
    """

    def __init__(self, tables: Tables, snapshot: Snapshot, lowest_lsn: OutputId = 1) -> None:
        super().__init__(tables, snapshot)
        self._lowest_lsn = lowest_lsn
        self.writes = 0
        self.deleted: list[StoredOutput] = []
        self.undone: list[StoredOutput] = []

    def put(self, database: Database, key: bytes, value: bytes) -> None:
        """Write one row."""
        self.writes += 1
        self.tables.put(database, key, value)

    def drop(self, database: Database, key: bytes) -> None:
        """Delete one row."""
        self.writes += 1
        self.tables.drop(database, key)

    def touch(self) -> None:
        """Make the transaction commit even if it changes no row."""
        self.writes += 1

    def finish(self, reading: ClockReading | None = None) -> None:
        """Write the counters, and a reading of the clock, if anything was written; last before the commit."""
        if self.writes:
            self.counters = replace(self.counters, txn=self.tables.txn)
            if reading is not None:
                self.tables.put("meta", keys.CLOCK_KEY, table_records.encode_clock(reading))
            self.tables.put("meta", keys.COUNTERS_KEY, table_records.encode_counters(self.counters))

    def put_schema(self, created_us: int) -> None:
        """Write schema, node and history record: of a new folder, or of one whose new databases were just
        created.

        The node id is 64 random bits, not all zero; a folder that has one keeps it.
        """
        self._put_schema(table_records.SCHEMA_VERSION, created_us)
        self.put_node(self.node_id)
        if self.tables.get("meta", keys.HISTORY_KEY) is None:
            self.put_history(table_records.History(self.counters.last_lsn))

    def put_access_controlled(self, value: bool) -> None:
        """Write whether a server with access control has served the log."""
        raw = self.tables.get("meta", keys.SCHEMA_KEY)
        if raw is None:
            raise corrupt("the schema record is missing")
        schema, created_us, _ = table_records.decode_schema(raw)
        self.access_controlled = value
        self._put_schema(schema, created_us)

    def _put_schema(self, schema: int, created_us: int) -> None:
        raw = table_records.encode_schema(schema, created_us, access_controlled=self.access_controlled)
        self.put("meta", keys.SCHEMA_KEY, raw)

    def put_node(self, node_id: int = 0) -> None:
        """Write the node id; 0: a new one, so that readers that followed the log begin again."""
        if not node_id:
            self.put_history(table_records.History(self.counters.last_lsn))
        self.node_id = node_id or secrets.randbits(64) or 1
        self.put("meta", keys.NODE_KEY, table_records.encode_node(self.node_id))

    def put_erasure(self, lsn: OutputId) -> None:
        """Write the LSN up to which deleted texts are still to be erased from the disk."""
        self.erasure = lsn
        self.touch()
        if self.tables.has("principals"):
            self.put("meta", keys.ERASURE_KEY, table_records.encode_erasure(lsn))

    def restore_counters(self, *, last_lsn: OutputId, last_namespace_id: int) -> None:
        """Set the numbers that the log has assigned, which are at least those of its rows."""
        self.counters = replace(self.counters, last_lsn=last_lsn, last_namespace_id=last_namespace_id)
        self.touch()

    # --- namespaces and states ----------------------------------------------------------------------------

    def add_namespace(self, record: NamespaceRecord) -> NamespaceRecord:
        """Create the namespace, or fill in its fingerprint. TokenizerMismatchError, StoreError."""
        known = self.names.by_path.get(record.path)
        if known is not None:
            if not record.tokenizer or record.tokenizer == known.tokenizer:
                return NamespaceRecord(known.path, known.tokenizer)
            if known.tokenizer:
                raise tokenizer_mismatch(record.path, known.tokenizer, record.tokenizer)
            row = replace(known, tokenizer=record.tokenizer)
        elif record.path in self.names.deleting:
            raise namespace_being_deleted(record.path)
        else:
            number = self.counters.last_namespace_id + 1
            row = table_records.NamespaceRow(number, record.path, record.tokenizer)
            self.counters = replace(self.counters, last_namespace_id=number)
        self.put_namespace(row)
        return NamespaceRecord(row.path, row.tokenizer)

    def put_namespace(self, row: table_records.NamespaceRow) -> None:
        """Write the row of a namespace."""
        self.put("namespaces", encode_text(row.path), table_records.encode_namespace(row))
        self.names = self.names.plus(row)

    def put_state(self, namespace: str, name: str, value: bytes) -> None:
        """Write a state of a namespace. UnknownNamespaceError."""
        number = self.names.require(namespace)
        self.put("state", keys.state_key(number, name), table_records.encode_state(number, name, value))

    # --- appends ------------------------------------------------------------------------------------------

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
            UnknownNamespaceError, TokenizerMismatchError, InvalidInputError, StoreError.
        """
        self.require_namespaces(outputs, create)
        for namespace in create:
            self.add_namespace(namespace)
        ids = AppendedIds()
        for place, output in enumerate(outputs):
            number = self.names.require(output.namespace)
            there = self._find_repeated(number, output, own)
            if there is not None:
                ids.append(there)
                ids.repeated.append(place)
                continue
            lsn = self._next_lsn()
            key, is_new = self._intern(number, output)
            record = log_records.LogRecord(
                lsn,
                key,
                len(output.token_ids),
                written_us,
                output.ttl_seconds,
                output.incomplete,
                output.corpus,
                output.prompt_tail,
                dict(output.labels),
            )
            if self.node_id:  # not in a folder of an older schema
                uuid = output.uuid or keys.generated_uuid(self.node_id, lsn)
                record = replace(record, uuid=uuid, node_id=self.node_id, session_id=output.session_id)
            if output.principal:
                record = replace(record, principal=self._principal_number(output.principal))
            self._put_record(record, is_new=is_new)
            ids.append(lsn)
        return ids

    def put_row(self, record: log_records.LogRecord, payload: bytes) -> None:
        """Write a row of another log with its LSN, and its encoded payload unless an equal row has it."""
        raw_key = keys.payload_key(record.payload)
        is_new = self.tables.get("refs", raw_key) is None
        if is_new:
            self.put("payloads", raw_key, payload)
        refs = 1 if is_new else self._refs(record.payload) + 1
        self.put("refs", raw_key, log_records.encode_refs(record.payload, refs))
        self._put_record(record, is_new=is_new)

    def _put_record(self, record: log_records.LogRecord, *, is_new: bool) -> None:
        """Write a log record and its index entries; ``is_new``: its payload has no other row."""
        self.put("log", keys.log_key(record.lsn), log_records.encode_log(record))
        for database, index_key, value in index_entries(record):
            self.put(database, index_key, value)
        self._count(1, is_new, record.token_count, last_lsn=max(self.counters.last_lsn, record.lsn))

    def _principal_number(self, name: str) -> int:
        """Return the number of a principal, which is added if it is new.

        Raises:
            StoreFullError: the folder is of an older schema, without room for the current one.
            LimitExceededError: there are too many.
        """
        number = self.principals.numbers.get(name)
        if number is not None:
            return number
        number = len(self.principals.names) + 1
        if number > MAX_PRINCIPALS:
            raise LimitExceededError(
                "principals of a store must not be too many",
                expected=f"at most {MAX_PRINCIPALS}",
                got=f"{name!r} besides these",
                remedy="Write with a principal that wrote before.",
            )
        self.put_principal(name)
        return number

    def put_principal(self, name: str) -> None:
        """Write the record of a new principal, with the next number."""
        self.principals = self.principals.plus(name)
        number = len(self.principals.names)
        self.put("principals", keys.principal_key(number), table_records.encode_principal(number, name))

    def _count(self, outputs: int, payloads: int, tokens: int, **more: int) -> None:
        """Add to the totals."""
        old = self.counters
        self.counters = replace(
            old,
            outputs=old.outputs + outputs,
            payloads=old.payloads + payloads,
            tokens=old.tokens + tokens,
            **more,
        )

    def require_namespaces(self, outputs: Sequence[CheckedOutput], create: Sequence[NamespaceRecord]) -> None:
        """Raise UnknownNamespaceError unless the namespace of each output exists or is in ``create``."""
        created = {namespace.path for namespace in create}
        for path in {output.namespace for output in outputs} - created:
            self.names.require(path)

    def _find_repeated(self, number: int, output: CheckedOutput, own: OutputId) -> OutputId | None:
        """Return the id of the logged output with the uuid of ``output``, or None.

        Args:
            own: first LSN of the append that ``output`` belongs to; 0 if it has written no row yet.

        Raises:
            InvalidInputError: the logged output has other tokens, or the store will generate this uuid.
            StoreError: the logged output belongs to an unfinished append, which may still be undone.
        """
        if not output.uuid:
            return None
        record = self.find(number, output.uuid)
        if record is not None:
            if record.payload.digest != output.digest:
                raise InvalidInputError(
                    "uuid must name one output",
                    expected=f"the tokens of output {record.lsn}, which has this uuid",
                    got="other tokens",
                    remedy="Choose another uuid for another output.",
                )
            for ranges in self.unfinished():
                if ranges[0][0] != own and any(first <= record.lsn <= last for first, last in ranges):
                    raise StoreError(
                        "uuid must not be one that another append is writing",
                        got=f"output {record.lsn}, which may still be undone",
                        remedy="Try again; nothing of this was stored.",
                    )
            return record.lsn
        lsn = keys.lsn_of_generated(output.uuid, self.node_id)
        if lsn is not None and lsn > self.counters.last_lsn:
            raise InvalidInputError(
                "uuid must not be one that this store generates",
                expected="16 bytes that do not start with the id of the node",
                got=output.uuid.hex(),
            )
        return None

    def _intern(self, number: int, output: CheckedOutput) -> tuple[keys.PayloadKey, bool]:
        """Store the payload or add a reference to it; return (its key, whether it is new)."""
        taken: set[int] = set()
        first, last = (
            keys.payload_key(keys.PayloadKey(number, output.digest, slot)) for slot in (0, 2**32 - 1)
        )
        for raw_key, value in self.tables.rows("payloads", first, last):
            key = keys.payload_key_of(raw_key)
            if log_records.decode_payload(value, key).content() == output.content:
                self.put("refs", raw_key, log_records.encode_refs(key, self._refs(key) + 1))
                return key, False
            taken.add(key.slot)
        # other contents can have this hash; the lowest free slot is used
        slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
        key = keys.PayloadKey(number, output.digest, slot)
        self.put(
            "payloads",
            keys.payload_key(key),
            log_records.encode_payload(key, len(output.token_ids), output.content),
        )
        self.put("refs", keys.payload_key(key), log_records.encode_refs(key, 1))
        return key, True

    def _refs(self, key: keys.PayloadKey) -> int:
        raw = self.tables.get("refs", keys.payload_key(key))
        if raw is None:
            raise corrupt(f"payload {keys.payload_key(key).hex()} has no reference count")
        return log_records.decode_refs(raw, key)

    def put_pending(self, first: OutputId, ranges: Sequence[table_records.Range]) -> None:
        """Record the rows of an unfinished append, for the next open to delete; no ranges: it is finished."""
        if not self.node_id or not 0 < first <= keys.LAST_LSN:  # a folder of an older schema
            return
        if ranges:
            self.put("pending", keys.log_key(first), table_records.encode_pending(ranges))
        else:
            self.drop("pending", keys.log_key(first))

    # --- deletions ----------------------------------------------------------------------------------------

    def delete(self, lsn: int) -> StoredOutput:
        """Delete a row, and its payload with the last reference to it. UnknownOutputError."""
        record = self.log_record(lsn)
        if record is None:
            raise unknown_output(lsn)
        stored = self.assemble(record)
        self.remove_row(record)
        number = record.payload.namespace_id
        if self.segment_of(number, lsn) is not None:
            self.put_tombstone(number, lsn, record.token_count)
        if not self.names.by_id[number].deleting:  # the namespace's own deletion is in the log
            self.put_deletion(number, lsn, stored.output.uuid)
        self.deleted.append(stored)
        return stored

    def remove_row(self, record: log_records.LogRecord) -> None:
        """Remove a row with its index entries, and its payload with the last reference to it."""
        key, raw_key = record.payload, keys.payload_key(record.payload)
        refs = self._refs(key)
        self.drop("log", keys.log_key(record.lsn))
        for database, index_key, _ in index_entries(record):
            self.drop(database, index_key)
        if refs > 1:
            self.put("refs", raw_key, log_records.encode_refs(key, refs - 1))
        else:
            self.drop("payloads", raw_key)
            self.drop("refs", raw_key)
        self._count(-1, -(refs == 1), -record.token_count)

    def put_deletion(self, number: int, output_id: OutputId = 0, uuid: bytes = bytes(16)) -> None:
        """Log the deletion of an output, or of the whole namespace; the oldest one gives way to it.

        An older folder without room for the database has none.
        """
        if not self.tables.has("deletions"):
            return
        lsn = self._next_lsn()
        row = table_records.DeletionRow(lsn, output_id, number, uuid)
        self.put("deletions", keys.log_key(lsn), table_records.encode_deletion(row))
        self.counters = replace(self.counters, last_lsn=lsn)
        if self.tables.entries("deletions") > MAX_DELETIONS:
            oldest = next(self.tables.keys("deletions"))
            self.drop("deletions", oldest)
            self.put_history(replace(self.history, floor=keys.lsn_of(oldest)))

    def _next_lsn(self) -> OutputId:
        """Return the LSN to assign next; the first one of a run is recorded."""
        lsn = max(self.counters.last_lsn + 1, self._lowest_lsn)
        if self.tables.has("deletions") and self.history.run_of(lsn) != self.run:
            self.put_history(self.history.with_run(lsn, self.run))
        return lsn

    def put_history(self, history: table_records.History) -> None:
        """Write the history of the log."""
        self.history = history
        self.put("meta", keys.HISTORY_KEY, table_records.encode_history(history))

    def put_tombstone(self, number: int, lsn: OutputId, tokens: int) -> None:
        """Write the tombstone of a deleted output."""
        self.put(
            "tombstones",
            keys.namespace_row_key(number, lsn),
            table_records.encode_tombstone(number, lsn, tokens),
        )

    def undo_append(self, lsns: Sequence[OutputId]) -> None:
        """Delete existing rows of an interrupted append into ``undone``; they were never acknowledged."""
        for lsn in lsns:
            if self.log_record(lsn) is not None:
                self.delete(lsn)
                self.undone.append(self.deleted.pop())

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

    # --- the manifest, whose edits are in manifest.py -----------------------------------------------------

    def set_manifest(self, number: int, records: Sequence[SegmentRecord]) -> None:
        """Replace the manifest of a namespace in the view."""
        manifests = {other: manifest for other, manifest in self.manifests.items() if other != number}
        if records:
            manifests[number] = tuple(sorted(records, key=lambda record: record.first_lsn))
        self.manifests = manifests
