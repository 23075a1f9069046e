"""The gate of a cache's calls: open until the cache is closed, and closed only after the last call has left.

It counts calls and holds no lock while they work, so that no call ever waits for another one here.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from suffixsvc.errors import SessionClosedError
from suffixsvc.interrupts import AtomicCondition

__all__ = ["Lifetime"]


class Lifetime:
    """From open to close of a cache. What happens in :meth:`while_open` happens before the close, or not at
    all. Thread-safe."""

    def __init__(self) -> None:
        self._changed = AtomicCondition()
        self._inside: Counter[int] = Counter()  # calls under way, by thread
        self._ended = False

    @contextmanager
    def while_open(self) -> Iterator[None]:
        """Holds the close back. May be nested. SessionClosedError: the cache is closed."""
        me = threading.get_ident()
        with self._changed:
            if not self._inside[me]:
                self._require_open()
            self._inside[me] += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[me] -= 1
                if not self._inside[me]:
                    del self._inside[me]
                    self._changed.notify_all()

    def require_open(self) -> None:
        """SessionClosedError: the cache is closed."""
        with self._changed:
            self._require_open()

    def _require_open(self) -> None:
        if self._ended:
            raise SessionClosedError("the cache is closed", remedy="Open a new SuffixCache.")

    def end(self) -> bool:
        """Refuse new calls and wait for those of other threads; whether this closed the cache."""
        me = threading.get_ident()
        with self._changed:
            ended, self._ended = self._ended, True
            self._changed.wait_for(lambda: not self._inside.keys() - {me})
        return not ended
