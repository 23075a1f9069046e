"""The namespaces of a cache: their records and their indexes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import structlog

from suffixsvc.config import Limits, validate_namespace
from suffixsvc.engine.indexes import Indexes, record_of
from suffixsvc.engine.room import Room
from suffixsvc.engine.sealing import Sealer
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
from suffixsvc.store.validation import check_namespace
from suffixsvc.types import NamespaceRecord, Store

__all__ = ["Catalog"]

log = structlog.get_logger(__name__)

#: name of the learned tables in the store
_LEARNER_STATE = "learner"


class Catalog:
    """Namespaces come, are written to, and go. Thread-safe; its lock is not held over a call of the store.

    A namespace is stored with its first output, in the same transaction. Until then it is there as long as it
    is used (:class:`Indexes`), and binds its tokenizer no longer than that.

    Args:
        store: where the records are kept, and what was learned.
        room: knows what each namespace may hold.
        indexes: of the cache; only this adds to it.
        limits: how many namespaces there may be.
        starting_weights: what new namespaces start from, see ``suffixsvc.core.new_learner``.
    """

    def __init__(
        self,
        store: Store,
        room: Room,
        indexes: Indexes,
        limits: Limits,
        starting_weights: bytes | None,
    ) -> None:
        self._store = store
        self._room = room
        self._indexes = indexes
        self._limits = limits
        self._starting_weights = starting_weights
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._indexes)

    def __contains__(self, path: str) -> bool:
        return self._indexes.get(path) is not None

    def records(self) -> list[NamespaceRecord]:
        """All of them, ordered by path."""
        return [record_of(index) for index in sorted(self._indexes.values(), key=lambda index: index.path)]

    def bind(self, path: str, tokenizer: str | None) -> NamespaceIndex:
        """The namespace of a valid path, created on first use; a tokenizer given once stays, and is durable
        where the log holds the namespace.

        Raises:
            LimitExceededError, TokenizerMismatchError. StoreError: it is being deleted, or the tokenizer was
            not stored; the next call with it, or the next write, stores it.
        """
        check_namespace(NamespaceRecord(path, tokenizer or ""))
        with self._lock:
            index = self._indexes.get(path)
            if index is None:
                self._require_place()
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

    def _require_place(self) -> None:
        if len(self._indexes) >= self._limits.max_namespaces:
            raise LimitExceededError(
                "too many namespaces",
                expected=f"at most {self._limits.max_namespaces} (Limits.max_namespaces)",
                remedy="Write related outputs into one namespace, delete namespaces, or raise the limit.",
            )

    def _create(self, path: str) -> NamespaceIndex:
        policy = self._room.policy(path)
        index = NamespaceIndex(
            path,
            self._starting_weights,
            now_us=self._store.clock.now_us,
            ledger=self._room.new_ledger(policy),
            policy=policy,
        )
        if index.ledger is not None:
            index.ledger.complete = True  # nothing was written before
        self._indexes.use(index)
        return index

    def index_of(self, path: str) -> NamespaceIndex:
        """The index of a namespace that there is. UnknownNamespaceError."""
        index = self._indexes.get(validate_namespace(path))
        if index is None:
            raise unknown_namespace(path)
        return index

    def chosen(self, namespace: str | None) -> list[NamespaceIndex]:
        """The index of one namespace, or of all that the log holds, ordered by path.

        Raises:
            UnknownNamespaceError: it is not there.
        """
        if namespace is None:
            return sorted(self._indexes.stored(), key=lambda index: index.path)
        index = self.index_of(namespace)
        return [index] if index.stored else []

    def of_tokenizer(self, paths: Sequence[str], tokenizer: str) -> list[str]:
        """Those of the namespaces that are of a tokenizer; none where it is not known."""
        indexes = [self._indexes.get(path) for path in paths]
        return [
            index.path
            for index in indexes
            if index is not None and tokenizer and index.tokenizer == tokenizer
        ]

    def store(self, index: NamespaceIndex) -> None:
        """Have the store hold a namespace with its tokenizer, though nothing was written to it. Durable when
        it returns."""
        create = self._indexes.begin_write(index)
        kept = False
        try:
            for record in create:
                self._store.add_namespace(record)
            kept = True
        finally:
            self._indexes.end_write(index, create, kept=kept)

    # ------------------------------------------------------------------------------------------- deleting

    def begin_delete(self, path: str, *, force: bool) -> NamespaceIndex:
        """Nothing is written to the namespace, and no session opened in it, from the return of this call.

        Args:
            force: also where sessions are live.

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
        """The store holds nothing of it any more."""
        self._indexes.drop(index)

    def readable(self, path: str, reader: NamespaceIndex) -> NamespaceIndex:
        """What sessions of another namespace may draft from.

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

    # ------------------------------------------------------------------------------------------ a restart

    def recover(self, sealer: Sealer, progress: Callable[[int, int], None] | None) -> None:
        """Make what earlier processes left ready to be drafted from.

        Args:
            progress: called with (outputs so far, outputs in all).
        """
        for record in self._store.namespaces():
            index = self._create(record.path)
            index.tokenizer, index.logged_tokenizer, index.stored = record.tokenizer, record.tokenizer, True
            if index.ledger is not None:
                index.ledger.complete = False
            self._indexes.keep(index)
            learned = self._store.get_state(record.path, _LEARNER_STATE)
            if learned is not None:
                # Tables of another version are left alone: they are derived, and learned anew.
                index.learner.load(learned)
        sealer.sweep(index.path for index in self._indexes.stored())
        total = self._store.stats().outputs
        done = 0

        def note(outputs: int) -> None:
            nonlocal done
            done += outputs
            if progress is not None and outputs:
                progress(done, total)

        for index in self._indexes.stored():
            sealer.open(index, note)
            self._room.refresh(index)

    def keep_learned(self) -> None:
        """Leave the learned tables to the next process."""
        for index in self._indexes.stored():
            if not index.learner.changed:
                continue
            try:
                self._store.put_state(index.path, _LEARNER_STATE, index.learner.save())
            except StoreFullError as error:  # derived and learned anew: no reason to fail a close
                log.warning("what was learned could not be kept", namespace=index.path, error=str(error))


def _being_deleted(path: str) -> StoreError:
    return StoreError(
        f"namespace {path} is being deleted",
        expected="a namespace that is there, or a path that is free",
        remedy="Try again when it is gone; delete it again if its deletion failed.",
    )
