"""Ratios of paired runs."""

from __future__ import annotations

import pytest

from suffixsvc_bench.speculation.paired import Outcome, Pair, median_ratio


def pairing(drafted: tuple[int, float], plain: list[tuple[int, float]]) -> Pair:
    return Pair("call", "agent", Outcome(*drafted), Outcome.sum([Outcome(*each) for each in plain]))


def test_a_ratio_is_of_tokens_per_second_over_all_plain_runs() -> None:
    one = pairing((100, 2.0), [(100, 4.0), (90, 4.0)])
    assert one.ratio == pytest.approx((100 / 2) / (190 / 8))


def test_the_median_lies_in_its_interval() -> None:
    ratios = [0.5, 1.0, 1.5, 2.0, 9.0]
    interval = median_ratio([pairing((100, 1.0), [(100, r)]) for r in ratios])
    assert interval is not None
    assert interval.median == pytest.approx(1.5)
    assert 0.5 <= interval.low <= interval.median <= interval.high <= 9.0
    assert interval.count == 5
    assert str(interval).startswith("1.50x (")


def test_equal_calls_have_no_spread() -> None:
    interval = median_ratio([pairing((10, 1.0), [(10, 1.2)])] * 8)
    assert interval is not None
    assert interval.low == interval.high == pytest.approx(1.2)


def test_no_calls_have_no_ratio() -> None:
    assert median_ratio([]) is None
    assert Outcome.sum([]).speed == 0.0
