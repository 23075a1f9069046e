"""Text that is in the index while its row is on the way into the log, and what becomes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from suffixsvc.index.namespace import NamespaceIndex

__all__ = ["PendingWrite"]


class PendingWrite:
    """The output of one session, while its text is in the index and its row on the way: whatever is in the
    log is in the index, and if the store keeps nothing, the text is taken out again. Thread-safe.

    ::

        in flight ──kept───> the log owns the text
             └────failed───> taken out once its writer has left: by the writer, or, where it did not wait,
                             by the store's thread

    The namespace counts it as unsettled until then, whatever fails.

    Args:
        index: of the namespace.
        take_out: takes the text out of the index. Called at most once.
    """

    def __init__(self, index: NamespaceIndex, take_out: Callable[[], None]) -> None:
        self._index = index
        self._take_out = take_out
        self._lock = threading.Lock()
        self._failed = self._left = self._done = False
        index.begin_write()

    def kept(self) -> None:
        """The log owns the text. On the store's thread, before the write's future is done."""
        with self._lock:
            if self._done:
                return
            self._done = True
        self._index.end_write()

    def failed(self) -> None:
        """The store kept nothing. As :meth:`kept`."""
        self._finish(failed=True)

    def leave(self) -> None:
        """The writer waits no longer: the write is decided, or the writer leaves that to the store."""
        self._finish(left=True)

    def _finish(self, *, failed: bool = False, left: bool = False) -> None:
        with self._lock:
            self._failed |= failed
            self._left |= left
            if self._done or not (self._failed and self._left):
                return
            self._done = True
        try:
            self._take_out()
        finally:
            self._index.end_write()
