"""Limits of concurrent calls of one kind, and of each principal's share of them.

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

#: time during which a call cannot be preempted, even if its first message has not been read
SILENT_SECONDS: Final = 1.0

CALL_AGAIN: Final = "Call again when another one has ended; share one client per process."


class CallPermit(ClosedOnExit):
    """The right of one call to occupy a thread, until it is closed.

    Args:
        kind: its kind, whose lock guards the permit.
        cancel: ends the call.
        principal: of its caller.
    """

    def __init__(self, kind: CallLimit, cancel: Callable[[], object], principal: str) -> None:
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


class CallLimit:
    """The permits of one kind of call, at most ``limit`` at a time. Thread-safe.

    Args:
        name: of the calls, in errors.
        limit: most permits at a time.
        remedy: what a caller whose call is refused can do.
    """

    def __init__(self, name: str, limit: int, remedy: str = CALL_AGAIN) -> None:
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
        """Acquire a permit for a call; the caller closes it when the call ends.

        Args:
            cancel: ends the call; used to preempt it before :meth:`CallPermit.mark_received`.
            principal: of the caller.
            shared: whether several principals have credentials.

        Raises:
            LimitExceededError: all permits are in use, or the principal has its share.
        """
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
        """The error for a call while all permits are in use."""
        return LimitExceededError(
            f"{self._name} must be at most {self.limit} at a time",
            expected=f"at most {self.limit}",
            got=self.limit + 1,
            remedy=self._remedy,
        )
