"""Table of live and recently closed sessions, by name: the principal and the id that its client chose.

One lock guards the maps and is held for look-ups only. Each entry has a slot at the core's StepDispatcher;
the slot's mutex is held while the engine session works, so that streams can share a session.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from suffixsvc.access.caller import Caller, SessionName
from suffixsvc.config import Limits
from suffixsvc.core import WIRE_SOURCES, SessionSlot, StepDispatcher
from suffixsvc.errors import InvalidInputError, LimitExceededError, SuffixError
from suffixsvc.service.messages.errors import shutting_down_error
from suffixsvc.service.sessions.entries import ClosedSession, Identity, Needs, SessionEntry, not_live_error

if TYPE_CHECKING:
    from suffixsvc.engine import Session

#: closed sessions whose result is stored for a repeated close
RECENTLY_CLOSED = 4096


class SessionTable:
    """The entries of one service's sessions. Thread-safe.

    Args:
        limits: of the service; ``max_sessions`` bounds the live sessions.
    """

    def __init__(self, limits: Limits) -> None:
        self._max_sessions = limits.max_sessions
        self._lock = threading.Lock()
        self._entries: dict[str, SessionEntry] = {}
        #: live sessions by scope
        self._live = Counter[str]()
        self._recently_closed: OrderedDict[str, ClosedSession] = OrderedDict()
        #: whether new sessions are refused
        self.draining = False
        #: answers plain steps without Python; holds the slots of the live sessions
        self.dispatcher = StepDispatcher(limits.max_draft_tokens, WIRE_SOURCES)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_full(self) -> bool:
        """Whether there are as many sessions as the service may have."""
        return len(self._entries) >= self._max_sessions

    def entries(self) -> list[SessionEntry]:
        """Entries of the sessions that are open or being opened."""
        with self._lock:
            return list(self._entries.values())

    def get(self, name: SessionName) -> SessionEntry | None:
        """The entry of this name; its session may have ended when its lock is acquired."""
        return self._entries.get(name.key)  # a single dict look-up needs no lock

    def closed(self, name: SessionName) -> ClosedSession | None:
        """Result of the last session of this name; None while it is that of a live session, or unknown."""
        with self._lock:
            return None if name.key in self._entries else self._recently_closed.get(name.key)

    @contextmanager
    def locked(self, name: SessionName, *, touch: bool = True) -> Iterator[tuple[SessionEntry, Session]]:
        """Hold the lock of a live session for the block.

        Args:
            touch: count this as a use of the session. A close is not one (failed_closes.py).

        Raises:
            UnknownSessionError, SessionClosedError: no session of this name is live.
            ServiceUnavailableError: the service is draining.
        """
        entry = self.get(name)
        if entry is None:
            raise self.missing(name)
        with entry.lock:
            if entry.session is None:
                raise self.missing(name)
            if touch:
                entry.slot.last_active = time.monotonic()
            yield entry, entry.session

    def missing(self, name: SessionName) -> SuffixError:
        """The error for a name of no live session. ServiceUnavailableError is raised while draining."""
        self._refuse_while_draining()
        return not_live_error(name.id, self.closed(name))

    def get_or_create(
        self, name: SessionName, caller: Caller, identity: Identity, needs: Needs
    ) -> SessionEntry:
        """The entry to open a session under.

        Raises:
            LimitExceededError: the session limit is reached.
            InvalidInputError: a session of the same name and another identity is live.
            ServiceUnavailableError: the service is draining.
        """
        with self._lock:
            self._refuse_while_draining()
            entry = self._entries.get(name.key)
            if entry is None:
                if self.is_full:
                    raise LimitExceededError(
                        "too many live sessions",
                        expected=f"at most {self._max_sessions}",
                        got=len(self._entries) + 1,
                        remedy="Close finished sessions, or serve with a larger --max-sessions.",
                    )
                most = caller.limits.max_sessions
                if most is not None and self._live[name.scope] >= most:
                    caller.count_refusal("max_sessions")
                    raise LimitExceededError(
                        f"live sessions of the principal {caller.principal!r} must be at most {most}",
                        got=most + 1,
                        remedy="Close finished sessions.",
                    )
                self._require_share(name.scope, caller)
                self._live[name.scope] += 1
                slot = SessionSlot()
                entry = self._entries[name.key] = SessionEntry(name, caller, identity, needs, slot, slot)
            elif entry.identity != identity:
                raise InvalidInputError(
                    f"session_id {name.id} must be unused, or of a session with this namespace and prompt",
                    expected="an unused id, or the same namespace and prompt",
                    got=f"namespace {identity[0]}",
                )
            return entry

    def _require_share(self, scope: str, caller: Caller) -> None:
        """Raise LimitExceededError if a principal has as many sessions as it leaves to others."""
        own, left = self._live[scope], self._max_sessions - len(self._entries)
        if scope and 0 < own >= left and caller.is_one_of_several:
            raise LimitExceededError(
                f"live sessions of the principal {caller.principal!r} must be at most as many as it leaves "
                "to others",
                expected=f"at most {left}",
                got=own + 1,
                remedy="Close finished sessions, or serve with a larger --max-sessions.",
            )

    def remove_unopened(self, entry: SessionEntry) -> None:
        """Remove an entry whose session could not be opened."""
        with self._lock:
            del self._entries[entry.name.key]
            self._live[entry.name.scope] -= 1

    def opened(self, entry: SessionEntry) -> None:
        """Publish an opened session to the dispatcher; its name is that of this session from now on."""
        self.dispatcher.add(entry.name.key, entry.slot)
        with self._lock:
            previous = self._recently_closed.pop(entry.name.key, None)
            if previous is not None and previous.identity == entry.identity:
                entry.previous_outputs = previous.incomplete_outputs

    def ended(self, entry: SessionEntry, closed: ClosedSession) -> None:
        """Move an entry to the recently closed sessions. The entry's lock is held."""
        entry.session = None
        entry.slot.detach()
        self.dispatcher.remove(entry.name.key)
        with self._lock:
            if self._entries.pop(entry.name.key, None) is not None:
                self._live[entry.name.scope] -= 1
            self._store_closed(entry.name.key, closed)

    def discarded(self, name: SessionName, previous: ClosedSession | None) -> None:
        """Record that the outputs of a session that is no longer live were discarded."""
        identity = ("", "") if previous is None else previous.identity
        with self._lock:
            if name.key not in self._entries:
                self._store_closed(name.key, ClosedSession(identity, None, expired=False))

    def _store_closed(self, key: str, closed: ClosedSession) -> None:
        self._recently_closed[key] = closed
        while len(self._recently_closed) > RECENTLY_CLOSED:
            self._recently_closed.popitem(last=False)

    def _refuse_while_draining(self) -> None:
        if self.draining:
            raise shutting_down_error("Connect again when it is back; sessions can be resumed.")
