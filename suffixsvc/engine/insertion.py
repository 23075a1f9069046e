"""Bulk outputs on their way into the index."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from suffixsvc.index import NamespaceIndex
from suffixsvc.types import NewOutput

__all__ = ["Insertion"]


class Insertion:
    """Outputs put into an index, once, and taken out again, once, whoever asks first."""

    def __init__(self, index: NamespaceIndex, outputs: Sequence[NewOutput]) -> None:
        self._index = index
        self._outputs = outputs
        self._done: list[NewOutput] = []
        #: their numbers as writers, in the order of the outputs
        self.writers: list[int] = []
        self._lock = threading.Lock()

    def do(self) -> None:
        for output in self._outputs:
            self.writers.append(self._index.insert(output))
            self._done.append(output)

    def undo(self) -> None:
        with self._lock:
            while self._done:
                self._index.remove(self._done.pop())
