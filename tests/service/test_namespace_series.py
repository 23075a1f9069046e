"""Series of namespaces: bounded in number, never falling, and together the sums of all counters."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from suffixsvc.service.metrics.namespace_series import HALF_LIFE_SECONDS, OTHER, NamespaceSeries, grouped_sums

PATHS = ("a", "b", "c", "d", "e", "other")


class SeriesMachine(RuleBasedStateMachine):
    @initialize(most=st.integers(1, 4))
    def begin(self, most: int) -> None:
        self.most = most
        self.table = NamespaceSeries(most)
        self.counters: dict[str, tuple[float, ...]] = {}
        self.series: dict[str, tuple[float, ...]] = {}
        #: what was counted and read, of every namespace that there ever was
        self.counted = [0.0, 0.0]
        self.increases = [0.0, 0.0]
        self.now = 0.0

    @rule(path=st.sampled_from(PATHS), steps=st.integers(0, 50), drafts=st.integers(0, 50))
    def count(self, path: str, steps: int, drafts: int) -> None:
        a, b = self.counters.get(path, (0.0, 0.0))
        self.counters[path] = a + steps, b + drafts

    @rule(path=st.sampled_from(PATHS))
    def delete(self, path: str) -> None:
        self.read(0.0)
        self.counters.pop(path, None)

    @rule(seconds=st.sampled_from([0.0, 1.0, HALF_LIFE_SECONDS, 1e6]))
    def read(self, seconds: float) -> None:
        self.now += seconds
        series = self.table.update(self.counters, self.now)
        for label, values in series.items():
            before = self.series.get(label, (0.0, 0.0))
            for place, (then, value) in enumerate(zip(before, values, strict=True)):
                assert value >= then, f"the series of {label} fell"
                self.increases[place] += value - then
        self.series = series
        assert len(series.keys() - {OTHER}) == min(self.most, len(self.counters))
        assert series.keys() - {OTHER} <= self.counters.keys()
        if len(self.counters) > self.most:
            values = grouped_sums(dict.fromkeys(self.counters, (1.0,)), series)
            assert values[OTHER] == (len(self.counters) - self.most,)

    @invariant()
    def nothing_is_counted_twice(self) -> None:
        self.read(0.0)
        seen = {path: values for path, values in getattr(self, "seen", {}).items() if path in self.counters}
        for path, values in self.counters.items():
            for place, (then, value) in enumerate(zip(seen.get(path, (0.0, 0.0)), values, strict=True)):
                self.counted[place] += value - then
        self.seen = dict(self.counters)
        assert self.increases == self.counted


TestSeries = SeriesMachine.TestCase


def test_the_busiest_have_series() -> None:
    table = NamespaceSeries(2)
    steps = {"a": 10.0, "b": 20.0, "c": 5.0}
    assert set(table.update({path: (n,) for path, n in steps.items()}, 0.0)) == {"a", "b", OTHER}
    # much later, what was counted before weighs little
    steps["c"] += 8
    series = table.update({path: (n,) for path, n in steps.items()}, 10 * HALF_LIFE_SECONDS)
    assert series == {"b": (20.0,), "c": (8.0,), OTHER: (5.0,)}
    steps["a"] += 9
    series = table.update({path: (n,) for path, n in steps.items()}, 10 * HALF_LIFE_SECONDS + 1)
    assert series == {"a": (9.0,), "c": (8.0,), OTHER: (5.0,)}, "a begins again at 0"


def test_equally_busy_namespaces_keep_their_series() -> None:
    table = NamespaceSeries(2)
    counters = dict.fromkeys(PATHS, (0.0,))
    first = table.update(counters, 0.0)
    assert all(table.update(dict(reversed(counters.items())), float(t)) == first for t in range(5))


def test_a_namespace_that_was_deleted_and_created_again_counts_from_0() -> None:
    table = NamespaceSeries(2)
    table.update({"a": (5.0, 3.0)}, 0.0)
    assert table.update({"a": (2.0, 1.0)}, 1.0) == {"a": (7.0, 4.0)}
