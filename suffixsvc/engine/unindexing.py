"""Texts on their way out of the indexes, after the log has let them go or has not taken them.

    the store's thread     forgotten   after every commit that deleted rows: O(log n) a row
                           queue       of outputs that the store refused, or had already
    who forgets or adds    finish      before the call returns: takes the texts out, which takes time

No lock is held over either: texts of different outputs leave side by side, and the store commits meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from suffixsvc.engine.indexes import Indexes
from suffixsvc.errors import SuffixError
from suffixsvc.index import NamespaceIndex
from suffixsvc.interrupts import uninterrupted
from suffixsvc.types import NewOutput, StoredOutput

__all__ = ["Unindexer"]


class Unindexer:
    """Of one cache. Thread-safe.

    Args:
        indexes: of the cache; others add to it.
        refresh: called with an index that has become smaller.
    """

    def __init__(self, indexes: Indexes, refresh: Callable[[NamespaceIndex], None]) -> None:
        self._indexes = indexes
        self._refresh = refresh
        self._lock = threading.Lock()
        #: in the order in which they were forgotten
        self._removals: dict[_Removal, None] = {}
        self._smaller: set[NamespaceIndex] = set()

    def forgotten(self, gone: Sequence[StoredOutput]) -> None:
        """The store's deletion listener."""
        by_namespace: dict[str, list[StoredOutput]] = {}
        for stored in gone:
            by_namespace.setdefault(stored.output.namespace, []).append(stored)
        for path, outputs in by_namespace.items():
            index = self._indexes.get(path)
            if index is None:
                continue  # of a namespace that was deleted before this process
            self.queue(index, [stored.output for stored in index.forget(outputs)])
            with self._lock:
                self._smaller.add(index)

    def queue(self, index: NamespaceIndex, outputs: Sequence[NewOutput]) -> None:
        """Texts in an index that no output of the log stands for; ``end_write`` is due for each, and follows
        when it is out. Any thread: short."""
        removals = {_Removal(index, output): None for output in outputs}
        with self._lock:
            self._removals |= removals

    def finish(self) -> None:
        """Returns when every text that was forgotten before is out of its index, whoever forgot it.

        A caller that was interrupted leaves nothing behind: the next one takes it out.

        Raises:
            IndexCorruptError: one was not in its index; all others are out.
        """
        with self._lock:
            removals = dict(self._removals)
            smaller, self._smaller = self._smaller, set()
        broken: SuffixError | None = None
        for removal in removals:
            try:
                uninterrupted(removal.finish)
            except SuffixError as error:
                broken = error
            with self._lock:
                self._removals.pop(removal, None)
        for index in smaller | {removal.index for removal in removals}:
            self._refresh(index)
        if broken is not None:
            raise broken


class _Removal:
    """One text that goes. Whoever comes second waits for the first."""

    __slots__ = ("_done", "_lock", "_output", "index")

    def __init__(self, index: NamespaceIndex, output: NewOutput) -> None:
        self.index = index
        self._output = output
        self._lock = threading.Lock()
        self._done = False

    def finish(self) -> None:
        with self._lock:
            if self._done:
                return
            self._done = True
            try:
                self.index.remove(self._output)
            finally:
                self.index.end_write()
