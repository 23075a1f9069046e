"""Brute-force oracle of segments: a list of texts, queried by a scan of every position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

DEPTH = 64
ORDERS = (1, 2, 3, 4, 5, 6, 8, 11, 16, 24)

#: position of a token: (text, position in it)
Place = tuple[int, int]


@dataclass(frozen=True)
class OracleLevel:
    """Followers of one context."""

    length: int
    places: frozenset[Place]  #: forgotten ones included
    votes: Counter[int]
    newest_place: dict[int, Place]  #: by follower, of the positions not forgotten

    def strongest(self, width: int) -> list[tuple[int, int]]:
        ranked = sorted(self.votes, key=lambda t: (self.votes[t], self.newest_place[t]), reverse=True)
        return [(t, self.votes[t]) for t in ranked[:width]]


@dataclass
class SegmentOracle:
    """Texts are (tokens, context, lsn), as sealed; equal texts are one text with several occurrences."""

    sealed: Sequence[tuple[Sequence[int], int, int]]
    forgotten: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        newest: dict[tuple[tuple[int, ...], int], tuple[int, int]] = {}
        for rank, (tokens, context, lsn) in enumerate(self.sealed):
            cut = max(0, context - DEPTH)
            key = (tuple(tokens[cut:]), context - cut)
            newest[key] = max(newest.get(key, (-1, -1)), (lsn, rank))
        #: distinct texts, oldest first
        self.texts = sorted(newest, key=lambda key: newest[key])
        self.ages = [newest[key][0] for key in self.texts]
        self.lsns: list[list[int]] = [[] for _ in self.texts]
        for tokens, context, lsn in self.sealed:
            cut = max(0, context - DEPTH)
            self.lsns[self.texts.index((tuple(tokens[cut:]), context - cut))].append(lsn)

    def weight(self, text: int) -> int:
        return sum(lsn not in self.forgotten for lsn in self.lsns[text])

    def outputs(self) -> list[int]:
        return sorted({lsn for lsns in self.lsns for lsn in lsns} - self.forgotten)

    def places(self, suffix: tuple[int, ...]) -> frozenset[Place]:
        n = len(suffix)
        return frozenset(
            (t, p)
            for t, (tokens, context) in enumerate(self.texts)
            for p in range(max(context, n), len(tokens))
            if tokens[p - n : p] == suffix
        )

    def level(self, length: int, places: frozenset[Place]) -> OracleLevel:
        votes: Counter[int] = Counter()
        newest: dict[int, Place] = {}
        for t, p in sorted(places):
            if self.weight(t):
                token = self.texts[t][0][p]
                votes[token] += self.weight(t)
                newest[token] = (t, p)
        return OracleLevel(length, places, votes, newest)

    def query(self, context: Sequence[int], orders: Collection[int] = ORDERS) -> list[OracleLevel]:
        context = tuple(context)[-DEPTH:]
        found = {n: self.places(context[len(context) - n :]) for n in range(1, len(context) + 1)}
        alive = [n for n, places in found.items() if any(self.weight(t) for t, _ in places)]
        levels: list[OracleLevel] = []
        longest = max(alive, default=0)
        wanted = longest
        while wanted:
            length = max(n for n in found if n <= longest and found[n] == found[wanted])
            levels.append(self.level(length, found[wanted]))
            longest = max((n for n in found if n < wanted and found[n] != found[wanted]), default=0)
            wanted = max((n for n in orders if n <= longest), default=0)
        return levels
