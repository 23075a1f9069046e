"""Which sequences are alive, and which of them a view continues."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

from suffixsvc.types import BackendSession
from suffixsvc_driver.adapters.live_sequence import LiveSequence, View

__all__ = ["LiveTable"]

#: sequences that the engine goes on with may be so many times ``most``: it may close the least recently used
#: of them, whose output is then kept in two parts, rather than hold sessions without bound
_MOST_GOING_ON: Final = 8


class LiveTable:
    """A bounded number of sequences: those that are over go first, then the least recently used of those of
    which the engine says nothing; those that it goes on with stay, up to eight times the number. Thread-safe.

    A claimed sequence belongs to the caller until it is released: nobody else finds it, and it is not
    dropped. Whatever drops sequences returns their sessions, to be closed without any lock held.

    Args:
        most: sequences; more only while more are claimed at once, or the engine goes on with more.
        idle_seconds: sequences unused for so long are dropped by :meth:`drop_idle`.
        is_over: whether the engine is done with a hint: True = its sequence has ended, False = it goes on
            however long it is idle, None = unknown. Called with the table's lock held; must not raise.
    """

    def __init__(
        self,
        most: int,
        idle_seconds: float,
        clock: Callable[[], float],
        is_over: Callable[[Hashable], bool | None] | None = None,
    ) -> None:
        self._most = most
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._is_over = is_over
        self._lock = threading.Lock()
        self._sealed = False
        self._by_use: OrderedDict[int, LiveSequence] = OrderedDict()
        self._by_hint: dict[Hashable, LiveSequence] = {}

    def __len__(self) -> int:
        return len(self._by_use)

    def claim(self, view: View, hint: Hashable, named: bool = False) -> LiveSequence | None:
        """The sequence that this view continues: the one of that name if it does, else the one of which most
        is known, of equals the last used; with ``named`` no other than the one of that name.
        None: there is none, or others are working with it."""
        with self._lock:
            found = None if hint is None else self._by_hint.get(hint)
            if found is None or found.busy or not found.is_continued_by(view):
                found = None if named else self._look_for(view)
            if found is not None:
                found.busy = True
                self._use(found, hint)
            return found

    def enter(self, sequence: LiveSequence, hint: Hashable) -> list[BackendSession]:
        """Take in a new one, claimed; returns the sessions of those that made room."""
        with self._lock:
            self._by_use[id(sequence)] = sequence
            self._use(sequence, hint)
            surplus = len(self._by_use) - self._most
            return self._drop(*self._least_needed(surplus)) if surplus > 0 else []

    def release(self, sequence: LiveSequence) -> list[BackendSession]:
        """The caller is done with it; returns its session if :meth:`seal` was called meanwhile."""
        with self._lock:
            sequence.busy = False
            return self._drop(sequence) if self._sealed else []

    def discard(self, sequence: LiveSequence) -> list[BackendSession]:
        """The caller is done with a sequence that has ended; returns its session."""
        with self._lock:
            sequence.busy = False
            return self._drop(sequence)

    def drop(self, hint: Hashable) -> list[BackendSession]:
        """The sequence of that name, if there is one and nobody works with it."""
        with self._lock:
            sequence = self._by_hint.get(hint)
            return [] if sequence is None or sequence.busy else self._drop(sequence)

    def drop_idle(self) -> list[BackendSession]:
        """Those that have ended or are idle."""
        with self._lock:
            since = self._clock() - self._idle_seconds
            return self._drop(*(s for s in self._by_use.values() if not s.busy and self._has_ended(s, since)))

    def drop_all(self) -> list[BackendSession]:
        """All that nobody works with."""
        with self._lock:
            return self._drop(*(s for s in self._by_use.values() if not s.busy))

    def seal(self) -> list[BackendSession]:
        """Drop all, those that are being worked with when they are released."""
        with self._lock:
            self._sealed = True
        return self.drop_all()

    def _has_ended(self, sequence: LiveSequence, since: float) -> bool:
        over = self._state(sequence)
        return over is True or (sequence.used_at <= since and over is None)

    def _least_needed(self, surplus: int) -> list[LiveSequence]:
        """So many, or fewer where the engine goes on with the rest."""
        by_state: dict[bool | None, list[LiveSequence]] = {True: [], None: [], False: []}
        for sequence in self._by_use.values():
            if not sequence.busy:
                by_state[self._state(sequence)].append(sequence)
        gone = [*by_state[True], *by_state[None]][:surplus]
        beyond = len(self._by_use) - len(gone) - _MOST_GOING_ON * self._most
        return gone + by_state[False][: max(0, beyond)]

    def _state(self, sequence: LiveSequence) -> bool | None:
        """Whether it is over: True, False, or None where the engine does not know."""
        said = set() if self._is_over is None else {self._is_over(hint) for hint in sequence.hints}
        return True if True in said else False if False in said else None

    def _look_for(self, view: View) -> LiveSequence | None:
        if view.start:  # a tail alone tells nobody whose it is
            return None
        best: LiveSequence | None = None
        for sequence in reversed(self._by_use.values()):
            longer = best is None or sequence.end > best.end
            if longer and not sequence.busy and not sequence.origin and sequence.is_continued_by(view):
                best = sequence
        return best

    def _use(self, sequence: LiveSequence, hint: Hashable) -> None:
        sequence.used_at = self._clock()
        self._by_use.move_to_end(id(sequence))
        if hint is not None:
            before = self._by_hint.get(hint)
            if before is not None:
                before.hints.discard(hint)
            self._by_hint[hint] = sequence
            sequence.hints.add(hint)

    def _drop(self, *sequences: LiveSequence) -> list[BackendSession]:
        sessions = []
        for sequence in sequences:
            del self._by_use[id(sequence)]
            for hint in sequence.hints:
                del self._by_hint[hint]
            sequence.hints.clear()
            if sequence.session is not None:
                sessions.append(sequence.session)
                sequence.session = None
        return sessions
