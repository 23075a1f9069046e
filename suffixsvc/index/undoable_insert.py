"""Insertion into the index that is undone if the store does not commit the output."""

from __future__ import annotations

import threading
from collections.abc import Callable

from suffixsvc.index.namespace import NamespaceIndex

__all__ = ["UndoableInsert"]


class UndoableInsert:
    """The text of one session's output between its insertion into the index and the store's commit.

    Every logged output is indexed, so the text is inserted first; it is removed again if the store does not
    commit the output. Thread-safe.

    ::

        in flight ──committed──> the text stays, on behalf of the log
             └──────failed─────> removed once the writer has left: by the writer, or, where it did not wait,
                                 by the store's thread

    Until then the namespace counts the write as in flight.

    Args:
        index: index of the namespace.
        undo: removes the text from the index. Called at most once.
    """

    def __init__(self, index: NamespaceIndex, undo: Callable[[], None]) -> None:
        self._index = index
        self._undo = undo
        self._lock = threading.Lock()
        self._failed = self._left = self._done = False
        index.begin_write()

    def committed(self) -> None:
        """The output is in the log. Called on the store's thread, before the write's future is done."""
        with self._lock:
            if self._done:
                return
            self._done = True
        self._index.end_write()

    def failed(self) -> None:
        """The store did not commit the output. Called as :meth:`committed`."""
        self._finish(failed=True)

    def leave(self) -> None:
        """The writer no longer waits: the write is decided, or its undo is left to the store's thread."""
        self._finish(left=True)

    def _finish(self, *, failed: bool = False, left: bool = False) -> None:
        with self._lock:
            self._failed |= failed
            self._left |= left
            if self._done or not (self._failed and self._left):
                return
            self._done = True
        try:
            self._undo()
        finally:
            self._index.end_write()
