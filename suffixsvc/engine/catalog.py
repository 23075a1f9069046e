"""Namespaces of a cache: creation, tokenizer binding, deletion, and recovery at open."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import structlog

from suffixsvc.config import Limits, validate_namespace
from suffixsvc.engine.base.index_table import IndexTable, record_of
from suffixsvc.engine.limits.quota_manager import QuotaManager
from suffixsvc.engine.sealing.segment_loader import SegmentLoader
from suffixsvc.errors import (
    LimitExceededError,
    NamespaceInUseError,
    StoreError,
    StoreFullError,
    TokenizerMismatchError,
    UnknownNamespaceError,
    unknown_namespace,
)
from suffixsvc.index import NamespaceIndex
from suffixsvc.store.records.validation import check_namespace
from suffixsvc.types import NamespaceRecord, Store

__all__ = ["Catalog"]

log = structlog.get_logger(__name__)

#: name of the learned tables in the store
_LEARNER_STATE = "learner"


class Catalog:
    """The namespaces of one cache. Thread-safe; its lock is not held during a call of the store.

    A namespace is stored with its first output, in the same transaction. Before that it exists, with its
    tokenizer, as long as it is used (:class:`IndexTable`).

    Args:
        store: holds the records and the learned tables.
        quotas: policies of the namespaces.
        indexes: the indexes of the cache; only this class adds to it.
        limits: maximum number of namespaces.
        starting_weights: initial weights of new namespaces, see ``suffixsvc.core.new_learner``.
    """

    def __init__(
        self,
        store: Store,
        quotas: QuotaManager,
        indexes: IndexTable,
        limits: Limits,
        starting_weights: bytes | None,
    ) -> None:
        self._store = store
        self._quotas = quotas
        self._indexes = indexes
        self._limits = limits
        self._starting_weights = starting_weights
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._indexes)

    def __contains__(self, path: str) -> bool:
        return self._indexes.get(path) is not None

    def records(self) -> list[NamespaceRecord]:
        """The records of all namespaces, ordered by path."""
        return [record_of(index) for index in sorted(self._indexes.values(), key=lambda index: index.path)]

    # ------------------------------------------------------------------------------------ lookup, creation

    def bind(self, path: str, tokenizer: str | None) -> NamespaceIndex:
        """The namespace of a valid path, created on first use.

        A tokenizer that is given once is bound, durably if the log holds the namespace.

        Raises:
            LimitExceededError, TokenizerMismatchError.
            StoreError: the namespace is being deleted, or the tokenizer was not stored; the next call with
                it, or the next write, stores it.
        """
        check_namespace(NamespaceRecord(path, tokenizer or ""))
        with self._lock:
            index = self._indexes.get(path)
            if index is None:
                self._require_capacity()
                index = self._create(path)
            if index.deleted:
                raise _being_deleted(path)
            if tokenizer and index.tokenizer and index.tokenizer != tokenizer:
                raise TokenizerMismatchError(
                    f"namespace {path} holds tokens of another tokenizer",
                    expected=index.tokenizer,
                    got=tokenizer,
                    remedy="Use another namespace for this model.",
                )
            index.tokenizer = tokenizer or index.tokenizer
        if tokenizer and self._indexes.lacks_tokenizer(index):
            try:
                self.store(index)
            except UnknownNamespaceError:
                raise _being_deleted(path) from None
        return index

    def _require_capacity(self) -> None:
        if len(self._indexes) >= self._limits.max_namespaces:
            raise LimitExceededError(
                "too many namespaces",
                expected=f"at most {self._limits.max_namespaces} (Limits.max_namespaces)",
                remedy="Write related outputs into one namespace, delete namespaces, or raise the limit.",
            )

    def _create(self, path: str) -> NamespaceIndex:
        policy = self._quotas.policy(path)
        index = NamespaceIndex(
            path,
            self._starting_weights,
            now_us=self._store.clock.now_us,
            lru=self._quotas.new_lru_index(policy),
            policy=policy,
        )
        if index.lru is not None:
            index.lru.complete = True  # no outputs of earlier processes
        self._indexes.add_weak(index)
        return index

    def index_of(self, path: str) -> NamespaceIndex:
        """The index of an existing namespace. UnknownNamespaceError if it does not exist."""
        index = self._indexes.get(validate_namespace(path))
        if index is None:
            raise unknown_namespace(path)
        return index

    def select(self, namespace: str | None) -> list[NamespaceIndex]:
        """The index of one namespace, or of all that the log holds, ordered by path.

        Raises:
            UnknownNamespaceError: it does not exist.
        """
        if namespace is None:
            return sorted(self._indexes.stored(), key=lambda index: index.path)
        index = self.index_of(namespace)
        return [index] if index.stored else []

    def of_tokenizer(self, paths: Sequence[str], tokenizer: str) -> list[str]:
        """Those of the namespaces that have this tokenizer; none for the empty fingerprint."""
        indexes = [self._indexes.get(path) for path in paths]
        return [
            index.path
            for index in indexes
            if index is not None and tokenizer and index.tokenizer == tokenizer
        ]

    def readable(self, path: str, reader: NamespaceIndex) -> NamespaceIndex:
        """A namespace that sessions of ``reader`` may draft from.

        Raises:
            UnknownNamespaceError, TokenizerMismatchError.
        """
        index = self._indexes.get(validate_namespace(path))
        if index is None or index.deleted:
            raise unknown_namespace(path)
        if index.tokenizer and reader.tokenizer and index.tokenizer != reader.tokenizer:
            raise TokenizerMismatchError(
                f"namespace {path!r} holds tokens of another tokenizer",
                expected=reader.tokenizer,
                got=index.tokenizer,
                remedy="Read only namespaces of the same tokenizer.",
            )
        return index

    def store(self, index: NamespaceIndex) -> None:
        """Store a namespace with its tokenizer, also without outputs. Durable when it returns."""
        create = self._indexes.begin_write(index)
        stored = False
        try:
            for record in create:
                self._store.add_namespace(record)
            stored = True
        finally:
            self._indexes.end_write(index, create, stored=stored)

    # ------------------------------------------------------------------------------------------- deletion

    def begin_delete(self, path: str, *, force: bool) -> NamespaceIndex:
        """Reject writes to a namespace and new sessions in it, from the return of this call on.

        Args:
            force: also if there are live sessions.

        Raises:
            UnknownNamespaceError, NamespaceInUseError.
        """
        with self._lock:
            index = self.index_of(path)
            if sessions := index.begin_delete(force=force):
                raise NamespaceInUseError(
                    f"namespace {path} must have no live sessions to be deleted",
                    expected="0 live sessions",
                    got=sessions,
                    remedy="Close them, or delete it with force: what they wrote is then discarded.",
                )
        self._indexes.wait_for_writes(index)
        index.discard_live()
        return index

    def end_delete(self, index: NamespaceIndex) -> None:
        """Remove a namespace that the store has deleted."""
        self._indexes.remove(index)

    # ------------------------------------------------------------------------------------------- recovery

    def recover(self, loader: SegmentLoader, progress: Callable[[int, int], None] | None) -> None:
        """Load the namespaces of earlier processes.

        Args:
            loader: loads their outputs.
            progress: called with (outputs loaded so far, outputs in all).
        """
        for record in self._store.namespaces():
            index = self._create(record.path)
            index.tokenizer, index.logged_tokenizer, index.stored = record.tokenizer, record.tokenizer, True
            if index.lru is not None:
                index.lru.complete = False
            self._indexes.add_strong(index)
            learned = self._store.get_state(record.path, _LEARNER_STATE)
            if learned is not None:
                # tables of another version are ignored: they are derived, and learned again
                index.learner.load(learned)
        loader.sweep(index.path for index in self._indexes.stored())
        total = self._store.stats().outputs
        done = 0

        def on_progress(outputs: int) -> None:
            nonlocal done
            done += outputs
            if progress is not None and outputs:
                progress(done, total)

        for index in self._indexes.stored():
            loader.open(index, on_progress)
            self._quotas.usage.refresh(index)

    def save_learned(self) -> None:
        """Store the learned tables for the next process."""
        for index in self._indexes.stored():
            if not index.learner.changed:
                continue
            try:
                self._store.put_state(index.path, _LEARNER_STATE, index.learner.save())
            except StoreFullError as error:  # derived and learned again: no reason to fail a close
                log.warning("the learned tables could not be saved", namespace=index.path, error=str(error))


def _being_deleted(path: str) -> StoreError:
    return StoreError(
        f"namespace {path} is being deleted",
        expected="an existing namespace, or a free path",
        remedy="Retry after the deletion; delete it again if its deletion failed.",
    )
