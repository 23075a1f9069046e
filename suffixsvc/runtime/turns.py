"""Turns of large pieces of work, few at a time: decode steps share the cores and Python's lock with them.

A step passes through several threads of the service, and each waits for Python's lock: the more threads want
it, and the more of them compete for the cores, the longer. Large pieces side by side are not sooner done than
one after the other once they keep the cores busy.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: pieces at a time: with half of the cores, their native code is done in parallel
_AT_A_TIME: Final = max(1, (os.cpu_count() or 1) // 2)
#: longest wait for a turn: what takes seconds must not make everything else wait as long
_PATIENCE_SECONDS: Final = 0.5


class Turns:
    """At most ``limit`` blocks at a time. The others wait, those of each principal in the order of their
    arrival, and the principals take turns. A block that has waited for ``patience`` seconds is run beside the
    others. Thread-safe.

    Args:
        limit: blocks at a time.
        patience: longest wait, in seconds.
    """

    def __init__(self, limit: int = _AT_A_TIME, patience: float = _PATIENCE_SECONDS) -> None:
        self._free, self._patience = limit, patience
        self._lock = threading.Lock()
        #: a locked lock for each waiting block, by principal; released when it is the block's turn
        self._waiting: OrderedDict[str, deque[threading.Lock]] = OrderedDict()

    @contextmanager
    def taken(self, principal: str) -> Iterator[None]:
        """Wait for the turn of a block of a principal, and take it."""
        taken = self._take(principal)
        try:
            yield
        finally:
            if taken:
                self._pass_on()

    def _take(self, principal: str) -> bool:
        """Wait for a turn; False: none came in time."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            turn = threading.Lock()
            turn.acquire()
            self._waiting.setdefault(principal, deque()).append(turn)
        if turn.acquire(timeout=self._patience):
            return True
        with self._lock:
            turns = self._waiting.get(principal, deque())
            if turn not in turns:  # it came in this moment
                return True
            turns.remove(turn)
            if not turns:
                del self._waiting[principal]
        return False

    def _pass_on(self) -> None:
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            principal, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[principal] = turns  # after all others
        turn.release()
