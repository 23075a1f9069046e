"""The merge policy: which segments are merged, and when."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from suffixsvc.engine.sealing.tiering import FAN_IN, MAX_SEGMENTS, MAX_TOKENS, Size, plan_merge


def sizes(*tokens: int) -> list[Size]:
    return [Size(n, 0) for n in tokens]


def test_equals_are_merged_and_unequals_are_not() -> None:
    assert plan_merge(sizes(1, 1, 1)) is None
    assert plan_merge(sizes(1, 1, 1, 1)) == range(4)
    assert plan_merge(sizes(4, 1, 1, 1)) is None
    assert plan_merge(sizes(4, 1, 1, 1, 1)) == range(1, 5)
    assert plan_merge(sizes(16, 4, 4, 1, 1, 1)) is None
    assert plan_merge(sizes(16, 4, 4, 4, 1, 1, 1)) in (range(1, 4), range(4, 7)), "that would be seven"
    assert plan_merge([]) is None


def test_only_neighbours_are_merged() -> None:
    apart = [Size(1, 0), Size(1, 0), Size(1, 0, follows=False), Size(1, 0), Size(1, 0)]
    assert plan_merge(apart) is None
    assert plan_merge([*apart, Size(1, 0)]) == range(2, 6)


def test_much_forgotten_is_written_anew_alone() -> None:
    assert plan_merge([Size(75, 25)]) is None
    assert plan_merge([Size(50, 0), Size(74, 26)]) == range(1, 2)
    assert plan_merge([Size(0, 5)]) == range(1)


def test_no_segment_becomes_too_large() -> None:
    assert plan_merge(sizes(*[MAX_TOKENS // 4] * 4)) == range(4)
    assert plan_merge(sizes(*[MAX_TOKENS // 3] * 9)) == range(3), "three fit"
    assert plan_merge(sizes(*[MAX_TOKENS] * 9)) is None


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=400))
def test_whatever_comes_there_are_few_and_each_token_is_written_few_times(coming: list[int]) -> None:
    now: list[int] = []
    written = 0
    for tokens in coming:
        now.append(tokens)
        while (window := plan_merge(sizes(*now))) is not None:
            merged = sum(now[i] for i in window)
            written += merged
            now[window.start : window.stop] = [merged]
        assert len(now) <= MAX_SEGMENTS
    assert sum(now) == sum(coming)


def test_a_token_of_a_steady_stream_is_written_about_once_a_tier() -> None:
    now: list[int] = []
    written = 0
    count = 4**5
    for _ in range(count):
        now.append(1)
        while (window := plan_merge(sizes(*now))) is not None:
            written += sum(now[i] for i in window)
            now[window.start : window.stop] = [sum(now[i] for i in window)]
    assert written <= 2 * count * math.log(count, FAN_IN)
