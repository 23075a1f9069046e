"""Turns of large calls, few at a time: decode steps share the cores and Python's lock with them.

A step passes through several threads of the service, and each waits for Python's lock: the more threads want
it, and the more of them compete for the cores, the longer. Large calls side by side are not sooner done than
one after the other once they keep the cores busy.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: large calls at a time: with half of the cores, their native code is done in parallel
LARGE_CALLS: Final = max(1, (os.cpu_count() or 1) // 2)


class Turns:
    """At most ``limit`` blocks at a time. The others wait, those of each principal in the order of their
    arrival, and the principals take turns. Thread-safe.

    Args:
        limit: blocks at a time.
    """

    def __init__(self, limit: int = LARGE_CALLS) -> None:
        self._free = limit
        self._lock = threading.Lock()
        #: a locked lock for each waiting block, by principal; released when it is the block's turn
        self._waiting: OrderedDict[str, deque[threading.Lock]] = OrderedDict()

    @contextmanager
    def taken(self, principal: str) -> Iterator[None]:
        """Wait for the turn of a block of a principal, and take it."""
        turn = threading.Lock()
        turn.acquire()
        with self._lock:
            if self._free:
                self._free -= 1
                turn.release()
            else:
                self._waiting.setdefault(principal, deque()).append(turn)
        with turn:
            try:
                yield
            finally:
                self._pass_on()

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
