"""Measurement of the driver overhead: both loops generate the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from suffixsvc_bench.decode import driver_overhead


def test_both_loops_generate_the_same(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = driver_overhead.measure_overhead(str(tiny_model), pairs=4, tokens=6)
    assert found.identical
    assert found.pairs == 4
    assert 0 < found.low <= found.ratio <= found.high
    assert 0 < found.own_ms < found.driver_ms
    monkeypatch.setattr(sys, "argv", ["driver_overhead", str(tiny_model), "--pairs", "2", "--cpu-time"])
    driver_overhead.main()
    assert "same tokens: yes" in capsys.readouterr().out
