"""The acceptance table of a layer against the same statistics written out in Python."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc.core import AcceptanceTable

Key = tuple[int, ...]


class Oracle:
    """All labels of every level in lists; sums with the weights that halving has left them."""

    def __init__(self) -> None:
        self.sums: dict[Key, list[float]] = defaultdict(lambda: [0.0, 0.0])

    @staticmethod
    def keys(raw: float, depth: int) -> tuple[Key, Key]:
        bucket = bisect_right((0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99), raw)
        return (bucket,), (bucket, bisect_right((1, 4, 10), depth))

    def learn(self, raw: float, depth: int, hit: bool) -> None:
        for key, weight in ((), raw), *((key, 1.0) for key in self.keys(raw, depth)):
            sums = self.sums[key]
            sums[0] += hit
            sums[1] += weight
            if sums[1] > 128:
                sums[:] = sums[0] / 2, sums[1] / 2
        sums = self.sums[()]
        sums[0] = min(sums[0], sums[1] + 4)

    def mean(self, key: Key, prior: float) -> float:
        total, weight = self.sums[key]
        return (total + 4 * prior) / (weight + 4)

    def calibrate(self, raw: float, depth: int) -> float:
        bucket, cell = self.keys(raw, depth)
        return self.mean(cell, self.mean(bucket, raw * min(1.0, self.mean((), 1.0))))

    def acceptance(self, prior: float) -> float:
        buckets = [sums for key, sums in self.sums.items() if len(key) == 1]
        hits, seen = (sum(each) for each in zip(*buckets, strict=True)) if buckets else (0.0, 0.0)
        return (hits + 4 * prior) / (seen + 4)


@given(st.integers(0, 2**32))
def test_the_statistics_of_the_table(seed: int) -> None:
    random, found, oracle = Random(seed), AcceptanceTable(), Oracle()
    edges = [0.0, 1.0, 0.1, 0.3, 0.99]
    skill = random.random()
    assert found.calibrate([0.37], [5]) == [0.37], "without labels"
    for _ in range(random.choice([1, 20, 300])):
        n = random.randrange(6)
        drafted = [random.randrange(3) for _ in range(n)]
        raw = [random.choice([random.random(), random.choice(edges)]) for _ in range(n)]
        written = [t if random.random() < skill else random.randrange(3) for t in drafted]
        written = written[: random.randrange(n + 1)] if random.random() < 0.3 else [*written, 2**62]
        first = random.choice([0, 0, 3, 2**40])
        if random.random() < 0.5:
            found.label(drafted, raw, written, first)
            hits = [a == b for a, b in zip(drafted, written, strict=False)]
            labelled = len(hits) if all(hits) else hits.index(False) + 1
            for i in range(labelled):
                oracle.learn(raw[i], first + i, hits[i])
        elif n:
            hit = random.random() < 0.5
            found.learn(raw[0], first, hit)
            oracle.learn(raw[0], first, hit)
        depths = [random.randrange(14) for _ in range(n)]
        expected = [oracle.calibrate(p, depth) for p, depth in zip(raw, depths, strict=True)]
        assert found.calibrate(raw, depths) == pytest.approx(expected, abs=1e-12)
    assert found.acceptance(0.7) == pytest.approx(oracle.acceptance(0.7))


def test_arguments_are_checked() -> None:
    table = AcceptanceTable()
    for raw in (-0.1, 1.1, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"probabilities must be in 0 \.\. 1"):
            table.calibrate([raw], [0])
        with pytest.raises(ValueError, match=r"probabilities must be in 0 \.\. 1"):
            table.learn(raw, 0, True)
        with pytest.raises(ValueError, match=r"probabilities must be in 0 \.\. 1"):
            table.label([1], [raw], [1], 0)
    with pytest.raises(ValueError, match="every probability must have a depth"):
        table.calibrate([0.5, 0.5], [0])
    with pytest.raises(TypeError):
        table.calibrate([0.5], [-1])
    assert table.acceptance(0.25) == 0.25, "nothing was learned"
