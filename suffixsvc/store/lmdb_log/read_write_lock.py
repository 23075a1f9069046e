"""A readers-writer lock whose locked state survives a signal handler that raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from suffixsvc.runtime.signal_guard import AtomicCondition


class ReadWriteLock:
    """Shared and exclusive locking with writer preference: a waiting writer blocks new readers."""

    def __init__(self) -> None:
        self._condition = AtomicCondition()
        self._readers = 0
        self._has_writer = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Wait until no writer holds the lock or waits for it, then hold it shared. Any thread may end it."""
        with self._condition:
            while self._has_writer:
                self._condition.wait()
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                self._condition.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Block new readers, wait for the others, then hold the lock exclusively. One writer at a time."""
        with self._condition:
            self._has_writer = True
            while self._readers:
                self._condition.wait()
        try:
            yield
        finally:
            with self._condition:
                self._has_writer = False
                self._condition.notify_all()
