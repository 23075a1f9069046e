"""Prices at the start of a server: measured in bounded time, or the stored ones."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.curve_file import cost_folder, save_curve
from suffixsvc_driver.profile.start_curve import start_curve
from suffixsvc_driver.profile.target_cost import key_of
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.single import LlamaTarget
from support.parallel_runs import LANES
from support.tiny_kinds import KINDS


class StepClock:
    """A clock by which every step takes a time of its own, in the order of the steps."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = itertools.chain(seconds, itertools.repeat(seconds[-1]))
        self._now = 0.0
        self.steps = 0

    def __call__(self) -> float:
        """Called once at the start, then before and after each step, and at the end of a round."""
        return self._now

    def advance(self) -> None:
        self._now += next(self._seconds)
        self.steps += 1


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SUFFIXSVC_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> StepClock:
    """Steps of 1, 2, 4, .. tokens take 0.2, 0.3, 0.5 seconds: after three of them the time is over."""
    clock = StepClock(0.0, 0.2, 0.3, 0.5)
    probe = LlamaTarget.probe

    def stepped(target: LlamaTarget, width: int) -> None:
        probe(target, width)
        clock.advance()

    monkeypatch.setattr(LlamaTarget, "probe", stepped)
    return clock


def test_time_is_bounded(home: Path, tiny_model: Path, timed: StepClock) -> None:
    """What was not timed costs as much per token as the widest step that was."""
    with LlamaModel(tiny_model) as model:
        live = start_curve(model, replace(LANES, max_width=32), clock=timed)
    assert timed.steps == 4  # one of them only allocates buffers
    assert live.seconds_per_step == pytest.approx(0.2)
    expected = live.expected()
    assert expected.max_width == 32
    for width, cost in ((1, 1.0), (2, 1.5), (3, 2.5), (4, 2.5), (5, 3.125), (32, 20.0)):
        assert expected.cost(width) == pytest.approx(cost)


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_of_model_can_be_measured(home: Path, tmp_path: Path, kind: str) -> None:
    with LlamaModel(KINDS[kind](tmp_path / f"{kind}.gguf")) as model:
        live = start_curve(model, replace(LANES, max_width=16))
    assert live.seconds_per_step > 0.0
    assert live.expected().max_width == 16


def test_a_stored_curve_is_used(home: Path, tiny_model: Path, timed: StepClock) -> None:
    stored = CostCurve.linear(0.3, LANES.max_width, seconds_per_step=0.25)
    lanes = replace(LANES, kv_type="f16", flash_attention=None)
    with LlamaModel(tiny_model) as model:
        alone = replace(lanes, slots=1, branches=0, prefix_tokens=0, flash_attention=True)  # as lanes compute
        with LlamaTarget(model, alone) as target:
            key = key_of(target)
        save_curve(cost_folder() / key.file_name(), key, stored, {})
        found = start_curve(model, lanes, clock=timed)
        assert found.expected().costs == pytest.approx(stored.costs)
    assert timed.steps == 0
