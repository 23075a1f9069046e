"""Admission control: a limit on the concurrent calls of each kind, so that no kind exhausts the thread pool.

Every call occupies a thread of the server's pool from its first byte to its end. The pool has as many threads
as all kinds together may hold, and a few more for calls that are about to be refused:

    Stream                   --max-streams
    AddOutputs               MAX_UPLOADS
    ExportNgrams             MAX_EXPORT_CALLS (handlers.py limits how many of them count or are read)
    reflection               MAX_REFLECTIONS
    Health.Watch             MAX_WATCHES
    Health.Check             MAX_CHECKS
    everything else          MAX_SHORT_CALLS

A call over the limit is refused (RESOURCE_EXHAUSTED) instead of queued, unless another call of its kind has
sent nothing for SILENT_SECONDS: the oldest of those is preempted (cancelled in favour of the new call). Calls
that are opened and send nothing therefore cannot block calls that send something.

A call is preemptible until its first message has been read, not until it has arrived: gRPC for Python does
not report arrivals. SILENT_SECONDS is the time that the call's thread has for reading it.
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
    "CallPermit",
]

log = structlog.get_logger(__name__)

#: calls of AddOutputs; agents that add single outputs concurrently use one each
MAX_UPLOADS: Final = 128
#: those that are read, one that counts, one that is refused
MAX_EXPORT_CALLS: Final = 6
MAX_REFLECTIONS: Final = 8
MAX_WATCHES: Final = 64
MAX_CHECKS: Final = 16
#: calls of one request and one answer; closes wait for the disk concurrently
MAX_SHORT_CALLS: Final = 512
#: threads for calls that hold no permit yet
_REFUSING_THREADS: Final = 8
#: time during which a call cannot be preempted, even if its first message has not been read
SILENT_SECONDS: Final = 1.0

CHECK: Final = "/grpc.health.v1.Health/Check"
_WATCH: Final = "/grpc.health.v1.Health/Watch"
_REFLECTION: Final = "/grpc.reflection."
_OURS: Final = "/suffixsvc.v1.SuffixCache/"

_CALL_AGAIN: Final = "Call again when another one has ended; share one client per process."


class Admission:
    """The call limits of one server. Thread-safe.

    Args:
        max_streams: limit on concurrent calls of Stream.
    """

    def __init__(self, max_streams: int) -> None:
        self._others = _CallLimit("calls of one request", MAX_SHORT_CALLS)
        self._kinds = {
            CHECK: _CallLimit("health checks", MAX_CHECKS),
            _WATCH: _CallLimit("health watches", MAX_WATCHES),
            _REFLECTION: _CallLimit("reflection calls", MAX_REFLECTIONS),
            f"{_OURS}AddOutputs": _CallLimit("calls of AddOutputs", MAX_UPLOADS),
            f"{_OURS}ExportNgrams": _CallLimit("calls of ExportNgrams", MAX_EXPORT_CALLS),
            f"{_OURS}Stream": _CallLimit(
                "streams",
                max_streams,
                "Share one client per process, or serve with a larger --max-streams.",
            ),
        }

    @property
    def threads(self) -> int:
        """Size of the server's thread pool: one thread per permit, and those for calls that are refused."""
        return sum(kind.limit for kind in (*self._kinds.values(), self._others)) + _REFUSING_THREADS

    def acquire(self, method: str, cancel: Callable[[], object]) -> CallPermit:
        """Acquire a permit for a call; the caller releases it when the call ends.

        Args:
            method: with its service, as in "/grpc.health.v1.Health/Check".
            cancel: ends the call; used to preempt it before :meth:`CallPermit.mark_received`.

        Raises:
            LimitExceededError: all permits of the call's kind are in use.
        """
        known = _REFLECTION if method.startswith(_REFLECTION) else method
        return self._kinds.get(known, self._others).acquire(cancel)


class CallPermit:
    """The right of one call to occupy a thread."""

    def __init__(self, kind: _CallLimit) -> None:
        self._kind = kind

    def mark_received(self) -> None:
        """Record that the call's first message, or its end, has been read: it can no longer be preempted.

        Raises:
            LimitExceededError: the call has been preempted.
        """
        self._kind.mark_received(self)

    def release(self) -> None:
        """Return the permit at the end of the call."""
        self._kind.release(self)


class _PendingCall(NamedTuple):
    """A call whose first message has not been read."""

    since: float
    cancel: Callable[[], object]


class _CallLimit:
    """The permits of one kind of call, at most ``limit`` at a time."""

    def __init__(self, name: str, limit: int, remedy: str = _CALL_AGAIN) -> None:
        self._name = name
        self.limit = limit
        self._remedy = remedy
        self._lock = threading.Lock()
        self._in_use = 0
        #: preemptible calls, the oldest first
        self._silent: dict[CallPermit, _PendingCall] = {}
        #: preempted calls that have not ended yet; other calls hold their permits
        self._preempted: set[CallPermit] = set()

    def acquire(self, cancel: Callable[[], object]) -> CallPermit:
        permit = CallPermit(self)
        with self._lock:
            now = time.monotonic()  # under the lock, so that `_silent` is ordered by time
            preempted = None
            if self._in_use < self.limit:
                self._in_use += 1
            else:
                preempted = self._preempt_oldest(now - SILENT_SECONDS)
            self._silent[permit] = _PendingCall(now, cancel)
        if preempted is not None:
            # An error here, such as that of a closed log pipe, would leak the permit: the new call holds it
            # and its caller has not received it yet.
            with contextlib.suppress(Exception):
                preempted.cancel()
            with contextlib.suppress(Exception):
                log.info("a silent call was preempted", kind=self._name)
        return permit

    def _preempt_oldest(self, silent_since: float) -> _PendingCall:
        """Take the permit of the oldest silent call, with the lock held.

        Raises:
            LimitExceededError: no call has been silent for long enough.
        """
        for permit, silent in self._silent.items():
            if silent.since > silent_since:
                break
            del self._silent[permit]
            self._preempted.add(permit)
            return silent
        raise self._refused()

    def mark_received(self, permit: CallPermit) -> None:
        with self._lock:
            if permit in self._preempted:
                raise self._refused()
            self._silent.pop(permit, None)

    def release(self, permit: CallPermit) -> None:
        with self._lock:
            self._silent.pop(permit, None)
            if permit in self._preempted:
                self._preempted.remove(permit)
            else:
                self._in_use -= 1

    def _refused(self) -> LimitExceededError:
        return LimitExceededError(
            f"{self._name} must be at most {self.limit} at a time",
            expected=f"at most {self.limit}",
            got=self.limit + 1,
            remedy=self._remedy,
        )
