"""Places of calls: how many of each kind are served at a time, so that no kind uses up the threads of all.

Every call takes a thread of the server's pool from its first byte to its end. The pool has as many threads as
all kinds together may hold, and some for calls that are about to be refused:

    Stream                   --max-streams
    AddOutputs               MAX_UPLOADS
    ExportNgrams             MAX_EXPORT_CALLS (how many of them count or are read: handlers.py)
    reflection               MAX_REFLECTIONS
    Health.Watch             MAX_WATCHES
    Health.Check             MAX_CHECKS
    everything else          MAX_SHORT_CALLS

A call beyond is refused (RESOURCE_EXHAUSTED) instead of queued, unless another one of its kind has not sent
its request yet: the first of those is cancelled, and the new call has its place. Calls that are opened and
send nothing so keep no place from a call that does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import structlog

from suffixsvc.errors import LimitExceededError

__all__ = [
    "CHECK",
    "MAX_CHECKS",
    "MAX_EXPORT_CALLS",
    "MAX_REFLECTIONS",
    "MAX_SHORT_CALLS",
    "MAX_UPLOADS",
    "MAX_WATCHES",
    "Admission",
    "Place",
]

log = structlog.get_logger(__name__)

#: calls of AddOutputs, single outputs that agents add side by side among them
MAX_UPLOADS: Final = 128
#: those that are read, one that counts, one to be refused
MAX_EXPORT_CALLS: Final = 6
MAX_REFLECTIONS: Final = 8
MAX_WATCHES: Final = 64
MAX_CHECKS: Final = 16
#: calls of one request and one answer; closes wait for the disk side by side
MAX_SHORT_CALLS: Final = 512
#: threads for calls that have no place yet
_REFUSING_THREADS: Final = 8

CHECK: Final = "/grpc.health.v1.Health/Check"
_WATCH: Final = "/grpc.health.v1.Health/Watch"
_REFLECTION: Final = "/grpc.reflection."
_OURS: Final = "/suffixsvc.v1.SuffixCache/"

_CALL_AGAIN: Final = "Call again when another one has ended; share one client per process."


class Admission:
    """The places of one server. Thread-safe.

    Args:
        max_streams: how many calls of Stream there may be.
    """

    def __init__(self, max_streams: int) -> None:
        self._others = _Kind("calls of one request", MAX_SHORT_CALLS)
        self._kinds = {
            CHECK: _Kind("health checks", MAX_CHECKS),
            _WATCH: _Kind("health watches", MAX_WATCHES),
            _REFLECTION: _Kind("reflection calls", MAX_REFLECTIONS),
            f"{_OURS}AddOutputs": _Kind("calls of AddOutputs", MAX_UPLOADS),
            f"{_OURS}ExportNgrams": _Kind("calls of ExportNgrams", MAX_EXPORT_CALLS),
            f"{_OURS}Stream": _Kind(
                "streams",
                max_streams,
                "Share one client per process, or serve with a larger --max-streams.",
            ),
        }

    @property
    def threads(self) -> int:
        """That the pool of this server has to have."""
        return sum(kind.most for kind in (*self._kinds.values(), self._others)) + _REFUSING_THREADS

    def enter(self, method: str, cancel: Callable[[], object] | None) -> Place:
        """The place of a call; it is to be left at its end.

        Args:
            method: with its service, as in "/grpc.health.v1.Health/Check".
            cancel: ends the call, which gives way to others until :meth:`Place.keep`. None: it never does.

        Raises:
            LimitExceededError: none is free.
        """
        known = _REFLECTION if method.startswith(_REFLECTION) else method
        return self._kinds.get(known, self._others).enter(cancel)


class Place:
    """The place of one call."""

    def __init__(self, kind: _Kind, cancel: Callable[[], object] | None) -> None:
        self._kind = kind
        self.cancel = cancel
        #: another call has it
        self.lost = False

    def keep(self) -> None:
        """The call's request has come: it gives way no longer. LimitExceededError: it did already."""
        self._kind.keep(self)

    def leave(self) -> None:
        """The call has ended."""
        self._kind.leave(self)


class _Kind:
    """Calls of one kind and how many of them there may be."""

    def __init__(self, name: str, most: int, remedy: str = _CALL_AGAIN) -> None:
        self._name = name
        self.most = most
        self._remedy = remedy
        self._lock = threading.Lock()
        self._held = 0
        #: calls that give way, the oldest first; the values mean nothing
        self._silent: dict[Place, None] = {}

    def enter(self, cancel: Callable[[], object] | None) -> Place:
        place = Place(self, cancel)
        with self._lock:
            replaced = None
            if self._held < self.most:
                self._held += 1
            else:
                replaced = next(iter(self._silent), None)
                if replaced is None:
                    raise self._refused()
                del self._silent[replaced]
                replaced.lost = True
            if cancel is not None:
                self._silent[place] = None
        if replaced is not None and replaced.cancel is not None:
            log.info("a call that sent no request gave way to another", kind=self._name)
            replaced.cancel()
        return place

    def keep(self, place: Place) -> None:
        with self._lock:
            if place.lost:
                raise self._refused()
            self._silent.pop(place, None)

    def leave(self, place: Place) -> None:
        with self._lock:
            self._silent.pop(place, None)
            if not place.lost:
                self._held -= 1

    def _refused(self) -> LimitExceededError:
        return LimitExceededError(
            f"{self._name} must be at most {self.most} at a time",
            expected=f"at most {self.most}",
            got=self.most + 1,
            remedy=self._remedy,
        )
