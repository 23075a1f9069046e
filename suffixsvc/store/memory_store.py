"""The in-memory store: the contract of the durable store without a disk. Its contents are lost at exit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import Final

from suffixsvc.clock import StoreClock, TimeSource
from suffixsvc.config import Limits, validate_uuid
from suffixsvc.errors import StoreClosedError, StoreError, StoreFullError, SuffixError
from suffixsvc.store.memory_tables import MemoryTables, Row, row_bytes
from suffixsvc.store.records import manifest as manifest_edits
from suffixsvc.store.records.validation import (
    CheckedOutput,
    check_namespace,
    check_now,
    check_output,
    check_state_name,
    unknown_output,
)
from suffixsvc.store.transactions.listeners import call_listener
from suffixsvc.types import (
    AppendedIds,
    IncompleteOutput,
    NamespaceRecord,
    NewOutput,
    OutputId,
    OutputOutline,
    SegmentRecord,
    StoredOutput,
    StoreStats,
)

__all__ = ["MemoryStore"]

#: a store that refused an append counts as full while this many bytes do not fit
_PROBE_BYTES: Final = 16 << 10
#: rows of one call that deletes expired outputs
_DELETED_ROWS: Final = 256


class MemoryStore:
    """A :class:`suffixsvc.types.Store` in memory. Thread-safe; futures are done when they are returned.

    Args:
        limit_bytes: limit of arrays, labels and states together; appends beyond it raise StoreFullError.
        clock: the clocks of the machine.
    """

    def __init__(
        self,
        *,
        limit_bytes: int = Limits().max_store_bytes,
        clock: TimeSource | None = None,
    ) -> None:
        self._limit = limit_bytes
        self._clock = StoreClock(grace_seconds=0.0, source=clock)
        self._listener: Callable[[Sequence[StoredOutput]], None] | None = None
        self._lock = threading.RLock()
        self._closed = False
        self._contents = MemoryTables()
        self._refused = False  # the last append, for lack of room

    def _tables(self, namespace: str | None = None) -> MemoryTables:
        """Return the tables. StoreClosedError, UnknownNamespaceError. With the lock held."""
        if self._closed:
            raise StoreClosedError("the store is closed", remedy="Open another one.")
        if namespace is not None:
            self._contents.require_namespace(namespace)
        return self._contents

    def add_namespace(self, record: NamespaceRecord) -> NamespaceRecord:
        """Create the namespace, or fill in its fingerprint."""
        check_namespace(record)
        with self._lock:
            return self._tables().add_namespace(record)

    def namespaces(self) -> list[NamespaceRecord]:
        """Return all namespaces, ordered by path."""
        with self._lock:
            return sorted(self._tables().namespaces.values(), key=lambda record: record.path)

    def delete_namespace(self, path: str, between: Callable[[], object] | None = None) -> int:
        """Delete a namespace at once; return its number of outputs."""
        with self._lock:
            return len(self._notify(self._tables(path).delete_namespace(path)))

    def append(
        self,
        outputs: Sequence[NewOutput],
        create: Sequence[NamespaceRecord] = (),
        on_committed: Callable[[list[OutputId] | None], None] | None = None,
    ) -> Future[list[OutputId]]:
        """Log outputs, all or none, in order; the future is done and holds their ids."""
        future: Future[list[OutputId]] = Future()
        try:
            checked = [check_output(output) for output in outputs]
            with self._lock:  # held for ``on_committed``, so that none of the outputs is deleted before it
                ids = self._append(self._tables(), checked, create)
                call_listener(on_committed, ids)
        except SuffixError as e:
            call_listener(on_committed, None)
            future.set_exception(e)
        else:
            future.set_result(ids)
        return future

    def _append(
        self, tables: MemoryTables, outputs: Sequence[CheckedOutput], create: Sequence[NamespaceRecord]
    ) -> AppendedIds:
        written_us = self._clock.now_us()
        created = {record.path for record in create}
        for output in outputs:
            if output.namespace not in created:
                tables.require_namespace(output.namespace)
        # bytes of new payloads, each counted once
        contents = {(o.namespace, o.content): len(o.content) for o in outputs}
        needed = sum(size for key, size in contents.items() if key not in tables.payloads)
        self._require_room(tables, needed + sum(row_bytes(o) for o in outputs))
        for record in create:
            tables.require_tokenizer(record)
        tables.require_uuids(outputs)
        for record in create:
            tables.add_namespace(check_namespace(record))
        ids = AppendedIds()
        for place, output in enumerate(outputs):
            existing = tables.uuids.get((output.namespace, output.uuid))
            if existing is None:
                ids.append(tables.add_row(output, written_us))
            else:
                ids.append(existing)
                ids.repeated.append(place)
        return ids

    def set_deletion_listener(self, listener: Callable[[Sequence[StoredOutput]], None]) -> None:
        """Call ``listener`` after every call that deleted outputs, with these."""
        self._listener = listener

    def barrier(self) -> None:
        """Return: the listener is called before a deletion returns."""
        with self._lock:
            self._tables()

    def forget(self, namespace: str, output_id: OutputId) -> StoredOutput:
        """Delete one output and return it; UnknownOutputError if it is not there."""
        with self._lock:
            row = self._tables().rows.get(output_id)
            if row is None or row.stored.output.namespace != namespace:
                raise unknown_output(output_id, namespace)
            return self._delete([row])[0]

    def _delete(self, rows: Sequence[Row]) -> list[StoredOutput]:
        return self._notify([self._contents.delete_row(row) for row in rows])

    def _notify(self, deleted: list[StoredOutput]) -> list[StoredOutput]:
        if deleted:
            call_listener(self._listener, deleted)
        return deleted

    def forget_many(self, namespace: str, output_ids: Sequence[OutputId]) -> list[StoredOutput]:
        """Delete those of the outputs that are there; return them by id."""
        with self._lock:
            tables = self._tables(namespace)
            rows = [tables.rows[i] for i in sorted(set(output_ids)) if i in tables.rows]
            return self._delete([row for row in rows if row.stored.output.namespace == namespace])

    @property
    def clock(self) -> StoreClock:
        """The clock that stamps outputs and that their TTL is counted in."""
        return self._clock

    def expire(self, now: float | None = None) -> list[StoredOutput]:
        """Delete a bounded number of expired outputs and return them; call it until it returns none."""
        now_us = self._clock.now_us() if now is None else check_now(now)
        with self._lock:
            rows = self._tables().rows.values()
            expired = (r for r in rows if r.expires_us is not None and r.expires_us <= now_us)
            return self._delete(list(islice(expired, _DELETED_ROWS)))

    def get(self, output_id: OutputId) -> StoredOutput:
        """Return one output; UnknownOutputError if it is not there."""
        with self._lock:
            row = self._tables().rows.get(output_id)
            if row is None:
                raise unknown_output(output_id)
            return row.stored

    def scan(self, namespace: str | None = None, *, from_lsn: int = 0) -> Iterator[StoredOutput]:
        """Iterate over the outputs with id >= ``from_lsn`` in id order, as of one moment."""
        with self._lock:
            self._tables(namespace)
        return self._scan(namespace, from_lsn)

    def _scan(self, namespace: str | None, from_lsn: int) -> Iterator[StoredOutput]:
        with self._lock:
            rows = [row.stored for lsn, row in self._tables().rows.items() if lsn >= from_lsn]
        for stored in rows:
            if namespace is None or stored.output.namespace == namespace:
                self._tables()
                yield stored

    def outline(self, namespace: str) -> Iterator[OutputOutline]:
        """Iterate over the namespace's outputs without their tokens, in id order."""
        for stored in self.scan(namespace):
            output = stored.output
            tokens = len(output.token_ids)
            yield OutputOutline(
                stored.output_id, stored.written_at, tokens, output.ttl_seconds, output.corpus
            )

    def output_ids(
        self, namespace: str, first: OutputId, last: OutputId, limit: int | None = None
    ) -> list[OutputId]:
        """Return at most ``limit`` ids of the namespace in first..last (both included), ascending."""
        with self._lock:
            return self._tables(namespace).output_ids(namespace, first, last, limit)

    @property
    def node_id(self) -> int:
        """The 64-bit id of the store."""
        return self._contents.node_id

    def find(self, namespace: str, uuid: bytes) -> OutputId | None:
        """Return the id of the output with this uuid, or None."""
        validate_uuid(uuid)
        with self._lock:
            return self._tables(namespace).uuids.get((namespace, uuid))

    def incomplete(self, session_id: str) -> list[IncompleteOutput]:
        """Return the incomplete outputs of sessions with this id, in id order."""
        with self._lock:
            tables = self._tables()
            rows = [tables.rows[i].stored for i in tables.incomplete.get(session_id, ())]
            return [IncompleteOutput(r.output_id, r.output.namespace, r.output.uuid) for r in rows]

    @property
    def segment_folder(self) -> Path | None:
        """None: the contents end with the process, so that nothing is sealed."""
        return None

    def segments(self, namespace: str) -> list[SegmentRecord]:
        """Return the namespace's manifest, ordered by range."""
        with self._lock:
            return list(self._tables(namespace).manifests.get(namespace, ()))

    def tombstones(self, namespace: str) -> dict[OutputId, int]:
        """Return deleted outputs that a segment still holds, and their token counts, ordered by id."""
        with self._lock:
            return dict(sorted(self._tables(namespace).tombstones.get(namespace, {}).items()))

    def add_segment(
        self, namespace: str, name: str, file_bytes: int, outputs: Mapping[OutputId, int]
    ) -> SegmentRecord:
        """Add a segment of these outputs (id -> tokens) to the manifest; ManifestError changes nothing."""
        with self._lock:
            tables = self._tables(namespace)
            manifest = tables.manifests.get(namespace, ())
            done = manifest_edits.add(manifest, name, file_bytes, outputs, tables.rows_in(namespace))
            tables.manifests[namespace] = done.manifest
            tables.tombstones.setdefault(namespace, {}).update(done.deleted)
            return done.record

    def replace_segments(
        self, namespace: str, names: Sequence[str], name: str, file_bytes: int, left_out: Sequence[OutputId]
    ) -> SegmentRecord:
        """Replace adjacent segments by one; remove the tombstones of ``left_out``."""
        with self._lock:
            tables = self._tables(namespace)
            manifest = tables.manifests.get(namespace, ())
            tombstones = tables.tombstones.setdefault(namespace, {})
            done = manifest_edits.replace(
                manifest, names, name, file_bytes, left_out, tombstones, tables.rows_in(namespace)
            )
            tables.manifests[namespace] = done.manifest
            for output_id in done.obsolete:
                del tombstones[output_id]
            return done.record

    def drop_segments(self, namespace: str, names: Sequence[str]) -> None:
        """Remove segments and the tombstones of their ranges from the manifest."""
        with self._lock:
            tables = self._tables(namespace)
            manifest = tables.manifests.get(namespace, ())
            removed = manifest_edits.require_named(manifest, names)
            tables.manifests[namespace] = tuple(r for r in manifest if r not in removed)
            tombstones = tables.tombstones.get(namespace, {})
            for output_id in [i for i in tombstones if manifest_edits.find_covering(removed, i)]:
                del tombstones[output_id]

    def put_state(self, namespace: str, name: str, value: bytes) -> None:
        """Store a small derived blob with a namespace."""
        check_state_name(name)
        blob = bytes(value)
        with self._lock:
            tables = self._tables(namespace)
            growth = len(blob) - len(tables.states.get((namespace, name), b""))
            self._require_room(tables, growth)
            tables.states[namespace, name] = blob
            tables.bytes += growth

    def get_state(self, namespace: str, name: str) -> bytes | None:
        """Return the blob last put under ``name``, or None."""
        check_state_name(name)
        with self._lock:
            return self._tables(namespace).states.get((namespace, name))

    def failure(self) -> StoreError | None:
        """Return why appends fail at this moment, or None."""
        with self._lock:
            try:
                tables = self._tables()
                if self._refused:
                    self._require_room(tables, _PROBE_BYTES)
                    self._refused = False
            except StoreError as error:
                return error
            return None

    def stats(self) -> StoreStats:
        """Return totals and the bytes in use."""
        with self._lock:
            tables = self._tables()
            return StoreStats(
                outputs=len(tables.rows),
                payloads=len(tables.payloads),
                tokens=tables.tokens,
                bytes_used=tables.bytes,
                bytes_limit=self._limit,
                last_lsn=tables.last_lsn,
            )

    def check(self) -> None:
        """Compare counters and indexes with the rows; StoreCorruptError names the first difference."""
        with self._lock:
            self._tables().check()

    def close(self) -> None:
        """Refuse further calls with StoreClosedError. Idempotent."""
        with self._lock:
            self._closed = True

    def _require_room(self, tables: MemoryTables, size: int) -> None:
        if size > 0 and tables.bytes + size > self._limit:
            self._refused = True
            raise StoreFullError(
                "the store is full",
                expected=f"at most {self._limit} bytes",
                got=f"{tables.bytes} bytes and {size} more",
                remedy="Forget outputs or raise Limits.max_store_bytes; nothing was stored.",
            )
