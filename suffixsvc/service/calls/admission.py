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
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from suffixsvc.access.call_limits import CallLimit, CallPermit
from suffixsvc.access.principals import OPERATOR

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
CHECK: Final = "/grpc.health.v1.Health/Check"
_WATCH: Final = "/grpc.health.v1.Health/Watch"
_REFLECTION: Final = "/grpc.reflection."
_OURS: Final = "/suffixsvc.v1.SuffixCache/"


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
        self._others = CallLimit("calls of one request", MAX_SHORT_CALLS)
        self._kinds = {
            CHECK: CallLimit("health checks", MAX_CHECKS),
            _WATCH: CallLimit("health watches", MAX_WATCHES),
            _REFLECTION: CallLimit("reflection calls", MAX_REFLECTIONS),
            f"{_OURS}AddOutputs": CallLimit("calls of AddOutputs", MAX_UPLOADS),
            f"{_OURS}ExportNgrams": CallLimit("calls of ExportNgrams", MAX_EXPORT_CALLS),
            f"{_OURS}Backup": CallLimit("backups", MAX_BACKUPS),
            f"{_OURS}FetchSegment": CallLimit("calls of FetchSegment", MAX_FETCHES),
            f"{_OURS}Watch": CallLimit(
                "followers",
                max_followers,
                "Let processes share a follower, or serve with a larger --max-followers."
                if max_followers
                else "This service allows no followers: connect with mode='remote', or serve with "
                "--max-followers N.",
            ),
            f"{_OURS}Stream": CallLimit(
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
