"""Closing of gRPC channels before this process forks.

gRPC's support for forks (``GRPC_ENABLE_FORK_SUPPORT``) takes locks of every open channel in the child; one
that another thread of the parent held then is never released, and the child waits without end. Besides, the
fork takes a second while streams are open. Without open channels it takes milliseconds, and both processes
connect again with their next calls.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Final, Protocol

import grpc

#: calls of other threads have so long to end before they are cancelled
_CALL_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.001


class ClosedConnection(Protocol):
    """A connection after its end."""

    @property
    def active_calls(self) -> int:
        """Calls and streams whose threads have not noticed the end."""


class ClosedAtForks(Protocol):
    """What is closed before a fork and opened again afterwards."""

    @property
    def calls(self) -> int:
        """Calls in progress, without streams that last."""

    def disconnect(self) -> Sequence[ClosedConnection]:
        """Close the connections, and return them; the next use makes others."""


class _Forks:
    """Forks of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may fork
        self._open: weakref.WeakSet[ClosedAtForks] = weakref.WeakSet()
        #: held by a thread that forks; reentrant: a signal handler may fork, or connect, within a fork
        self._forking = threading.RLock()
        #: the thread that holds it, and how many of its forks are in progress
        self._thread = 0
        self._depth = 0
        self._idle: grpc.Channel | None = None

    @property
    def in_progress(self) -> bool:
        """Whether another thread forks now: nothing may connect."""
        return self._depth > 0 and self._thread != threading.get_ident()

    def wait(self) -> None:
        """Wait until no other thread forks."""
        with self._forking:
            pass

    def add(self, connected: ClosedAtForks) -> None:
        """Close this before forks; to be called before it has its first channel.

        No effect unless gRPC supports forks in this process.
        """
        if not _supported() or connected in self._open:
            return
        with self._lock:
            self._open.add(connected)
            if self._idle is None:
                # Never connects. Without a channel gRPC ends its core, in a thread that a fork can interrupt.
                self._idle = grpc.insecure_channel("unix:/dev/null")
                # After gRPC's own functions, which it registers with the first channel: the last one that is
                # registered runs first.
                os.register_at_fork(
                    before=self._close_all, after_in_parent=self._end, after_in_child=self._end_in_child
                )

    def _close_all(self) -> None:
        self._forking.acquire()  # until after the fork: gRPC supports one at a time
        self._thread = threading.get_ident()
        self._depth += 1
        with self._lock:
            connected = list(self._open)
        deadline = time.monotonic() + _CALL_SECONDS
        while any(each.calls for each in connected) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        closed = [connection for each in connected for connection in each.disconnect()]
        # a thread that is within gRPC holds its locks
        while any(each.active_calls for each in closed) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _end(self) -> None:
        self._depth -= 1
        self._forking.release()

    def _end_in_child(self) -> None:
        # threads of the parent may have held the locks, those of its connections included
        self._lock = threading.RLock()
        self._open = weakref.WeakSet()
        self._forking = threading.RLock()
        self._depth = 0


def _supported() -> bool:
    """As gRPC decides it."""
    return os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() in {"1", "true", "yes"}


FORKS: Final = _Forks()
