"""Admission control: a limit on the concurrent calls of each kind, so that no kind exhausts the thread pool.

Every call occupies a thread of the server's pool from its first byte to its end. The pool has as many threads
as all kinds together may hold, and a few more for calls that are about to be refused:

    Stream                   --max-streams
    Watch                    --max-followers
    FetchSegment             MAX_FETCHES
    AddOutputs               MAX_UPLOADS
    ExportNgrams             MAX_EXPORT_CALLS (handlers.py limits how many of them count or are read)
    reflection               MAX_REFLECTIONS
    Health.Watch             MAX_WATCHES
    Health.Check             MAX_CHECKS
    everything else          MAX_SHORT_CALLS

A call over the limit is refused (RESOURCE_EXHAUSTED) instead of queued, unless another call of its kind has
sent nothing for SILENT_SECONDS: the oldest of those is preempted (cancelled in favour of the new call). Calls
that are opened and send nothing therefore cannot block calls that send something.

Where several principals have credentials, each takes at most as many permits of a kind as it leaves, or one:
a principal that takes all it can get leaves permits for every other one.

A call is preemptible until its first message has been read, not until it has arrived: gRPC for Python does
not report arrivals. SILENT_SECONDS is the time that the call's thread has for reading it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog

from suffixsvc.access.principals import OPERATOR
from suffixsvc.errors import LimitExceededError
from suffixsvc.runtime.closing import ClosedOnExit

log = structlog.get_logger(__name__)

#: calls of AddOutputs; agents that add single outputs concurrently use one each
MAX_UPLOADS: Final = 128
#: those that are read, one that counts, one that is refused
MAX_EXPORT_CALLS: Final = 6
#: calls of Watch by default
MAX_FOLLOWERS: Final = 64
MAX_FETCHES: Final = 4
MAX_BACKUPS: Final = 1
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
        max_followers: limit on concurrent calls of Watch; 0: following is not allowed.
        shared: whether several principals have credentials.
    """

    def __init__(
        self,
        max_streams: int,
        max_followers: int = MAX_FOLLOWERS,
        shared: Callable[[], bool] = lambda: False,
    ) -> None:
        self._shared = shared
        self._others = _CallLimit("calls of one request", MAX_SHORT_CALLS)
        self._kinds = {
            CHECK: _CallLimit("health checks", MAX_CHECKS),
            _WATCH: _CallLimit("health watches", MAX_WATCHES),
            _REFLECTION: _CallLimit("reflection calls", MAX_REFLECTIONS),
            f"{_OURS}AddOutputs": _CallLimit("calls of AddOutputs", MAX_UPLOADS),
            f"{_OURS}ExportNgrams": _CallLimit("calls of ExportNgrams", MAX_EXPORT_CALLS),
            f"{_OURS}Backup": _CallLimit("backups", MAX_BACKUPS),
            f"{_OURS}FetchSegment": _CallLimit("calls of FetchSegment", MAX_FETCHES),
            f"{_OURS}Watch": _CallLimit(
                "followers",
                max_followers,
                "Let processes share a follower, or serve with a larger --max-followers."
                if max_followers
                else "This service allows no followers: connect with mode='remote', or serve with "
                "--max-followers N.",
            ),
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

    def acquire(self, method: str, cancel: Callable[[], object], principal: str = OPERATOR) -> CallPermit:
        """Acquire a permit for a call; the caller closes it when the call ends.

        Args:
            method: with its service, as in "/grpc.health.v1.Health/Check".
            cancel: ends the call; used to preempt it before :meth:`CallPermit.mark_received`.
            principal: of the caller.

        Raises:
            LimitExceededError: all permits of the call's kind are in use, or the principal has its share.
        """
        known = _REFLECTION if method.startswith(_REFLECTION) else method
        return self._kinds.get(known, self._others).acquire(cancel, principal, self._shared)


class CallPermit(ClosedOnExit):
    """The right of one call to occupy a thread, until it is closed.

    Args:
        kind: its kind, whose lock guards the permit.
        cancel: ends the call.
        principal: of its caller.
    """

    def __init__(self, kind: _CallLimit, cancel: Callable[[], object], principal: str) -> None:
        self._kind = kind
        self.cancel = cancel
        self.principal = principal
        self.since = time.monotonic()
        #: another call holds the permit
        self.preempted = False

    def mark_received(self) -> None:
        """Record that the call's first message, or its end, has been read: it can no longer be preempted.

        Raises:
            LimitExceededError: the call has been preempted.
        """
        with self._kind.lock:
            if self.preempted:
                raise self._kind.refused()
            self._kind.silent.pop(self, None)

    def close(self) -> None:
        """Return the permit at the end of the call."""
        with self._kind.lock:
            self._kind.silent.pop(self, None)
            if not self.preempted:
                self._kind.released(self)


class _CallLimit:
    """The permits of one kind of call, at most ``limit`` at a time."""

    def __init__(self, name: str, limit: int, remedy: str = _CALL_AGAIN) -> None:
        self._name = name
        self.limit = limit
        self._remedy = remedy
        self.lock = threading.Lock()
        self.in_use = 0
        #: of these, those of each principal
        self._of = Counter[str]()
        #: preemptible calls, whose first message has not been read; an ordered set, the oldest first
        self.silent: dict[CallPermit, None] = {}

    def acquire(self, cancel: Callable[[], object], principal: str, shared: Callable[[], bool]) -> CallPermit:
        preempted = None
        with self.lock:
            permit = CallPermit(self, cancel, principal)  # under the lock: `silent` is ordered by time
            own = self._of[principal]
            has_share = principal != OPERATOR and 0 < own >= self.limit - self.in_use and shared()
            if has_share or self.in_use >= self.limit:
                of = principal if has_share else None
                preempted = self._preempt_oldest(permit.since - SILENT_SECONDS, of)
                self.released(preempted)
            self.in_use += 1
            self._of[principal] += 1
            self.silent[permit] = None
        if preempted is not None:
            # An error here, such as that of a closed log pipe, would leak the permit: the new call holds it
            # and its caller has not received it yet.
            with contextlib.suppress(Exception):
                preempted.cancel()
            with contextlib.suppress(Exception):
                log.info("a silent call was preempted", kind=self._name)
        return permit

    def _preempt_oldest(self, silent_since: float, principal: str | None) -> CallPermit:
        """Take the permit of the oldest silent call, with the lock held.

        Args:
            principal: of its caller; None: any.

        Raises:
            LimitExceededError: no call has been silent for long enough.
        """
        found = (each for each in self.silent if principal is None or each.principal == principal)
        oldest = next(found, None)
        if oldest is None or oldest.since > silent_since:
            raise self.refused() if principal is None else self._refused_share(principal)
        del self.silent[oldest]
        oldest.preempted = True
        return oldest

    def released(self, permit: CallPermit) -> None:
        """Count a permit that is returned, with the lock held."""
        self.in_use -= 1
        self._of[permit.principal] -= 1
        if not self._of[permit.principal]:
            del self._of[permit.principal]

    def _refused_share(self, principal: str) -> LimitExceededError:
        return LimitExceededError(
            f"{self._name} of the principal {principal!r} must be at most as many as it leaves to others",
            expected=f"at most {self.limit - self.in_use}",
            got=self._of[principal] + 1,
            remedy=self._remedy,
        )

    def refused(self) -> LimitExceededError:
        return LimitExceededError(
            f"{self._name} must be at most {self.limit} at a time",
            expected=f"at most {self.limit}",
            got=self.limit + 1,
            remedy=self._remedy,
        )
