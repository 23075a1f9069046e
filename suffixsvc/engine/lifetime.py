"""Whether a cache is open."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from suffixsvc.errors import SessionClosedError

__all__ = ["Lifetime"]


class Lifetime:
    """From open to close of a cache. What happens in :meth:`while_open` happens before the close, or not at
    all. Thread-safe."""

    def __init__(self) -> None:
        #: of the cache; re-entrant
        self.lock = threading.RLock()
        self._ended = False

    @contextmanager
    def while_open(self) -> Iterator[None]:
        """Holds the lock. SessionClosedError: the cache is closed."""
        with self.lock:
            self.require_open()
            yield

    def require_open(self) -> None:
        """SessionClosedError: the cache is closed."""
        with self.lock:
            if self._ended:
                raise SessionClosedError("the cache is closed", remedy="Open a new SuffixCache.")

    def end(self) -> bool:
        """Whether this was the call that closed the cache."""
        with self.lock:
            ended, self._ended = self._ended, True
        return not ended
