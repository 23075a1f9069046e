"""The filter of cost curves against the equations of the filter, written with matrices."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc.core import KalmanFilter


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_the_equations_of_the_filter(seed: int, n: int) -> None:
    random = Random(seed)
    root = np.array([[random.gauss(0, 1) for _ in range(n)] for _ in range(n)])
    prior = root @ root.T + 0.1 * np.eye(n)
    scale, common = random.uniform(0.1, 2), random.choice([0.0, random.uniform(0, 5)])
    found = KalmanFilter(prior.ravel(), n, scale, common)
    value, variance = np.zeros(n), scale * prior + common
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
            case _:
                at, measured, noise = random.randrange(n), random.gauss(0, 2), random.uniform(0.01, 2)
                row = np.eye(n)[at]  # the measurement is row @ value
                gain = variance @ row / (row @ variance @ row + noise)
                change = gain * (measured - row @ value)
                assert found.observe(at, measured, noise) == pytest.approx(change[at])
                value = value + change
                variance = (np.eye(n) - np.outer(gain, row)) @ variance
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
    assert one.values().tolist() == [0.0]
