"""The namespaces of a cache: their records and their indexes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import structlog

from suffixsvc.config import Limits, validate_namespace
from suffixsvc.engine.room import Room
from suffixsvc.engine.sealing import Sealer
from suffixsvc.errors import (
    LimitExceededError,
    StoreFullError,
    TokenizerMismatchError,
    UnknownNamespaceError,
)
from suffixsvc.index import NamespaceIndex
from suffixsvc.policies import UNLIMITED
from suffixsvc.types import NamespaceRecord, Store

__all__ = ["Catalog"]

log = structlog.get_logger(__name__)

#: name of the learned tables in the store
_LEARNER_STATE = "learner"


class Catalog:
    """Namespaces come and stay. Thread-safe; its lock is not held over a call of the store.

    Args:
        store: where the records are kept, and what was learned.
        room: knows what each namespace may hold.
        indexes: of the cache by path; only this adds to it.
        limits: how many namespaces there may be.
        starting_weights: what new namespaces start from, see ``suffixsvc.core.new_learner``.
    """

    def __init__(
        self,
        store: Store,
        room: Room,
        indexes: dict[str, NamespaceIndex],
        limits: Limits,
        starting_weights: bytes | None,
    ) -> None:
        self._store = store
        self._room = room
        self._indexes = indexes
        self._limits = limits
        self._starting_weights = starting_weights
        self._lock = threading.Lock()
        self._records: dict[str, NamespaceRecord] = {}
        self._coming = 0  # being created

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, path: str) -> bool:
        return path in self._records

    def records(self) -> list[NamespaceRecord]:
        """All of them, ordered by path."""
        with self._lock:
            return sorted(self._records.values(), key=lambda record: record.path)

    def bind(self, path: str, tokenizer: str | None) -> NamespaceRecord:
        """The record of a valid path, created on first use; a tokenizer given once stays.

        Raises:
            LimitExceededError, TokenizerMismatchError.
        """
        with self._lock:
            record = self._records.get(path)
            if record is not None and (not tokenizer or record.tokenizer == tokenizer):
                return record
            if record is None and len(self._records) + self._coming >= self._limits.max_namespaces:
                raise LimitExceededError(
                    "too many namespaces",
                    expected=f"at most {self._limits.max_namespaces} (Limits.max_namespaces)",
                    remedy="Write related outputs into one namespace, or raise the limit.",
                )
            coming = record is None
            self._coming += coming
        try:
            record = self._store.add_namespace(NamespaceRecord(path, tokenizer or ""))  # no lock is held
            with self._lock:
                known = self._records.get(path)
                if known is None or not known.tokenizer:
                    self._records[path] = record
                return self._records[path]
        finally:
            with self._lock:
                self._coming -= coming

    def index_of(self, path: str) -> NamespaceIndex:
        """The index of a namespace that there is."""
        with self._lock:
            index = self._indexes.get(path)
            if index is None:
                limit = self._room.limit_of(path)
                index = self._indexes[path] = NamespaceIndex(
                    path,
                    self._starting_weights,
                    now_us=self._store.clock.now_us,
                    ledger=self._room.new_ledger(path),
                    limit_bytes=limit if limit < UNLIMITED else 0,
                )
            return index

    def chosen(self, namespace: str | None) -> list[NamespaceIndex]:
        """The index of one namespace, or of all, ordered by path. UnknownNamespaceError: it is not there."""
        if namespace is None:
            with self._lock:
                return [self._indexes[path] for path in sorted(self._indexes)]
        if validate_namespace(namespace) not in self._records:
            raise UnknownNamespaceError(
                f"no namespace {namespace!r}", remedy="Create it by writing to it first."
            )
        return [self.index_of(namespace)]

    def of_tokenizer(self, paths: Sequence[str], tokenizer: str) -> list[str]:
        """Those of the namespaces that are of a tokenizer; none where it is not known."""
        records = [self._records.get(path) for path in paths]
        return [
            each.path for each in records if each is not None and tokenizer and each.tokenizer == tokenizer
        ]

    def readable(self, path: str, reader: NamespaceRecord) -> NamespaceIndex:
        """What sessions of another namespace may draft from.

        Raises:
            UnknownNamespaceError, TokenizerMismatchError.
        """
        record = self._records.get(validate_namespace(path))
        if record is None:
            raise UnknownNamespaceError(
                f"no namespace {path!r} to read from",
                expected="an existing namespace",
                got=repr(path),
                remedy="Create it by writing to it first.",
            )
        if record.tokenizer and reader.tokenizer and record.tokenizer != reader.tokenizer:
            raise TokenizerMismatchError(
                f"namespace {path!r} holds tokens of another tokenizer",
                expected=reader.tokenizer,
                got=record.tokenizer,
                remedy="Read only namespaces of the same tokenizer.",
            )
        return self.index_of(path)

    # ------------------------------------------------------------------------------------------ a restart

    def recover(self, sealer: Sealer, progress: Callable[[int, int], None] | None) -> None:
        """Make what earlier processes left ready to be drafted from.

        Args:
            progress: called with (outputs so far, outputs in all).
        """
        for record in self._store.namespaces():
            self._records[record.path] = record
            learned = self._store.get_state(record.path, _LEARNER_STATE)
            if learned is not None:
                # Tables of another version are left alone: they are derived, and learned anew.
                self.index_of(record.path).learner.load(learned)
        sealer.sweep(self._records)
        total = self._store.stats().outputs
        done = 0

        def note(outputs: int) -> None:
            nonlocal done
            done += outputs
            if progress is not None and outputs:
                progress(done, total)

        for path in self._records:
            sealer.open(self.index_of(path), note)
            self._room.refresh(self.index_of(path))

    def keep_learned(self) -> None:
        """Leave the learned tables to the next process."""
        for path, index in list(self._indexes.items()):
            if not index.learner.changed:
                continue
            try:
                self._store.put_state(path, _LEARNER_STATE, index.learner.save())
            except StoreFullError as error:  # derived and learned anew: no reason to fail a close
                log.warning("what was learned could not be kept", namespace=path, error=str(error))
