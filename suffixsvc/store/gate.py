"""Many short readers, or one that replaces what they read from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from suffixsvc.interrupts import AtomicCondition

__all__ = ["Gate"]


class Gate:
    """Readers enter and leave; a waiting exclusive holder holds new readers back."""

    def __init__(self) -> None:
        self._condition = AtomicCondition()
        self._readers = 0
        self._closed = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        with self._condition:
            while self._closed:
                self._condition.wait()
            self._readers += 1

    def leave(self) -> None:
        with self._condition:
            self._readers -= 1
            self._condition.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._condition:
            self._closed = True
            while self._readers:
                self._condition.wait()
        try:
            yield
        finally:
            with self._condition:
                self._closed = False
                self._condition.notify_all()
