"""Commits under way, and how far the log is settled in the index."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from suffixsvc.types import OutputId

__all__ = ["Commits"]


class Commits:
    """Of one namespace. Thread-safe.

    Args:
        last_lsn: the last id that the store has given, cheaply.
    """

    def __init__(self, last_lsn: Callable[[], OutputId]) -> None:
        self._last_lsn = last_lsn
        self._settled_before: dict[int, OutputId] = {}
        self._next = itertools.count()

    def begin(self) -> int:
        """An output is about to be logged whose text is not yet in the index as it will stay."""
        number = next(self._next)
        self._settled_before[number] = self._last_lsn()
        return number

    def end(self, number: int) -> None:
        """Its text is settled, or nothing was logged. Idempotent."""
        # no lock: a collector may run this anywhere, also where locks are held
        self._settled_before.pop(number, None)

    def settled(self, last: OutputId) -> OutputId:
        """Up to this one, at most ``last`` (which the store gave before this call), everything in the log is
        in the index as it will stay."""
        return min([last, *list(self._settled_before.values())])
