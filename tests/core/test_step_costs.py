"""Limits of the native costs of a step; tests/driver/test_parts.py compares their choices with all others."""

from __future__ import annotations

import copy
from dataclasses import asdict

import pytest

from suffixsvc.core import StepCosts
from suffixsvc_driver.cost.curve import CostCurve

HUGE = 2**64 - 1


def test_limits_of_any_size_are_safe() -> None:
    costs = StepCosts([0.0, 1.0, 1.1, 1.2])
    everything = costs.evaluate([0.9] * 9, 1.0, HUGE, HUGE, 0, [])
    assert [(length, width) for length, width, *_ in everything] == [(1, 2), (2, 3)], "the curve ends"
    for limit, room, other_tokens in (
        (0, 9, 0),
        (9, 0, 0),
        (9, 1, 0),
        (9, 9, 2),
        (9, 9, HUGE),
        (9, HUGE, HUGE),
    ):
        assert costs.evaluate([0.9] * 9, 1.0, limit, room, other_tokens, []) == []
        assert costs.best([0.9] * 9, 1.0, limit, room, other_tokens, [], 0) is None
    assert costs.best([0.9] * 9, 1.0, 9, 9, 0, [], HUGE) is None
    assert costs.best([0.9] * 9, 1.0, 9, 9, 0, [5.0, 0.0], 0)[0] == 2, "the first is too expensive"
    assert len(costs.evaluate([0.9] * 9, 1.0, 9, 9, 0, [0.0])) == 1, "further costs end the prefixes"


def test_costs_must_have_a_plain_step() -> None:
    for costs in ([], [0.0]):
        with pytest.raises(ValueError, match="costs must have an entry of a plain step"):
            StepCosts(costs)


def test_a_curve_is_copied_before_and_after_its_first_use() -> None:
    curve = CostCurve.linear(0.1, 4)
    for _ in range(2):
        other = copy.deepcopy(curve)
        assert other == curve
        assert asdict(curve)["costs"] == curve.costs
        assert other.native.evaluate([0.5], 1.0, 9, 9, 0, []) == curve.native.evaluate(
            [0.5], 1.0, 9, 9, 0, []
        )
