"""Brute-force oracle of hot texts and sealed segments, queried by a scan of every position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from support.segment_oracle import DEPTH, ORDERS, SegmentOracle

#: (tokens, number of leading ones that are context only)
HotText = tuple[Sequence[int], int]
#: contexts.h: contexts of a source that are evaluated, those of the largest orders
CONSIDERED = 4


@dataclass(frozen=True)
class Slot:
    """The contexts of one order: a ContextSlot of csrc/draft/evidence/contexts.h."""

    match_len: int
    votes: Counter[int]
    hot: Counter[int]  #: votes of hot texts
    sealed_newest: int  #: the newest follower in segments; -1: none


class UnionOracle:
    """Queries for one position, the end of ``context``.

    Contexts are distinct (each has its slot) if any part distinguishes them: a hot text by all of its
    positions, its end and its context included; a segment by positions with a counted follower, those of
    forgotten texts included.
    """

    def __init__(
        self, hot: Sequence[HotText], sealed: Sequence[SegmentOracle], context: Sequence[int]
    ) -> None:
        self._hot, self._sealed = hot, sealed
        self._context = tuple(context)[-DEPTH:]

    def _suffix(self, n: int) -> tuple[int, ...]:
        return self._context[len(self._context) - n :]

    def _hot_ends(self, n: int) -> frozenset[tuple[int, int]]:
        suffix = self._suffix(n)
        return frozenset(
            (t, end)
            for t, (tokens, _) in enumerate(self._hot)
            for end in range(n, len(tokens) + 1)
            if tuple(tokens[end - n : end]) == suffix
        )

    def _alive(self, part: SegmentOracle, n: int) -> list[tuple[int, int]]:
        return [(t, p) for t, p in part.places(self._suffix(n)) if part.weight(t)]

    def slots(self) -> dict[int, Slot]:
        """Slots by order; those with a follower, which may be a context token."""
        lengths = range(1, len(self._context) + 1)
        ends = {n: self._hot_ends(n) for n in lengths}
        places = [{n: part.places(self._suffix(n)) for n in lengths} for part in self._sealed]
        out: dict[int, Slot] = {}
        for order, larger in zip(ORDERS, [*ORDERS[1:], DEPTH + 1], strict=True):
            if order > len(self._context):
                break
            lens = []
            hot: Counter[int] = Counter()
            sealed: Counter[int] = Counter()
            newest = (-1, (-1, -1), -1)
            if ends[order]:
                lens.append(max(n for n in lengths if ends[n] == ends[order]))
                for t, end in ends[order]:
                    tokens, context = self._hot[t]
                    if context <= end < len(tokens):
                        hot[tokens[end]] += 1
            for part, found in zip(self._sealed, places, strict=True):
                alive = self._alive(part, order)
                if not alive:
                    continue
                lens.append(max(n for n in lengths if found[n] == found[order]))
                for t, p in alive:
                    token = part.texts[t][0][p]
                    sealed[token] += part.weight(t)
                    newest = max(newest, (part.ages[t], (t, p), token))
            if lens and min(lens) < larger and (sealed or self.followers(order, context_too=True)):
                out[order] = Slot(min(lens), hot + sealed, hot, newest[2])
        return out

    def evaluates(self, length: int) -> bool:
        """Whether a context of this length is among the evaluated ones: of the CONSIDERED largest orders."""
        return sum(order > length for order in self.slots()) < CONSIDERED

    def sealed_match(self) -> tuple[int, int]:
        """(token, length) of the longest context in segments, the newest among equals; (-1, 0): none."""
        best = (0, -1, (-1, -1), -1)
        for part in self._sealed:
            for n in range(1, len(self._context) + 1):
                for t, p in self._alive(part, n):
                    best = max(best, (n, part.ages[t], (t, p), part.texts[t][0][p]))
        return best[3], best[0]

    def hot_match(self) -> int:
        """Length of the longest context in hot texts with a counted follower."""
        return max(
            (
                n
                for n in range(1, len(self._context) + 1)
                if any(self._hot[t][1] <= end < len(self._hot[t][0]) for t, end in self._hot_ends(n))
            ),
            default=0,
        )

    def followers(self, n: int, *, context_too: bool = False) -> set[int]:
        """Followers of the last n tokens in hot texts."""
        return {
            self._hot[t][0][end]
            for t, end in self._hot_ends(n)
            if end < len(self._hot[t][0]) and (context_too or end >= self._hot[t][1])
        }
