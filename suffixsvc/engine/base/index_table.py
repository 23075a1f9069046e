"""Table of the indexes of a cache's namespaces, by path.

A namespace that the log holds is referenced strongly. A namespace that was never written to is referenced
weakly: it exists as long as a session, a handle or a write in flight uses it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from suffixsvc.errors import unknown_namespace
from suffixsvc.index import NamespaceIndex
from suffixsvc.runtime.signal_guard import AtomicCondition
from suffixsvc.types import NamespaceRecord

__all__ = ["IndexTable", "record_of"]


class IndexTable:
    """The indexes of one cache. Thread-safe."""

    def __init__(self) -> None:
        self._lock = AtomicCondition()
        self._strong: dict[str, NamespaceIndex] = {}
        self._weak: weakref.WeakValueDictionary[str, NamespaceIndex] = weakref.WeakValueDictionary()
        #: deleted namespaces, while live sessions refer to them
        self._deleted: weakref.WeakSet[NamespaceIndex] = weakref.WeakSet()

    def __len__(self) -> int:
        return len(self.values())

    def get(self, path: str) -> NamespaceIndex | None:
        """The index of a namespace, or None."""
        with self._lock:
            return self._strong.get(path) or self._weak.get(path)

    def values(self) -> list[NamespaceIndex]:
        """All indexes."""
        with self._lock:
            return [*self._strong.values(), *self._weak.values()]

    def in_use(self) -> list[NamespaceIndex]:
        """All indexes, and those of deleted namespaces that are still referenced, as by a live session."""
        with self._lock:
            return [*self._strong.values(), *self._weak.values(), *self._deleted]

    def stored(self) -> list[NamespaceIndex]:
        """The indexes of namespaces that the log holds, without those being deleted."""
        with self._lock:
            return [index for index in self._strong.values() if index.stored and not index.deleted]

    def add_weak(self, index: NamespaceIndex) -> None:
        """Reference an index weakly: it exists as long as it is used elsewhere."""
        with self._lock:
            self._strong.pop(index.path, None)
            self._weak[index.path] = index

    def add_strong(self, index: NamespaceIndex) -> None:
        """Reference an index until :meth:`add_weak` or :meth:`remove`."""
        with self._lock:
            self._weak.pop(index.path, None)
            self._strong[index.path] = index

    # -------------------------------------------------------------------------------------------- writing

    def begin_write(self, index: NamespaceIndex) -> Sequence[NamespaceRecord]:
        """Begin a write to a namespace; :meth:`end_write` must follow.

        Returns:
            The records that the store has to create for it.

        Raises:
            UnknownNamespaceError: the namespace was deleted.
        """
        with self._lock:
            if index.deleted:
                raise unknown_namespace(index.path)
            index.writes += 1
            if index.stored and index.logged_tokenizer == index.tokenizer:
                return ()
            self._weak.pop(index.path, None)
            self._strong[index.path] = index
            create = [record_of(index)]
            index.untagged_writes += _untagged(create)
            return create

    def end_write(self, index: NamespaceIndex, create: Sequence[NamespaceRecord], *, stored: bool) -> None:
        """End a write, after the store's decision.

        Args:
            create: the result of :meth:`begin_write`.
            stored: the store has the namespace.
        """
        with self._lock:
            index.writes -= 1
            index.untagged_writes -= _untagged(create)
            if stored:
                index.stored = True
                for record in create:
                    index.logged_tokenizer = record.tokenizer or index.logged_tokenizer
            if not (index.stored or index.writes or index.deleted):
                self._strong.pop(index.path, None)
                self._weak[index.path] = index
            self._lock.notify_all()

    def lacks_tokenizer(self, index: NamespaceIndex) -> bool:
        """Whether the log holds the namespace without the tokenizer that is bound to it.

        Waits for writes in flight that may create it without one.
        """
        with self._lock:
            self._lock.wait_for(lambda: index.stored or not index.untagged_writes)
            return index.stored and index.logged_tokenizer != index.tokenizer

    def wait_for_writes(self, index: NamespaceIndex) -> None:
        """Wait until no write is in flight. In a namespace that is deleted no write begins afterwards."""
        with self._lock:
            self._lock.wait_for(lambda: not index.writes)

    # ------------------------------------------------------------------------------------------- deletion

    def remove(self, index: NamespaceIndex) -> None:
        """Remove the index of a deleted namespace."""
        with self._lock:
            self._deleted.add(index)
            for table in (self._strong, self._weak):
                if table.get(index.path) is index:
                    del table[index.path]


def _untagged(create: Sequence[NamespaceRecord]) -> int:
    """Number of namespaces that would be created without a tokenizer."""
    return sum(not record.tokenizer for record in create)


def record_of(index: NamespaceIndex) -> NamespaceRecord:
    """The store's record of a namespace."""
    return NamespaceRecord(index.path, index.tokenizer)
