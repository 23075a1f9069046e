"""Which sequences are alive, and which of them a view continues."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Final

from suffixsvc.types import BackendSession
from suffixsvc_driver.adapters.live_sequence import LiveSequence, View

__all__ = ["LiveTable"]

#: limit of running sequences, in multiples of ``most``: above it the least recently used one is evicted, and
#: its output is kept in two parts, rather than sessions held without bound
_RUNNING_FACTOR: Final = 8
#: sequences that one :meth:`LiveTable.enter` asks the engine about: each question holds the table's lock
_ASKED_PER_ENTRY: Final = 32


class LiveTable:
    """A bounded number of sequences. A new one evicts those that have ended, then the least recently used of
    those whose state the engine does not know; running ones stay, up to eight times the number. Thread-safe.

    Each new sequence asks about a bounded number of others, in turn, so the table may exceed its number until
    the turn comes to those that can be evicted.

    A claimed sequence belongs to the caller until it is released: nobody else finds it, and it is not
    dropped. Whatever drops sequences returns their sessions, to be closed without any lock held.

    Args:
        most: sequences; more only while more are claimed at once, are running, or have not been asked about.
        idle_seconds: sequences unused for so long are dropped by :meth:`drop_idle`.
        is_over: whether the engine is done with a hint: True = it has ended, False = it is running, however
            long it is idle, None = unknown. A sequence with several hints is running while one of them is.
            Called with the table's lock held; must not raise.
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
        #: the same sequences, those asked about longest ago first
        self._by_asked: OrderedDict[int, LiveSequence] = OrderedDict()

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
            self._by_use[id(sequence)] = self._by_asked[id(sequence)] = sequence
            self._use(sequence, hint)
            surplus = len(self._by_use) - self._most
            return self._drop(*self._eviction_candidates(surplus)) if surplus > 0 else []

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

    def _eviction_candidates(self, surplus: int) -> list[LiveSequence]:
        """As many as there are too many, or fewer where the others are running or were not asked about."""
        gone: dict[int, LiveSequence] = {}
        unknown: dict[int, LiveSequence] = self._by_use
        if self._is_over is not None:
            gone, unknown = self._ask_next(surplus)
        if unknown:
            lacking = max(0, surplus - len(gone))
            by_use = ((i, s) for i, s in self._by_use.items() if i in unknown and not s.busy)
            gone.update(list(islice(by_use, lacking)))
        beyond = max(0, len(self._by_use) - len(gone) - _RUNNING_FACTOR * self._most)
        others = ((i, s) for i, s in self._by_use.items() if i not in gone and not s.busy)
        gone.update(list(islice(others, beyond)))
        return list(gone.values())

    def _ask_next(self, surplus: int) -> tuple[dict[int, LiveSequence], dict[int, LiveSequence]]:
        """Ask the engine about the sequences whose turn it is, until enough have ended.

        Returns:
            Those that have ended, and those whose state is unknown.
        """
        ended: dict[int, LiveSequence] = {}
        unknown: dict[int, LiveSequence] = {}
        asked = 0
        for _ in range(len(self._by_asked)):
            if asked == _ASKED_PER_ENTRY or len(ended) >= surplus:
                break
            key, sequence = next(iter(self._by_asked.items()))
            self._by_asked.move_to_end(key)
            if sequence.busy:
                continue
            asked += 1
            state = self._state(sequence)
            if state is True:
                ended[key] = sequence
            elif state is None:
                unknown[key] = sequence
        return ended, unknown

    def _state(self, sequence: LiveSequence) -> bool | None:
        """Whether it has ended: True, False while it runs under any of its names, None if unknown."""
        said = set() if self._is_over is None else {self._is_over(hint) for hint in sequence.hints}
        return False if False in said else True if True in said else None

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
            del self._by_use[id(sequence)], self._by_asked[id(sequence)]
            for hint in sequence.hints:
                del self._by_hint[hint]
            sequence.hints.clear()
            if sequence.session is not None:
                sessions.append(sequence.session)
                sequence.session = None
        return sessions
