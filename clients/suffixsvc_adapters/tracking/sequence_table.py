"""The table of live sequences: finds the sequence that a view continues, and evicts those that have ended."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Final

from suffixsvc.types import BackendSession
from suffixsvc_adapters.tracking.live_sequence import LiveSequence, View

#: limit of running sequences, in multiples of ``capacity``: above it the least recently used one is evicted,
#: and its output is stored in two parts, rather than sessions held without bound
_RUNNING_FACTOR: Final = 8
#: engine queries (``is_over``) in one :meth:`SequenceTable.insert`: each of them holds the table's lock
_QUERIES_PER_INSERT: Final = 32


class SequenceTable:
    """A bounded table of sequences. Thread-safe.

    A new sequence evicts those that have ended, then the least recently used ones of unknown state; running
    ones stay, up to eight times the capacity. Each insertion queries the engine about a bounded number of
    others, round-robin, so the table may exceed its capacity until the query reaches an evictable one.

    A claimed sequence belongs to the caller until it is released: no other claim finds it, and it is not
    removed. Methods that remove sequences return their sessions, to be closed without any lock held.

    Args:
        capacity: number of sequences; exceeded only while more are claimed, running, or not queried yet.
        idle_seconds: :meth:`remove_idle` removes sequences that were not used for this long.
        is_over: state of a hint in the engine: True = ended, False = running, however long it is
            idle, None = unknown. A sequence with several hints is running while one of them is. Called with
            the table's lock held; must not raise.
    """

    def __init__(
        self,
        capacity: int,
        idle_seconds: float,
        clock: Callable[[], float],
        is_over: Callable[[Hashable], bool | None] | None = None,
    ) -> None:
        self._capacity = capacity
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._is_over = is_over
        self._lock = threading.Lock()
        self._closed = False
        self._by_use: OrderedDict[int, LiveSequence] = OrderedDict()
        self._by_hint: dict[Hashable, LiveSequence] = {}
        #: the same sequences, the least recently queried ones first
        self._by_query: OrderedDict[int, LiveSequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_use)

    def claim(self, view: View, hint: Hashable, hint_is_unique: bool = False) -> LiveSequence | None:
        """Claim the sequence that a view continues.

        The sequence of the hint is preferred, then the longest one, then the most recently used one; with
        ``hint_is_unique`` only that one qualifies.

        Returns:
            None if there is none, or if other callers have claimed it.
        """
        with self._lock:
            found = None if hint is None else self._by_hint.get(hint)
            if found is None or found.busy or not found.is_continued_by(view):
                found = None if hint_is_unique else self._find(view)
            if found is not None:
                found.busy = True
                self._mark_used(found, hint)
            return found

    def insert(self, sequence: LiveSequence, hint: Hashable) -> list[BackendSession]:
        """Insert a new, claimed sequence; return the sessions of the evicted ones."""
        with self._lock:
            self._by_use[id(sequence)] = self._by_query[id(sequence)] = sequence
            self._mark_used(sequence, hint)
            surplus = len(self._by_use) - self._capacity
            return self._remove(*self._eviction_candidates(surplus)) if surplus > 0 else []

    def release(self, sequence: LiveSequence) -> list[BackendSession]:
        """Release a claimed sequence; return its session if :meth:`close` was called meanwhile."""
        with self._lock:
            sequence.busy = False
            return self._remove(sequence) if self._closed else []

    def discard(self, sequence: LiveSequence) -> list[BackendSession]:
        """Remove a claimed sequence that has ended; return its session."""
        with self._lock:
            sequence.busy = False
            return self._remove(sequence)

    def remove(self, hint: Hashable) -> list[BackendSession]:
        """Remove the sequence of a hint, if there is one and it is not claimed."""
        with self._lock:
            sequence = self._by_hint.get(hint)
            return [] if sequence is None or sequence.busy else self._remove(sequence)

    def remove_idle(self) -> list[BackendSession]:
        """Remove the sequences that have ended or are idle."""
        with self._lock:
            since = self._clock() - self._idle_seconds
            return self._remove(
                *(s for s in self._by_use.values() if not s.busy and self._has_ended(s, since))
            )

    def remove_all(self) -> list[BackendSession]:
        """Remove all sequences that are not claimed."""
        with self._lock:
            return self._remove(*(s for s in self._by_use.values() if not s.busy))

    def close(self) -> list[BackendSession]:
        """Remove all sequences, claimed ones when they are released."""
        with self._lock:
            self._closed = True
        return self.remove_all()

    def _has_ended(self, sequence: LiveSequence, since: float) -> bool:
        over = self._state(sequence)
        return over is True or (sequence.used_at <= since and over is None)

    def _eviction_candidates(self, surplus: int) -> list[LiveSequence]:
        """``surplus`` sequences, or fewer if the others are running or were not queried."""
        evicted: dict[int, LiveSequence] = {}
        unknown: dict[int, LiveSequence] = self._by_use
        if self._is_over is not None:
            evicted, unknown = self._query_next(surplus)
        if unknown:
            lacking = max(0, surplus - len(evicted))
            by_use = ((i, s) for i, s in self._by_use.items() if i in unknown and not s.busy)
            evicted.update(list(islice(by_use, lacking)))
        beyond = max(0, len(self._by_use) - len(evicted) - _RUNNING_FACTOR * self._capacity)
        others = ((i, s) for i, s in self._by_use.items() if i not in evicted and not s.busy)
        evicted.update(list(islice(others, beyond)))
        return list(evicted.values())

    def _query_next(self, surplus: int) -> tuple[dict[int, LiveSequence], dict[int, LiveSequence]]:
        """Query the engine about the least recently queried sequences, until enough have ended.

        Returns:
            Those that have ended, and those whose state is unknown.
        """
        ended: dict[int, LiveSequence] = {}
        unknown: dict[int, LiveSequence] = {}
        queries = 0
        for _ in range(len(self._by_query)):
            if queries == _QUERIES_PER_INSERT or len(ended) >= surplus:
                break
            key, sequence = next(iter(self._by_query.items()))
            self._by_query.move_to_end(key)
            if sequence.busy:
                continue
            queries += 1
            state = self._state(sequence)
            if state is True:
                ended[key] = sequence
            elif state is None:
                unknown[key] = sequence
        return ended, unknown

    def _state(self, sequence: LiveSequence) -> bool | None:
        """Whether it has ended: True, False while it runs under any of its hints, None if unknown."""
        states = set() if self._is_over is None else {self._is_over(hint) for hint in sequence.hints}
        return False if False in states else True if True in states else None

    def _find(self, view: View) -> LiveSequence | None:
        if view.start:  # a tail without a hint does not identify its sequence
            return None
        best: LiveSequence | None = None
        for sequence in reversed(self._by_use.values()):
            longer = best is None or sequence.end > best.end
            if longer and not sequence.busy and not sequence.origin and sequence.is_continued_by(view):
                best = sequence
        return best

    def _mark_used(self, sequence: LiveSequence, hint: Hashable) -> None:
        sequence.used_at = self._clock()
        self._by_use.move_to_end(id(sequence))
        if hint is not None:
            before = self._by_hint.get(hint)
            if before is not None:
                before.hints.discard(hint)
            self._by_hint[hint] = sequence
            sequence.hints.add(hint)

    def _remove(self, *sequences: LiveSequence) -> list[BackendSession]:
        sessions = []
        for sequence in sequences:
            del self._by_use[id(sequence)], self._by_query[id(sequence)]
            for hint in sequence.hints:
                del self._by_hint[hint]
            sequence.hints.clear()
            if sequence.session is not None:
                sessions.append(sequence.session)
                sequence.session = None
        return sessions
