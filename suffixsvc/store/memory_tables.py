"""Tables of the in-memory store: rows, payloads, indexes, manifests and their byte counts."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from suffixsvc.errors import StoreCorruptError, TokenizerMismatchError, unknown_namespace
from suffixsvc.store.records import manifest as manifest_edits
from suffixsvc.store.records.identity_records import generated_uuid, lsn_of_generated
from suffixsvc.store.records.manifest import Manifest
from suffixsvc.store.records.output_records import Payload, content_hash
from suffixsvc.store.records.validation import CheckedOutput, require_same_content, reserved_uuid
from suffixsvc.types import NamespaceRecord, NewOutput, OutputId, StoredOutput

__all__ = ["MemoryTables", "Row", "row_bytes"]

_PayloadKey = tuple[str, bytes]  # namespace, content


@dataclass(slots=True)
class _SharedPayload:
    """A payload and the number of rows that refer to it."""

    payload: Payload
    references: int


@dataclass(frozen=True, slots=True)
class Row:
    """One occurrence of an output."""

    stored: StoredOutput
    key: _PayloadKey
    expires_us: int | None  #: microseconds since the epoch; None: never


class MemoryTables:
    """The contents of an in-memory store. Not thread-safe.

    Attributes:
        rows: by LSN, ascending: rows are only added at the end.
        payloads: by namespace and content.
        uuids: by namespace and uuid.
        incomplete: LSNs of incomplete rows, by session id.
        bytes: bytes of payloads, row labels and prompt tails, and states.
        tokens: tokens of all rows.
    """

    def __init__(self) -> None:
        self.namespaces: dict[str, NamespaceRecord] = {}
        self.rows: dict[OutputId, Row] = {}
        self.payloads: dict[_PayloadKey, _SharedPayload] = {}
        self.states: dict[tuple[str, str], bytes] = {}
        self.manifests: dict[str, Manifest] = {}
        self.tombstones: dict[str, dict[OutputId, int]] = {}
        self.uuids: dict[tuple[str, bytes], OutputId] = {}
        self.incomplete: dict[str, list[OutputId]] = {}
        self.node_id = secrets.randbits(64) or 1
        self.last_lsn = 0
        self.bytes = 0
        self.tokens = 0

    def require_namespace(self, path: str) -> None:
        """Raise UnknownNamespaceError if the namespace does not exist."""
        if path not in self.namespaces:
            raise unknown_namespace(path)

    def require_tokenizer(self, record: NamespaceRecord) -> None:
        """Raise TokenizerMismatchError if the namespace holds tokens of another tokenizer."""
        known = self.namespaces.get(record.path)
        if known is not None and known.tokenizer and record.tokenizer not in ("", known.tokenizer):
            raise TokenizerMismatchError(
                f"namespace {record.path} holds tokens of another tokenizer",
                expected=known.tokenizer,
                got=record.tokenizer,
                remedy="Use another namespace for this model.",
            )

    def require_uuids(self, outputs: Sequence[CheckedOutput]) -> None:
        """Raise InvalidInputError if a uuid is reserved, or has other tokens in the log or in ``outputs``."""
        contents: dict[tuple[str, bytes], bytes] = {}
        for output in outputs:
            if not output.uuid:
                continue
            key = (output.namespace, output.uuid)
            existing = self.uuids.get(key)
            if existing is not None:
                require_same_content(output, content_hash(self.rows[existing].key[1]), existing)
            elif (lsn := lsn_of_generated(output.uuid, self.node_id)) is not None and lsn > self.last_lsn:
                raise reserved_uuid(output.uuid)
            elif contents.setdefault(key, output.content) != output.content:
                require_same_content(output, b"", 0)

    def add_namespace(self, record: NamespaceRecord) -> NamespaceRecord:
        """Create the namespace, or fill in its fingerprint."""
        self.require_tokenizer(record)
        known = self.namespaces.get(record.path)
        if known is None or (record.tokenizer and not known.tokenizer):
            self.namespaces[record.path] = known = NamespaceRecord(record.path, record.tokenizer)
        return known

    def add_row(self, output: CheckedOutput, written_us: int) -> OutputId:
        """Log one output; return its id."""
        key = (output.namespace, output.content)
        shared = self.payloads.get(key)
        if shared is None:
            shared = self.payloads[key] = _SharedPayload(_payload_view(output), 0)
            self.bytes += len(output.content)
        shared.references += 1
        self.last_lsn += 1
        stored = StoredOutput(
            self.last_lsn,
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
                uuid=output.uuid or generated_uuid(self.node_id, self.last_lsn),
                session_id=output.session_id,
            ),
        )
        self.uuids[output.namespace, stored.output.uuid] = self.last_lsn
        if output.incomplete and output.session_id:
            self.incomplete.setdefault(output.session_id, []).append(self.last_lsn)
        expires_us = written_us + output.ttl_seconds * 1_000_000 if output.ttl_seconds else None
        self.rows[self.last_lsn] = Row(stored, key, expires_us)
        self.bytes += row_bytes(output)
        self.tokens += len(output.payload.token_ids)
        return self.last_lsn

    def delete_row(self, row: Row) -> StoredOutput:
        """Delete a row, and its payload with the last reference; add a tombstone if a segment holds it."""
        output_id, output = row.stored.output_id, row.stored.output
        del self.rows[output_id]
        del self.uuids[output.namespace, output.uuid]
        if output.incomplete and output.session_id:
            left = self.incomplete[output.session_id]
            left.remove(output_id)
            if not left:
                del self.incomplete[output.session_id]
        if manifest_edits.find_covering(self.manifests.get(output.namespace, ()), output_id) is not None:
            self.tombstones.setdefault(output.namespace, {})[output_id] = len(output.token_ids)
        self.bytes -= row_bytes(output)
        self.tokens -= len(output.token_ids)
        shared = self.payloads[row.key]
        shared.references -= 1
        if not shared.references:
            del self.payloads[row.key]
            self.bytes -= len(row.key[1])
        return row.stored

    def delete_namespace(self, path: str) -> list[StoredOutput]:
        """Delete a namespace with its rows, states, manifest and tombstones; return the rows."""
        self.manifests.pop(path, None)
        deleted = [self.delete_row(r) for r in [*self.rows.values()] if r.stored.output.namespace == path]
        self.tombstones.pop(path, None)
        for key in [key for key in self.states if key[0] == path]:
            self.bytes -= len(self.states.pop(key))
        del self.namespaces[path]
        return deleted

    def output_ids(
        self, namespace: str, first: OutputId, last: OutputId, limit: int | None = None
    ) -> list[OutputId]:
        """Return at most ``limit`` ids of the namespace in first..last (both included), ascending."""
        rows = ((i, row.stored.output.namespace) for i, row in self.rows.items() if first <= i <= last)
        return [i for i, path in rows if path == namespace][:limit]

    def rows_in(self, namespace: str) -> manifest_edits.RowsIn:
        """Return :meth:`output_ids` of one namespace."""
        return lambda first, last, limit: self.output_ids(namespace, first, last, limit)

    def check(self) -> None:
        """Compare counters and indexes with the rows; StoreCorruptError names the first difference."""
        references = Counter(row.key for row in self.rows.values())
        counted = {key: shared.references for key, shared in self.payloads.items()}
        contents = sum(len(key[1]) for key in self.payloads)
        total = contents + sum(row_bytes(row.stored.output) for row in self.rows.values())
        total += sum(len(blob) for blob in self.states.values())
        tokens = sum(len(row.stored.output.token_ids) for row in self.rows.values())
        payloads = [(key[0], shared.payload.content()) for key, shared in self.payloads.items()]
        for what, expected, got in (
            ("reference counts", dict(references), counted),
            ("contents", list(self.payloads), payloads),
            ("order of rows", sorted(self.rows), list(self.rows)),
            ("the last LSN", True, max(self.rows, default=0) <= self.last_lsn),
            ("bytes", total, self.bytes),
            ("tokens", tokens, self.tokens),
            ("manifests", True, all(map(self._manifest_adds_up, self.manifests))),
        ):
            if expected != got:
                raise StoreCorruptError(f"the memory store's {what} are wrong", remedy="Report this bug.")

    def _manifest_adds_up(self, namespace: str) -> bool:
        """Whether rows and tombstones of each range are those sealed, and no tombstone is outside a range."""
        manifest: Manifest = self.manifests[namespace]
        tombstones: Mapping[OutputId, int] = self.tombstones.get(namespace, {})
        sizes = {i: len(row.stored.output.token_ids) for i, row in self.rows.items()}
        counted = 0
        for record in manifest:
            present = {i: sizes[i] for i in self.output_ids(namespace, record.first_lsn, record.last_lsn)}
            deleted = {i: tokens for i, tokens in tombstones.items() if record.covers(i)}
            counted += len(deleted)
            if len(present) + len(deleted) != record.outputs or present.keys() & deleted.keys():
                return False
            if sum(present.values()) + sum(deleted.values()) != record.tokens:
                return False
        return counted == len(tombstones)


def _payload_view(output: CheckedOutput) -> Payload:
    """Return the payload with its ids as a view of the content bytes, which are the key anyway."""
    segments = output.payload.segment_lens
    ids = np.frombuffer(output.content, dtype="<i4", offset=4 + 4 * len(segments))
    return Payload(ids.astype(np.int32, copy=False), segments)


def row_bytes(output: CheckedOutput | NewOutput) -> int:
    """Return the bytes of a row without its payload: prompt tail and labels."""
    labels = sum(len(name) + len(value) for name, value in output.labels.items())
    return output.prompt_tail.nbytes + labels
