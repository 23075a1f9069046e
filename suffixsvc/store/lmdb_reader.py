"""Read side of the LMDB store: each method is one short read transaction, or reads the last snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from suffixsvc.config import validate_uuid
from suffixsvc.store.records.state_records import decode_state, state_key
from suffixsvc.store.records.validation import check_state_name
from suffixsvc.store.transactions import identity
from suffixsvc.store.transactions.environment import Environment
from suffixsvc.store.transactions.read_view import LSN_END, ReadView
from suffixsvc.store.transactions.scans import Scans
from suffixsvc.types import (
    IncompleteOutput,
    NamespaceRecord,
    OutputId,
    OutputOutline,
    SegmentRecord,
    StoredOutput,
)

__all__ = ["LmdbReader"]

#: rows of one read transaction: an old snapshot prevents the reuse of freed pages
_OUTLINE_ROWS: Final = 4096
_SEGMENTS: Final = "segments"


class LmdbReader:
    """The reads of :class:`suffixsvc.types.Store`, of one environment. Thread-safe."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._scans = Scans(environment)

    @contextmanager
    def _view(self) -> Iterator[ReadView]:
        with self._environment.read() as (txn, snapshot):
            yield ReadView(txn, self._environment.dbs, snapshot)

    def namespaces(self) -> list[NamespaceRecord]:
        """Return all namespaces, ordered by path."""
        self._environment.require_usable()
        rows = self._environment.snapshot.names.by_path.values()
        return sorted((NamespaceRecord(r.path, r.tokenizer) for r in rows), key=lambda r: r.path)

    @property
    def node_id(self) -> int:
        """The 64-bit id of the folder; 0 in a folder older than schema 3."""
        return self._environment.snapshot.node_id

    def get(self, output_id: OutputId) -> StoredOutput:
        """Return one output; UnknownOutputError if the log does not have it."""
        with self._view() as view:
            return view.output(output_id)

    def scan(self, namespace: str | None = None, *, from_lsn: int = 0) -> Iterator[StoredOutput]:
        """Iterate over the outputs with id >= ``from_lsn`` in id order, as of one moment."""
        self._environment.require_usable()
        names = self._environment.snapshot.names
        number = None if namespace is None else names.require(namespace).namespace_id
        return self._scans.scan(number, from_lsn)

    def outline(self, namespace: str) -> Iterator[OutputOutline]:
        """Iterate over the namespace's outputs without their tokens, in id order; not one snapshot."""
        after = 0
        while True:
            with self._view() as view:
                number = view.names.require(namespace).namespace_id
                part = view.outline(number, after, _OUTLINE_ROWS)
            yield from part
            if len(part) < _OUTLINE_ROWS:
                return
            after = part[-1].output_id

    def output_ids(
        self, namespace: str, first: OutputId, last: OutputId, limit: int | None = None
    ) -> list[OutputId]:
        """Return at most ``limit`` ids of the namespace in first..last (both included), ascending."""
        with self._view() as view:
            number = view.names.require(namespace).namespace_id
            return view.lsns(number, max(first, 1) - 1, last, LSN_END if limit is None else limit)

    def find(self, namespace: str, uuid: bytes) -> OutputId | None:
        """Return the id of the output with this uuid, or None."""
        validate_uuid(uuid)
        with self._view() as view:
            record = identity.find(view, view.names.require(namespace).namespace_id, uuid)
            return None if record is None else record.lsn

    def incomplete(self, session_id: str) -> list[IncompleteOutput]:
        """Return the incomplete outputs of sessions with this id, in id order."""
        with self._view() as view:
            return identity.incomplete(view, session_id)

    @property
    def segment_folder(self) -> Path | None:
        """The folder of segment files; it need not exist."""
        return Path(self._environment.path).with_name(_SEGMENTS)

    def segments(self, namespace: str) -> list[SegmentRecord]:
        """Return the namespace's manifest, ordered by range."""
        self._environment.require_usable()
        snapshot = self._environment.snapshot
        return list(snapshot.manifests.get(snapshot.names.require(namespace).namespace_id, ()))

    def tombstones(self, namespace: str) -> dict[OutputId, int]:
        """Return deleted outputs that a segment still holds, and their token counts, ordered by id."""
        with self._view() as view:
            return view.tombstones(view.names.require(namespace).namespace_id)

    def get_state(self, namespace: str, name: str) -> bytes | None:
        """Return the blob last put under ``name``, or None."""
        check_state_name(name)
        with self._view() as view:
            key = state_key(view.names.require(namespace).namespace_id, name)
            raw = view.txn.get(key, db=view.dbs.state)
            return None if raw is None else decode_state(raw, key)
