"""A cost curve that learns from real steps and is not fooled by noise."""

from __future__ import annotations

import numpy as np
import pytest
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.live_curve import LiveCurve

MEASURED = CostCurve((0.0, 1.0, 1.5, 2.0, 2.5), seconds_per_step=0.03)


def test_one_slow_step_changes_nothing_and_a_lasting_change_is_learned() -> None:
    live = LiveCurve(MEASURED)
    live.observe(4, 3.0)
    assert live.curve == MEASURED
    for _ in range(12):
        live.observe(4, 0.03 * 4.0)
    assert live.curve.costs[4] == pytest.approx(4.0)
    assert live.curve.costs[:4] == MEASURED.costs[:4]
    assert live.changes > 0


def test_a_machine_that_is_slower_as_a_whole_keeps_its_curve() -> None:
    live = LiveCurve(MEASURED)
    for _ in range(40):
        live.observe(1, 0.06)
        live.observe(3, 0.12)
    assert live.curve.costs[3] == pytest.approx(2.0)


def test_noise_moves_it_little() -> None:
    rng = np.random.default_rng(1)
    live = LiveCurve(MEASURED)
    for _ in range(300):
        live.observe(1, 0.03 * rng.lognormal(0, 0.1))
        slow = 5.0 if rng.random() < 0.1 else 1.0  # somebody else's work
        live.observe(2, 0.03 * 1.5 * slow * rng.lognormal(0, 0.1))
    assert live.curve.costs[2] == pytest.approx(1.5, rel=0.15)


@pytest.mark.parametrize(("width", "seconds"), [(0, 1.0), (5, 1.0), (2, 0.0), (2, -1.0), (2, float("nan"))])
def test_what_is_no_measurement_is_ignored(width: int, seconds: float) -> None:
    live = LiveCurve(MEASURED)
    for _ in range(20):
        live.observe(width, seconds)
    assert live.curve == MEASURED


def test_without_a_known_step_there_is_nothing_to_compare_with() -> None:
    live = LiveCurve(CostCurve.linear(0.2, 4))
    live.observe(2, 0.5)
    assert live.changes == 0
    for _ in range(5):
        live.observe(1, 0.1)
    for _ in range(9):
        live.observe(2, 0.3)
    assert live.curve.costs[2] == pytest.approx(3.0)
