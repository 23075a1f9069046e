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

A call beyond the limit is refused (RESOURCE_EXHAUSTED) instead of queued, unless another call of its kind has
sent nothing for SILENT_SECONDS: the oldest of those is cancelled, and the new call takes its place. So calls
that are opened and send nothing keep no place from calls that send something.

A call is preemptible until its first message has been read, not until it has arrived: gRPC for Python does
not report what has arrived. SILENT_SECONDS is the time that the call's thread has for reading it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

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
    "SILENT_SECONDS",
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
#: how long a call holds its place in any case, also before its first message is read
SILENT_SECONDS: Final = 1.0

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
        """Size of the server's thread pool: every place, and the threads that refuse."""
        return sum(kind.limit for kind in (*self._kinds.values(), self._others)) + _REFUSING_THREADS

    def enter(self, method: str, cancel: Callable[[], object]) -> Place:
        """Take a place for a call; the caller leaves it when the call ends.

        Args:
            method: with its service, as in "/grpc.health.v1.Health/Check".
            cancel: ends the call. Used where the call is preempted, before :meth:`Place.mark_received`.

        Raises:
            LimitExceededError: no place is free.
        """
        known = _REFLECTION if method.startswith(_REFLECTION) else method
        return self._kinds.get(known, self._others).enter(cancel)


class Place:
    """The place of one call."""

    def __init__(self, kind: _Kind) -> None:
        self._kind = kind

    def mark_received(self) -> None:
        """The call's first message, or its end, has been read: the call is preemptible no longer.

        Raises:
            LimitExceededError: the call was preempted before.
        """
        self._kind.mark_received(self)

    def leave(self) -> None:
        """The call has ended."""
        self._kind.leave(self)


class _Silent(NamedTuple):
    """A call whose first message has not been read."""

    since: float
    cancel: Callable[[], object]


class _Kind:
    """Calls of one kind, at most ``limit`` at a time."""

    def __init__(self, name: str, limit: int, remedy: str = _CALL_AGAIN) -> None:
        self._name = name
        self.limit = limit
        self._remedy = remedy
        self._lock = threading.Lock()
        self._held = 0
        #: preemptible calls, the oldest first
        self._silent: dict[Place, _Silent] = {}
        #: calls that have not ended, and whose places other calls hold
        self._preempted: set[Place] = set()

    def enter(self, cancel: Callable[[], object]) -> Place:
        place = Place(self)
        with self._lock:
            now = time.monotonic()  # in the order of the lock, which is the order of `_silent`
            preempted = None
            if self._held < self.limit:
                self._held += 1
            else:
                preempted = self._preempt_oldest(now - SILENT_SECONDS)
            self._silent[place] = _Silent(now, cancel)
        if preempted is not None:
            # The new call holds the place and its caller does not know it yet: an error here, of a log whose
            # pipe is closed, say, would take the place away for good.
            with contextlib.suppress(Exception):
                preempted.cancel()
            with contextlib.suppress(Exception):
                log.info("a call was silent and another one took its place: cancelled", kind=self._name)
        return place

    def _preempt_oldest(self, silent_since: float) -> _Silent:
        """Take the place of the oldest silent call, with the lock held.

        Raises:
            LimitExceededError: no call has been silent since then.
        """
        for place, silent in self._silent.items():
            if silent.since > silent_since:
                break
            del self._silent[place]
            self._preempted.add(place)
            return silent
        raise self._refused()

    def mark_received(self, place: Place) -> None:
        with self._lock:
            if place in self._preempted:
                raise self._refused()
            self._silent.pop(place, None)

    def leave(self, place: Place) -> None:
        with self._lock:
            self._silent.pop(place, None)
            if place in self._preempted:
                self._preempted.remove(place)
            else:
                self._held -= 1

    def _refused(self) -> LimitExceededError:
        return LimitExceededError(
            f"{self._name} must be at most {self.limit} at a time",
            expected=f"at most {self.limit}",
            got=self.limit + 1,
            remedy=self._remedy,
        )
