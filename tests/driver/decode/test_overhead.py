"""Measurement of the driver overhead: both loops generate the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.driver_overhead import measure_overhead


@pytest.mark.parametrize("clock", [time.perf_counter, time.process_time])
def test_both_loops_generate_the_same(tiny_model: Path, clock: Callable[[], float]) -> None:
    found = measure_overhead(str(tiny_model), pairs=4, tokens=6, clock=clock)
    assert found.identical
    assert found.pairs == 4
    assert 0 < found.low <= found.ratio <= found.high
    assert found.own_ms > 0
    assert found.driver_ms > 0
