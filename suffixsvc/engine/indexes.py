"""The indexes of a cache's namespaces by path.

A namespace that the log holds is kept; one that was never written to is there as long as a session, a handle
or a write in flight uses it, and then goes with its tokenizer and its memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from suffixsvc.errors import unknown_namespace
from suffixsvc.index import NamespaceIndex
from suffixsvc.interrupts import AtomicCondition
from suffixsvc.types import NamespaceRecord

__all__ = ["Indexes", "record_of"]


class Indexes:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = AtomicCondition()
        self._kept: dict[str, NamespaceIndex] = {}
        self._used: weakref.WeakValueDictionary[str, NamespaceIndex] = weakref.WeakValueDictionary()
        #: deleted, and perhaps held by sessions that go on
        self._dropped: weakref.WeakSet[NamespaceIndex] = weakref.WeakSet()

    def __len__(self) -> int:
        return len(self.values())

    def get(self, path: str) -> NamespaceIndex | None:
        with self._lock:
            return self._kept.get(path) or self._used.get(path)

    def values(self) -> list[NamespaceIndex]:
        """All of them."""
        with self._lock:
            return [*self._kept.values(), *self._used.values()]

    def in_use(self) -> list[NamespaceIndex]:
        """All of them, and those of deleted namespaces that something still holds, such as a live session."""
        with self._lock:
            return [*self._kept.values(), *self._used.values(), *self._dropped]

    def stored(self) -> list[NamespaceIndex]:
        """Those of namespaces that the log holds; of one that is being deleted the store knows nothing."""
        with self._lock:
            return [index for index in self._kept.values() if index.stored and not index.deleted]

    def use(self, index: NamespaceIndex) -> None:
        """It is there as long as something else holds it."""
        with self._lock:
            self._kept.pop(index.path, None)
            self._used[index.path] = index

    def keep(self, index: NamespaceIndex) -> None:
        """It stays until :meth:`use` or :meth:`drop`."""
        with self._lock:
            self._used.pop(index.path, None)
            self._kept[index.path] = index

    # -------------------------------------------------------------------------------------------- writing

    def begin_write(self, index: NamespaceIndex) -> Sequence[NamespaceRecord]:
        """An output is about to be written; what the store has to create for it. :meth:`end_write` is due.

        Raises:
            UnknownNamespaceError: the namespace was deleted.
        """
        with self._lock:
            if index.deleted:
                raise unknown_namespace(index.path)
            index.writes += 1
            if index.stored and index.logged_tokenizer == index.tokenizer:
                return ()
            self._used.pop(index.path, None)
            self._kept[index.path] = index
            create = [record_of(index)]
            index.untagged_writes += _untagged(create)
            return create

    def end_write(self, index: NamespaceIndex, create: Sequence[NamespaceRecord], *, kept: bool) -> None:
        """The store has decided: it holds the namespace, or does not because of this.

        Args:
            create: what :meth:`begin_write` returned.
        """
        with self._lock:
            index.writes -= 1
            index.untagged_writes -= _untagged(create)
            if kept:
                index.stored = True
                for record in create:
                    index.logged_tokenizer = record.tokenizer or index.logged_tokenizer
            if not (index.stored or index.writes or index.deleted):
                self._kept.pop(index.path, None)
                self._used[index.path] = index
            self._lock.notify_all()

    def lacks_tokenizer(self, index: NamespaceIndex) -> bool:
        """Whether the log holds the namespace without the tokenizer bound to it. Waits for writes that
        may make it so."""
        with self._lock:
            self._lock.wait_for(lambda: index.stored or not index.untagged_writes)
            return index.stored and index.logged_tokenizer != index.tokenizer

    def wait_for_writes(self, index: NamespaceIndex) -> None:
        """Returns when no write is in flight. Of one that is deleted, none begins after that."""
        with self._lock:
            self._lock.wait_for(lambda: not index.writes)

    # ----------------------------------------------------------------------------------------- their end

    def drop(self, index: NamespaceIndex) -> None:
        """It is there no longer."""
        with self._lock:
            self._dropped.add(index)
            for held in (self._kept, self._used):
                if held.get(index.path) is index:
                    del held[index.path]


def _untagged(create: Sequence[NamespaceRecord]) -> int:
    """1 where a namespace is to be made without a tokenizer."""
    return sum(not record.tokenizer for record in create)


def record_of(index: NamespaceIndex) -> NamespaceRecord:
    return NamespaceRecord(index.path, index.tokenizer)
