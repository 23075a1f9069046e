"""Removal of texts from the indexes, after the log has deleted or rejected their outputs.

    the store's thread     forgotten   after every commit that deleted rows: O(log n) per row
                           queue       texts of outputs that the store rejected, or had already
    the deleting thread    finish      before its call returns: removes the texts, which takes longer

No lock is held over either: texts of different outputs are removed in parallel, and the store commits
meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from suffixsvc.engine.catalog import Catalog
from suffixsvc.errors import SuffixError
from suffixsvc.index import NamespaceIndex
from suffixsvc.runtime.signal_guard import uninterrupted
from suffixsvc.types import NewOutput, StoredOutput


class Unindexer:
    """The queue of removals of one cache. Thread-safe.

    Args:
        catalog: the namespaces of the cache.
        refresh: called with each index that became smaller.
    """

    def __init__(self, catalog: Catalog, refresh: Callable[[NamespaceIndex], None]) -> None:
        self._catalog = catalog
        self._refresh = refresh
        self._lock = threading.Lock()
        #: in the order of the deletions
        self._removals: dict[_Removal, None] = {}
        self._smaller: set[NamespaceIndex] = set()

    def forgotten(self, deleted: Sequence[StoredOutput]) -> None:
        """The store's deletion listener."""
        by_namespace: dict[str, list[StoredOutput]] = {}
        for stored in deleted:
            by_namespace.setdefault(stored.output.namespace, []).append(stored)
        for path, outputs in by_namespace.items():
            index = self._catalog.get(path)
            if index is None:
                continue  # of a namespace that an earlier process deleted
            self.queue(index, [stored.output for stored in index.forget(outputs)])
            with self._lock:
                self._smaller.add(index)

    def queue(self, index: NamespaceIndex, outputs: Sequence[NewOutput]) -> None:
        """Queue texts whose outputs are not in the log. Any thread; short.

        The removal calls ``index.end_write`` for each.
        """
        removals = {_Removal(index, output): None for output in outputs}
        with self._lock:
            self._removals |= removals

    def finish(self) -> None:
        """Remove every queued text, and wait for removals in progress in other threads.

        Removals of a caller that was interrupted stay queued for the next one.

        Raises:
            IndexCorruptError: a text was not in its index; all others were removed.
        """
        with self._lock:
            removals = dict(self._removals)
            smaller, self._smaller = self._smaller, set()
        failure: SuffixError | None = None
        for removal in removals:
            try:
                uninterrupted(removal.finish)
            except SuffixError as error:
                failure = error
            with self._lock:
                self._removals.pop(removal, None)
        for index in smaller | {removal.index for removal in removals}:
            self._refresh(index)
        if failure is not None:
            raise failure


class _Removal:
    """The removal of one text; a second caller waits for the first."""

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
