"""The store that forgets at the end of the process: the same contract, nothing on disk."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from suffixsvc.clock import StoreClock, TimeSource
from suffixsvc.config import Limits, validate_uuid
from suffixsvc.errors import (
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    SuffixError,
    TokenizerMismatchError,
    UnknownOutputError,
    unknown_namespace,
)
from suffixsvc.store import manifest as plans
from suffixsvc.store.identity_records import drawn_uuid, lsn_of_drawn
from suffixsvc.store.listeners import call_listener
from suffixsvc.store.manifest import Manifest
from suffixsvc.store.records import Payload, content_hash
from suffixsvc.store.validation import (
    CheckedOutput,
    check_namespace,
    check_now,
    check_output,
    check_state_name,
    own_uuid,
    require_same_content,
)
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

#: where so much does not fit any more, appends count as failing
_PROBE_BYTES: Final = 16 << 10

_PayloadKey = tuple[str, bytes]  # namespace, content
#: of one call that deletes what has expired
_DELETED_ROWS: Final = 256


@dataclass(slots=True)
class _Shared:
    """A payload and how many rows have it."""

    payload: Payload
    references: int


@dataclass(frozen=True, slots=True)
class _Row:
    stored: StoredOutput
    key: _PayloadKey
    expires_us: int | None


class MemoryStore:
    """A :class:`suffixsvc.types.Store` in memory. Thread-safe; futures are done when they are returned.

    Args:
        limit_bytes: arrays, labels and states together never take more; appends raise StoreFullError.
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
        self._namespaces: dict[str, NamespaceRecord] = {}
        self._rows: dict[OutputId, _Row] = {}  # in LSN order: rows are only ever added at the end
        self._payloads: dict[_PayloadKey, _Shared] = {}
        self._states: dict[tuple[str, str], bytes] = {}
        self._manifests: dict[str, Manifest] = {}
        self._tombstones: dict[str, dict[OutputId, int]] = {}
        #: by namespace and uuid; and the incomplete ones by session
        self._uuids: dict[tuple[str, bytes], OutputId] = {}
        self._incomplete: dict[str, list[OutputId]] = {}
        self._node_id = secrets.randbits(64) or 1
        self._last_lsn = 0
        self._refused = False  # an append, for lack of room
        self._bytes = 0
        self._tokens = 0

    def add_namespace(self, record: NamespaceRecord) -> NamespaceRecord:
        check_namespace(record)
        with self._lock:
            self._require_open()
            self._require_tokenizer(record)
            known = self._namespaces.get(record.path)
            if known is None or (record.tokenizer and not known.tokenizer):
                self._namespaces[record.path] = known = NamespaceRecord(record.path, record.tokenizer)
            return known

    def _require_tokenizer(self, record: NamespaceRecord) -> None:
        known = self._namespaces.get(record.path)
        if known is not None and known.tokenizer and record.tokenizer not in ("", known.tokenizer):
            raise TokenizerMismatchError(
                f"namespace {record.path} holds tokens of another tokenizer",
                expected=known.tokenizer,
                got=record.tokenizer,
                remedy="Use another namespace for this model.",
            )

    def namespaces(self) -> list[NamespaceRecord]:
        with self._lock:
            self._require_open()
            return sorted(self._namespaces.values(), key=lambda record: record.path)

    def delete_namespace(self, path: str, between: Callable[[], object] | None = None) -> int:
        with self._lock:  # one transaction: the rows are in memory as it is
            self._require_open()
            self._require_namespace(path)
            self._manifests.pop(path, None)
            rows = [row for row in self._rows.values() if row.stored.output.namespace == path]
            self._delete(rows)
            self._tombstones.pop(path, None)
            for key in [key for key in self._states if key[0] == path]:
                self._bytes -= len(self._states.pop(key))
            del self._namespaces[path]
            return len(rows)

    def append(
        self,
        outputs: Sequence[NewOutput],
        create: Sequence[NamespaceRecord] = (),
        decided: Callable[[list[OutputId] | None], None] | None = None,
    ) -> Future[list[OutputId]]:
        future: Future[list[OutputId]] = Future()
        try:
            checked = [check_output(output) for output in outputs]
            with self._lock:  # until it is decided, so that nothing of it is deleted before
                ids = self._append(checked, create)
                call_listener(decided, ids)
        except SuffixError as e:
            call_listener(decided, None)
            future.set_exception(e)
        else:
            future.set_result(ids)
        return future

    def set_deletion_listener(self, listener: Callable[[Sequence[StoredOutput]], None]) -> None:
        self._listener = listener

    def barrier(self) -> None:
        with self._lock:
            self._require_open()

    def _append(self, outputs: Sequence[CheckedOutput], create: Sequence[NamespaceRecord]) -> AppendedIds:
        written_us = self._clock.now_us()
        with self._lock:
            self._require_open()
            made = {record.path for record in create}
            for output in outputs:
                if output.namespace not in made:
                    self._require_namespace(output.namespace)
            # bytes of payloads that are new, each once
            fresh = {(o.namespace, o.content): len(o.content) for o in outputs}
            needed = sum(size for key, size in fresh.items() if key not in self._payloads)
            self._require_room(needed + sum(_row_bytes(o) for o in outputs))
            for record in create:
                self._require_tokenizer(record)
            self._require_uuids(outputs)
            for record in create:
                self.add_namespace(record)
            ids = AppendedIds()
            for place, output in enumerate(outputs):
                there = self._uuids.get((output.namespace, output.uuid))
                if there is None:
                    ids.append(self._append_one(output, written_us))
                else:
                    ids.append(there)
                    ids.repeated.append(place)
            return ids

    def _require_uuids(self, outputs: Sequence[CheckedOutput]) -> None:
        """A uuid names one output, here and in the log."""
        contents: dict[tuple[str, bytes], bytes] = {}
        for output in outputs:
            if not output.uuid:
                continue
            key = (output.namespace, output.uuid)
            there = self._uuids.get(key)
            if there is not None:
                require_same_content(output, content_hash(self._rows[there].key[1]), there)
            elif (drawn := lsn_of_drawn(output.uuid, self._node_id)) is not None and drawn > self._last_lsn:
                raise own_uuid(output.uuid)
            elif contents.setdefault(key, output.content) != output.content:
                require_same_content(output, b"", 0)

    def _append_one(self, output: CheckedOutput, written_us: int) -> OutputId:
        key = (output.namespace, output.content)
        shared = self._payloads.get(key)
        if shared is None:
            shared = self._payloads[key] = _Shared(_payload_view(output), 0)
            self._bytes += len(output.content)
        shared.references += 1
        self._last_lsn += 1
        stored = StoredOutput(
            self._last_lsn,
            written_us / 1_000_000,
            NewOutput(
                namespace=output.namespace,
                token_ids=shared.payload.token_ids,
                segment_lens=shared.payload.segment_lens,
                prompt_tail=output.prompt_tail,
                labels=output.labels,
                incomplete=output.incomplete,
                ttl_seconds=output.ttl_seconds,
                corpus=output.corpus,
                uuid=output.uuid or drawn_uuid(self._node_id, self._last_lsn),
                session_id=output.session_id,
            ),
        )
        self._uuids[output.namespace, stored.output.uuid] = self._last_lsn
        if output.incomplete and output.session_id:
            self._incomplete.setdefault(output.session_id, []).append(self._last_lsn)
        expires_us = written_us + output.ttl_seconds * 1_000_000 if output.ttl_seconds else None
        self._rows[self._last_lsn] = _Row(stored, key, expires_us)
        self._bytes += _row_bytes(output)
        self._tokens += len(output.payload.token_ids)
        return self._last_lsn

    def forget(self, namespace: str, output_id: OutputId) -> StoredOutput:
        with self._lock:
            self._require_open()
            row = self._rows.get(output_id)
            if row is None or row.stored.output.namespace != namespace:
                raise _unknown_output(output_id, namespace)
            return self._delete([row])[0]

    def _delete(self, rows: Sequence[_Row]) -> list[StoredOutput]:
        gone = [self._delete_row(row) for row in rows]
        if gone:
            call_listener(self._listener, gone)
        return gone

    def _delete_row(self, row: _Row) -> StoredOutput:
        output_id, output = row.stored.output_id, row.stored.output
        del self._rows[output_id]
        del self._uuids[output.namespace, output.uuid]
        if output.incomplete and output.session_id:
            left = self._incomplete[output.session_id]
            left.remove(output_id)
            if not left:
                del self._incomplete[output.session_id]
        if plans.covering(self._manifests.get(output.namespace, ()), output_id) is not None:
            self._tombstones.setdefault(output.namespace, {})[output_id] = len(output.token_ids)
        self._bytes -= _row_bytes(row.stored.output)
        self._tokens -= len(row.stored.output.token_ids)
        shared = self._payloads[row.key]
        shared.references -= 1
        if not shared.references:
            del self._payloads[row.key]
            self._bytes -= len(row.key[1])
        return row.stored

    def forget_many(self, namespace: str, output_ids: Sequence[OutputId]) -> list[StoredOutput]:
        with self._lock:
            self._require_open()
            self._require_namespace(namespace)
            rows = [self._rows[i] for i in sorted(set(output_ids)) if i in self._rows]
            return self._delete([row for row in rows if row.stored.output.namespace == namespace])

    @property
    def clock(self) -> StoreClock:
        return self._clock

    def expire(self, now: float | None = None) -> list[StoredOutput]:
        now_us = self._clock.now_us() if now is None else check_now(now)
        with self._lock:
            self._require_open()
            due = (r for r in self._rows.values() if r.expires_us is not None and r.expires_us <= now_us)
            return self._delete(list(islice(due, _DELETED_ROWS)))

    def get(self, output_id: OutputId) -> StoredOutput:
        with self._lock:
            self._require_open()
            row = self._rows.get(output_id)
            if row is None:
                raise _unknown_output(output_id, None)
            return row.stored

    def scan(self, namespace: str | None = None, *, from_lsn: int = 0) -> Iterator[StoredOutput]:
        with self._lock:
            self._require_open()
            if namespace is not None:
                self._require_namespace(namespace)
        return self._scan(namespace, from_lsn)

    def _scan(self, namespace: str | None, from_lsn: int) -> Iterator[StoredOutput]:
        with self._lock:
            self._require_open()
            rows = [row.stored for lsn, row in self._rows.items() if lsn >= from_lsn]
        for stored in rows:
            if namespace is None or stored.output.namespace == namespace:
                self._require_open()
                yield stored

    def outline(self, namespace: str) -> Iterator[OutputOutline]:
        for stored in self.scan(namespace):
            output = stored.output
            tokens = len(output.token_ids)
            yield OutputOutline(
                stored.output_id, stored.written_at, tokens, output.ttl_seconds, output.corpus
            )

    def output_ids(
        self, namespace: str, first: OutputId, last: OutputId, limit: int | None = None
    ) -> list[OutputId]:
        with self._lock:
            self._require_open()
            self._require_namespace(namespace)
            rows = ((i, row.stored.output.namespace) for i, row in self._rows.items() if first <= i <= last)
            return [i for i, path in rows if path == namespace][:limit]

    @property
    def node_id(self) -> int:
        return self._node_id

    def find(self, namespace: str, uuid: bytes) -> OutputId | None:
        validate_uuid(uuid)
        with self._lock:
            self._require_open()
            self._require_namespace(namespace)
            return self._uuids.get((namespace, uuid))

    def incomplete(self, session_id: str) -> list[IncompleteOutput]:
        with self._lock:
            self._require_open()
            rows = [self._rows[i].stored for i in self._incomplete.get(session_id, ())]
            return [IncompleteOutput(r.output_id, r.output.namespace, r.output.uuid) for r in rows]

    @property
    def segment_folder(self) -> Path | None:
        return None

    def segments(self, namespace: str) -> list[SegmentRecord]:
        with self._lock:
            self._require_open()
            self._require_namespace(namespace)
            return list(self._manifests.get(namespace, ()))

    def tombstones(self, namespace: str) -> dict[OutputId, int]:
        with self._lock:
            self._require_open()
            self._require_namespace(namespace)
            return dict(sorted(self._tombstones.get(namespace, {}).items()))

    def add_segment(
        self, namespace: str, name: str, file_bytes: int, outputs: Mapping[OutputId, int]
    ) -> SegmentRecord:
        with self._lock:
            manifest = self._manifest(namespace)
            done = plans.add(manifest, name, file_bytes, outputs, self._rows_in(namespace))
            self._manifests[namespace] = done.manifest
            self._tombstones.setdefault(namespace, {}).update(done.deleted)
            return done.record

    def replace_segments(
        self, namespace: str, names: Sequence[str], name: str, file_bytes: int, left_out: Sequence[OutputId]
    ) -> SegmentRecord:
        with self._lock:
            manifest = self._manifest(namespace)
            buried = self._tombstones.setdefault(namespace, {})
            done = plans.replace(
                manifest, names, name, file_bytes, left_out, buried, self._rows_in(namespace)
            )
            self._manifests[namespace] = done.manifest
            for output_id in done.needless:
                del buried[output_id]
            return done.record

    def drop_segments(self, namespace: str, names: Sequence[str]) -> None:
        with self._lock:
            manifest = self._manifest(namespace)
            removed = plans.named(manifest, names)
            self._manifests[namespace] = tuple(r for r in manifest if r not in removed)
            buried = self._tombstones.get(namespace, {})
            for output_id in [i for i in buried if plans.covering(removed, i)]:
                del buried[output_id]

    def _manifest(self, namespace: str) -> Manifest:
        self._require_open()
        self._require_namespace(namespace)
        return self._manifests.get(namespace, ())

    def _manifest_adds_up(self, namespace: str) -> bool:
        """Rows and tombstones of each range are what was sealed, and no tombstone is anywhere else."""
        manifest, buried = self._manifests[namespace], self._tombstones.get(namespace, {})
        sizes = {i: len(row.stored.output.token_ids) for i, row in self._rows.items()}
        counted = 0
        for record in manifest:
            held = {i: sizes[i] for i in self.output_ids(namespace, record.first_lsn, record.last_lsn)}
            gone = {i: tokens for i, tokens in buried.items() if record.covers(i)}
            counted += len(gone)
            if len(held) + len(gone) != record.outputs or held.keys() & gone.keys():
                return False
            if sum(held.values()) + sum(gone.values()) != record.tokens:
                return False
        return counted == len(buried)

    def _rows_in(self, namespace: str) -> plans.RowsIn:
        return lambda first, last, limit: self.output_ids(namespace, first, last, limit)

    def put_state(self, namespace: str, name: str, value: bytes) -> None:
        check_state_name(name)
        blob = bytes(value)
        with self._lock:
            self._require_open()
            self._require_namespace(namespace)
            growth = len(blob) - len(self._states.get((namespace, name), b""))
            self._require_room(growth)
            self._states[namespace, name] = blob
            self._bytes += growth

    def get_state(self, namespace: str, name: str) -> bytes | None:
        check_state_name(name)
        with self._lock:
            self._require_open()
            self._require_namespace(namespace)
            return self._states.get((namespace, name))

    def failure(self) -> StoreError | None:
        with self._lock:
            try:
                self._require_open()
                if self._refused:
                    self._require_room(_PROBE_BYTES)
                    self._refused = False
            except StoreError as error:
                return error
            return None

    def stats(self) -> StoreStats:
        with self._lock:
            self._require_open()
            return StoreStats(
                outputs=len(self._rows),
                payloads=len(self._payloads),
                tokens=self._tokens,
                bytes_used=self._bytes,
                bytes_limit=self._limit,
                last_lsn=self._last_lsn,
            )

    def check(self) -> None:
        with self._lock:
            self._require_open()
            references = Counter(row.key for row in self._rows.values())
            counted = {key: shared.references for key, shared in self._payloads.items()}
            contents = sum(len(key[1]) for key in self._payloads)
            total = contents + sum(_row_bytes(row.stored.output) for row in self._rows.values())
            total += sum(len(blob) for blob in self._states.values())
            tokens = sum(len(row.stored.output.token_ids) for row in self._rows.values())
            for what, expected, got in (
                ("reference counts", dict(references), counted),
                (
                    "contents",
                    list(self._payloads),
                    [(k[0], s.payload.content()) for k, s in self._payloads.items()],
                ),
                ("order of rows", sorted(self._rows), list(self._rows)),
                ("the last LSN", True, max(self._rows, default=0) <= self._last_lsn),
                ("bytes", total, self._bytes),
                ("tokens", tokens, self._tokens),
                ("manifests", True, all(map(self._manifest_adds_up, self._manifests))),
            ):
                if expected != got:
                    raise StoreCorruptError(f"the memory store's {what} are wrong", remedy="Report this bug.")

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed", remedy="Open another one.")

    def _require_namespace(self, path: str) -> None:
        if path not in self._namespaces:
            raise unknown_namespace(path)

    def _require_room(self, size: int) -> None:
        if size > 0 and self._bytes + size > self._limit:
            self._refused = True
            raise StoreFullError(
                "the store is full",
                expected=f"at most {self._limit} bytes",
                got=f"{self._bytes} bytes and {size} more",
                remedy="Forget outputs or raise Limits.max_store_bytes; nothing of this was kept.",
            )


def _payload_view(output: CheckedOutput) -> Payload:
    """The payload with its ids inside the content bytes, which are the key anyway: no second copy."""
    segments = output.payload.segment_lens
    ids = np.frombuffer(output.content, dtype="<i4", offset=4 + 4 * len(segments))
    return Payload(ids.astype(np.int32, copy=False), segments)


def _row_bytes(output: CheckedOutput | NewOutput) -> int:
    """Bytes of what a row has for itself."""
    labels = sum(len(name) + len(value) for name, value in output.labels.items())
    return output.prompt_tail.nbytes + labels


def _unknown_output(output_id: int, namespace: str | None) -> UnknownOutputError:
    where = "" if namespace is None else f" in namespace {namespace}"
    return UnknownOutputError(
        f"no output {output_id}{where}", remedy="It was never written, was forgotten, or has expired."
    )
