"""The filter of cost curves against the equations of the filter, written with matrices."""

from __future__ import annotations

from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc.core import KalmanFilter

Floats = npt.NDArray[np.float64]


def updated(
    value: Floats, variance: Floats, at: int, measured: float, noise: float
) -> tuple[Floats, Floats, float]:
    """Value and variance after a measurement, and the change of the measured entry."""
    row = np.eye(len(value))[at]  # the measurement is row @ value
    gain = variance @ row / (row @ variance @ row + noise)
    change = gain * (measured - row @ value)
    return value + change, (np.eye(len(value)) - np.outer(gain, row)) @ variance, float(change[at])


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_the_equations_of_the_filter(seed: int, n: int) -> None:
    random = Random(seed)
    root = np.array([[random.gauss(0, 1) for _ in range(n)] for _ in range(n)])
    prior = root @ root.T + 0.1 * np.eye(n)
    scale, common = random.uniform(0.1, 2), random.choice([0.0, random.uniform(0, 5)])
    found = KalmanFilter(prior.ravel(), n, scale, common)
    value, variance = np.zeros(n), scale * prior + common
    outliers = {True: 0, False: 0}  # in a row, of entry 0 and of the others
    for _ in range(30):
        match random.randrange(6):
            case 0:
                share = random.uniform(0, 0.1)
                found.forget(share)
                variance = (1 - share) * variance + share * prior
            case 1:
                added = random.uniform(0, 0.5)
                found.reset(added)
                variance = (prior if variance.trace() < prior.trace() else variance) + added
            case 2:
                at, scatter = random.randrange(n), random.choice([0.05, 0.5, 2.0])
                measured = value[at] + random.choice([1, 1, -1]) * random.choice([0.1, 1.0, 20.0]) * scatter
                off, kind, noise = measured - value[at], at == 0, scatter**2
                if abs(off) > 2 * scatter:
                    noise *= (off / (2 * scatter)) ** 2
                if abs(off) > 2 * max(scatter, np.sqrt(variance[at, at] + scatter**2)):
                    outliers[kind] = np.sign(off) + outliers[kind] * (outliers[kind] * off > 0)
                else:
                    outliers[kind] = 0
                if abs(outliers[kind]) == 3:
                    outliers[kind], noise = 0, scatter**2
                    variance = (prior if variance.trace() < prior.trace() else variance) + off**2
                value, variance, change = updated(value, variance, at, measured, noise)
                assert found.observe_robustly(at, measured, scatter) == pytest.approx(
                    change, rel=1e-6, abs=1e-9
                )
            case _:
                at, measured, noise = random.randrange(n), random.gauss(0, 2), random.uniform(0.01, 2)
                value, variance, change = updated(value, variance, at, measured, noise)
                assert found.observe(at, measured, noise) == pytest.approx(change)
    assert found.size == n
    assert found.values() == pytest.approx(value, abs=1e-9)
    assert [found.value(i) for i in range(n)] == found.values().tolist()
    assert [found.variance(i) for i in range(n)] == pytest.approx(variance.diagonal())
    for i in range(n):
        difference = np.eye(n)[i] - np.eye(n)[0]
        assert found.difference_variance(i, 0) == pytest.approx(difference @ variance @ difference, abs=1e-9)


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="prior must have n \\* n entries"):
        KalmanFilter(np.ones(3), 2, 1.0, 0.0)
    with pytest.raises(ValueError, match="prior must have n \\* n entries"):
        KalmanFilter(np.ones(0), 0, 1.0, 0.0)
    one = KalmanFilter(np.ones(1), 1, 1.0, 0.0)
    for call in (
        lambda: one.value(1),
        lambda: one.variance(1),
        lambda: one.variance(2**63),
        lambda: one.difference_variance(0, 1),
        lambda: one.observe(1, 0.0, 1.0),
    ):
        with pytest.raises(IndexError):
            call()
    with pytest.raises(IndexError):
        one.observe_robustly(1, 0.0, 1.0)
    for scatter in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="scatter must be positive"):
            one.observe_robustly(0, 0.0, scatter)
    for measured in (float("nan"), float("inf"), -float("inf"), 1e200):
        for _ in range(3):  # a third outlier would be a change
            with pytest.raises(ValueError, match="measured must be a finite number"):
                one.observe_robustly(0, measured, 1.0)
    assert one.values().tolist() == [0.0]
    assert one.variance(0) == 1.0
