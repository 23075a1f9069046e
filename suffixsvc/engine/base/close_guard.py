"""Guard between the calls of a cache and its close: close() waits for calls in progress and rejects new ones.

It counts calls and holds no lock during a call, so calls never wait for each other here.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from suffixsvc.errors import SessionClosedError
from suffixsvc.runtime.signal_guard import AtomicCondition


class CloseGuard:
    """Orders calls before the close: a block of :meth:`while_open` completes before it, or does not begin.

    Thread-safe.

    Attributes:
        closed: new calls are rejected.
    """

    def __init__(self) -> None:
        self._changed = AtomicCondition()
        self._active: Counter[int] = Counter()  # calls in progress, by thread
        self.closed = False

    @contextmanager
    def while_open(self) -> Iterator[None]:
        """Delay the close until the block ends. May be nested.

        Raises:
            SessionClosedError: the cache is closed.
        """
        me = threading.get_ident()
        with self._changed:
            if not self._active[me]:
                self.require_open()
            self._active[me] += 1
        try:
            yield
        finally:
            with self._changed:
                self._active[me] -= 1
                if not self._active[me]:
                    del self._active[me]
                    self._changed.notify_all()

    def require_open(self) -> None:
        """Raise SessionClosedError if the cache is closed."""
        if self.closed:
            raise SessionClosedError("the cache is closed", remedy="Open a new SuffixCache.")

    def close(self) -> bool:
        """Reject new calls and wait for those of other threads; returns whether this call closed it."""
        me = threading.get_ident()
        with self._changed:
            was_closed, self.closed = self.closed, True
            self._changed.wait_for(lambda: not self._active.keys() - {me})
        return not was_closed
