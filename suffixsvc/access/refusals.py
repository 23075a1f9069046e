"""Refusals by the limits of principals, and of users without a principal: counted, and logged once a minute.

Counting is an addition under a lock, since a decode step waits for it; a background task logs.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

import structlog

K = TypeVar("K")

log = structlog.get_logger(__name__)

#: a principal, or a user, is logged at most once in this time
REPORT_SECONDS: Final = 60.0
#: users that are logged in this time; further ones are not
MAX_USERS: Final = 100


class RefusalStats(NamedTuple):
    """Messages and sessions of a principal that one of its limits refused, since the service started.

    Attributes:
        principal: its name.
        limit: name of the limit in its policy, such as "requests_per_second".
        refused: how many.
    """

    principal: str
    limit: str
    refused: int


class Refusals:
    """The refusals of one server. Thread-safe.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts = Counter[tuple[str, str]]()
        self._principals = _Unreported[str]()
        self._users = _Unreported[int]()

    def count(self, principal: str, limit: str) -> None:
        """Count a message or a session that a limit of a principal refuses."""
        with self._lock:
            self._counts[principal, limit] += 1
            self._principals.add(principal, limit)

    def count_user(self, uid: int) -> None:
        """Count a connection of a user that no principal has."""
        with self._lock:
            if self._users.knows(uid) or len(self._users) < MAX_USERS:
                self._users.add(uid, "")

    def stats(self) -> list[RefusalStats]:
        """The counts of all principals, by name and limit."""
        with self._lock:
            return [RefusalStats(*key, refused) for key, refused in sorted(self._counts.items())]

    def report(self) -> None:
        """Log what was refused since the last line of each principal and user, unless that is recent."""
        now = self._clock()
        with self._lock:
            principals, users = self._principals.take(now), self._users.take(now)
        for principal, by_limit in principals:
            log.warning(
                "messages or sessions of a principal were refused: it is above its limits",
                principal=principal,
                refused=by_limit.total(),
                limits=", ".join(sorted(by_limit)),
            )
        for uid, connections in users:
            log.warning(
                "a user was refused at a unix socket: no principal has its user id",
                uid=uid,
                connections=connections.total(),
                remedy=f'[principals."NAME"] uids = [{uid}]',
            )


class _Unreported(Generic[K]):
    """Counts that are not logged yet, by who was refused. Not thread-safe."""

    def __init__(self) -> None:
        self._counts: dict[K, Counter[str]] = {}
        #: times of lines in the last REPORT_SECONDS
        self._reported: dict[K, float] = {}

    def __len__(self) -> int:
        return len(self._counts.keys() | self._reported.keys())

    def knows(self, who: K) -> bool:
        """Whether it is counted in the length."""
        return who in self._counts or who in self._reported

    def add(self, who: K, what: str) -> None:
        """Count one."""
        self._counts.setdefault(who, Counter())[what] += 1

    def take(self, now: float) -> list[tuple[K, Counter[str]]]:
        """Remove and return the counts of those without a line in the last REPORT_SECONDS."""
        self._reported = {who: at for who, at in self._reported.items() if now - at < REPORT_SECONDS}
        due = [(who, self._counts.pop(who)) for who in list(self._counts) if who not in self._reported]
        self._reported |= {who: now for who, _ in due}
        return due
