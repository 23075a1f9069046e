"""Places of calls: how many of each kind are served at a time, so that no kind uses up the threads of all.

Every call takes a thread of the server's pool from its first byte to its end. The pool has as many threads
as all kinds of long calls together may hold, some for short calls, and a reserve for health checks only:

    Stream            --max-streams (servicer.py)
    AddOutputs        MAX_UPLOADS
    ExportNgrams      MAX_EXPORTS, one of them counting (handlers.py)
    reflection        MAX_REFLECTIONS
    Health.Watch      MAX_WATCHES
    Health.Check      MAX_CHECKS, the reserve
    all but checks    the pool without the reserve

A call beyond is refused (RESOURCE_EXHAUSTED) instead of queued.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from suffixsvc.errors import LimitExceededError

__all__ = ["MAX_CHECKS", "MAX_REFLECTIONS", "MAX_UPLOADS", "MAX_WATCHES", "Admission", "pool_threads"]

#: calls of AddOutputs, single outputs that agents add side by side among them
MAX_UPLOADS: Final = 128
MAX_REFLECTIONS: Final = 8
MAX_WATCHES: Final = 64
MAX_CHECKS: Final = 16
#: threads for short calls, however many long ones there are
UNARY_THREADS: Final = 32
#: exports hold a thread each: those that are read, one that is counted, one to be refused
_EXPORT_THREADS: Final = 6

CHECK: Final = "/grpc.health.v1.Health/Check"
_WATCH: Final = "/grpc.health.v1.Health/Watch"
_REFLECTION: Final = "/grpc.reflection."
_ADD_OUTPUTS: Final = "/suffixsvc.v1.SuffixCache/AddOutputs"


def pool_threads(max_streams: int) -> int:
    """Threads of the pool of a server with so many streams."""
    long = max_streams + MAX_UPLOADS + MAX_REFLECTIONS + MAX_WATCHES + _EXPORT_THREADS
    return long + UNARY_THREADS + MAX_CHECKS


class Admission:
    """The places of one server. Thread-safe.

    Args:
        max_streams: as for :func:`pool_threads`.
    """

    def __init__(self, max_streams: int) -> None:
        ordinary = pool_threads(max_streams) - MAX_CHECKS
        self._kinds: Mapping[str, _Kind] = {
            CHECK: _Kind("health checks", MAX_CHECKS),
            _WATCH: _Kind("health watches", MAX_WATCHES),
            _REFLECTION: _Kind("reflection calls", MAX_REFLECTIONS),
            _ADD_OUTPUTS: _Kind("calls of AddOutputs", MAX_UPLOADS),
        }
        self._all = _Kind("calls", ordinary)

    def enter(self, method: str) -> tuple[_Kind, ...]:
        """The places of a call; each is to be left at its end.

        Args:
            method: with its service, as in "/grpc.health.v1.Health/Check".

        Raises:
            LimitExceededError: one is not free; none is held.
        """
        own = self._kinds.get(_REFLECTION if method.startswith(_REFLECTION) else method)
        wanted = [kind for kind in (own, None if method == CHECK else self._all) if kind is not None]
        held: list[_Kind] = []
        try:
            for kind in wanted:
                kind.enter()
                held.append(kind)
        except LimitExceededError:
            for kind in held:
                kind.leave()
            raise
        return tuple(held)


class _Kind:
    """Calls of one kind and how many of them there may be."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._free = threading.Semaphore(most)

    def enter(self) -> None:
        if not self._free.acquire(blocking=False):
            raise LimitExceededError(
                f"{self._name} must be at most {self._most} at a time",
                expected=f"at most {self._most}",
                got=self._most + 1,
                remedy="Call again when another one has ended; share one client per process.",
            )

    def leave(self) -> None:
        self._free.release()
