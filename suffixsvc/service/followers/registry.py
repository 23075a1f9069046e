"""Followers of a service: what they follow, how far they are, and who has applied a deletion.

A follower is in the registry while it is connected, and for a lease after that: as long as it may draft from
what it holds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from suffixsvc.access.caller import Caller
from suffixsvc.log_types import LogPosition
from suffixsvc.types import DeletionReceipt, FollowerName, OutputId

#: followers that are not connected any more, of which the registry keeps the newest
_MAX_VANISHED: Final = 256


def _nothing() -> int:
    return 0


@dataclass(slots=True, eq=False)
class Follower:
    """One follower. The registry's lock guards what changes.

    Attributes:
        name: its id and description.
        caller: whose follower it is.
        wake: makes its stream look at the log again.
        replaced: ends its stream, because another one of the same follower began.
        namespaces: what it follows, in the order of the requests.
        carried: what its stream before this one followed, until its first report: it may hold that still.
        applied: the LSN up to which its drafts hold everything and nothing that was deleted by then.
        reported_at: time of its last report, or of its beginning.
        left_at: time of its end; None while it is connected.
        held_bytes, mapped_bytes: as it reported them.
        live_lost: times that its live text was dropped.
        unacknowledged_tokens: of its sessions, as it reported.
        live_queued: returns the bytes of live text that wait to be sent to it.
        unlearned: how often each namespace had unlearned when the follower last reported what it learned;
            none of a namespace that had not.
    """

    name: FollowerName
    caller: Caller
    wake: Callable[[], None]
    replaced: Callable[[], None]
    reported_at: float
    namespaces: dict[str, None] = field(default_factory=dict)
    carried: frozenset[str] = frozenset()
    applied: OutputId = 0
    left_at: float | None = None
    held_bytes: int = 0
    mapped_bytes: int = 0
    live_lost: int = 0
    unacknowledged_tokens: int = 0
    live_queued: Callable[[], int] = _nothing
    unlearned: dict[str, int] = field(default_factory=dict)

    def may_hold(self, path: str) -> bool:
        """Whether it may draft from a namespace."""
        return path in self.namespaces or path in self.carried


@dataclass(frozen=True, slots=True)
class FollowerState:
    """A follower at one moment, for statistics; the fields are those of :class:`Follower`."""

    name: FollowerName
    principal: str
    namespaces: tuple[str, ...]
    connected: bool
    applied: OutputId
    silent_seconds: float
    held_bytes: int
    mapped_bytes: int
    live_lost: int
    live_queued_bytes: int
    unacknowledged_tokens: int


class FollowerRegistry:
    """The followers of one service. Thread-safe.

    Args:
        lease_seconds: time without a message after which a follower stops drafting from shared text.
    """

    def __init__(self, lease_seconds: float) -> None:
        self.lease_seconds = lease_seconds
        self._changed = threading.Condition()
        #: by principal and id
        self._followers: dict[str, Follower] = {}
        self._closed = False
        #: an LSN that a deletion waits for: streams send the position when they have reached it
        self.awaited: OutputId = 0
        #: times that live text of a follower was dropped, also of those that have gone
        self.live_lost = 0

    # ------------------------------------------------------------------------------------ by the streams

    def connect(
        self,
        name: FollowerName,
        caller: Caller,
        wake: Callable[[], None],
        replaced: Callable[[], None],
        live_queued: Callable[[], int] = _nothing,
    ) -> Follower:
        """Add a follower whose stream begins; an older stream of the same follower is told to end."""
        follower = Follower(name, caller, wake, replaced, time.monotonic(), live_queued=live_queued)
        key = caller.scope + name.follower_id
        with self._changed:
            before = self._followers.pop(key, None)
            if before is not None:
                follower.live_lost, follower.unlearned = before.live_lost, before.unlearned
                follower.carried = before.carried | frozenset(before.namespaces)
            self._followers[key] = follower
        if before is not None and before.left_at is None:
            before.replaced()
        return follower

    def disconnect(self, follower: Follower) -> None:
        """Record the end of a stream."""
        with self._changed:
            follower.left_at = time.monotonic()
            follower.live_queued = _nothing
            self._forget_vanished()
            self._changed.notify_all()

    def follow(self, follower: Follower, path: str) -> None:
        """Record that a follower is sent a namespace from now on."""
        with self._changed:
            follower.namespaces[path] = None

    def unfollow(self, follower: Follower, path: str) -> None:
        """Record that a follower holds a namespace no longer."""
        with self._changed:
            follower.namespaces.pop(path, None)
            follower.carried -= {path}
            self._changed.notify_all()

    def report(
        self,
        follower: Follower,
        applied: OutputId,
        held_bytes: int,
        mapped_bytes: int,
        unacknowledged_tokens: int = 0,
    ) -> None:
        """Record a follower's report."""
        with self._changed:
            follower.reported_at = time.monotonic()
            follower.carried = frozenset()
            follower.applied = max(follower.applied, applied)
            follower.held_bytes, follower.mapped_bytes = held_bytes, mapped_bytes
            follower.unacknowledged_tokens = unacknowledged_tokens
            self._changed.notify_all()

    def count_lost(self, follower: Follower) -> None:
        """Count that a follower's live text was dropped."""
        with self._changed:
            follower.live_lost += 1
            self.live_lost += 1

    # ---------------------------------------------------------------------------------------- by others

    def states(self, path: str = "") -> list[FollowerState]:
        """The followers of a namespace, or all, by id."""
        now = time.monotonic()
        with self._changed:
            self._forget_vanished()
            return [
                FollowerState(
                    each.name,
                    each.caller.principal,
                    tuple(each.namespaces),
                    each.left_at is None,
                    each.applied,
                    now - each.reported_at,
                    each.held_bytes,
                    each.mapped_bytes,
                    each.live_lost,
                    each.live_queued(),
                    each.unacknowledged_tokens,
                )
                for _, each in sorted(self._followers.items())
                if not path or each.may_hold(path)
            ]

    def receipt(self, path: str, position: Callable[[], LogPosition], seconds: float) -> DeletionReceipt:
        """Wait until the followers of a namespace have applied a deletion that is in the log.

        Args:
            path: of the namespace.
            position: a position of the log after the deletion; not called if there are no followers.
            seconds: to wait at most. Followers that are not connected are not waited for.
        """
        with self._changed:
            if not any(self._holding(path)):
                return DeletionReceipt()
        lsn = position().lsn
        with self._changed:
            self.awaited = max(self.awaited, lsn)
            holding = list(self._holding(path))
            wakes = [each.wake for each in holding if each.left_at is None]
        for wake in wakes:
            wake()

        def is_silent(each: Follower) -> bool:
            return each.may_hold(path) and each.applied < lsn

        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or not any(is_silent(e) for e in holding if e.left_at is None), seconds
            )
            silent = [each for each in holding if is_silent(each)]
        return DeletionReceipt(
            tuple(each.name for each in holding if each not in silent), tuple(each.name for each in silent)
        )

    def close(self) -> None:
        """End the waits for receipts."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _holding(self, path: str) -> Iterator[Follower]:
        self._forget_vanished()
        return (each for each in self._followers.values() if each.may_hold(path))

    def _forget_vanished(self) -> None:
        """Remove those that were connected a lease ago for the last time."""
        left = [(each.left_at, key) for key, each in self._followers.items() if each.left_at is not None]
        expired = time.monotonic() - self.lease_seconds
        surplus = sorted(left)[: max(0, len(left) - _MAX_VANISHED)]
        for key in {key for at, key in left if at < expired} | {key for _, key in surplus}:
            del self._followers[key]
