"""Measuring a curve, and the file it is kept in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from suffixsvc_driver import cost
from suffixsvc_driver.cost import (
    guessed_curve,
    key_of,
    load_curve,
    measure_curve,
    measured_curve,
    scatter,
)
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.loop import generate
from suffixsvc_driver.targets.llama import LlamaTarget

from suffixsvc.errors import InvalidCostError


class Scripted:
    """A target whose steps take what a table says, on a machine that slows down by half meanwhile."""

    max_width = 16
    context_size = 512
    position = 255

    def __init__(self) -> None:
        self.now = 0.0
        self.probes = 0

    def begin(self, prompt_ids: Sequence[int]) -> None:
        self.prompt = len(prompt_ids)

    def probe(self, width: int) -> None:
        self.probes += 1
        seconds = {1: 1.0, 2: 1.5, 16: 4.0, 14: 5.0}.get(width, 3.0)
        self.now += seconds * (1 + self.probes / 200)

    def rewind(self, keep: int) -> None:
        self.kept = keep


def test_a_machine_that_slows_down_measures_the_same() -> None:
    target = Scripted()
    seen: list[tuple[int, int]] = []
    curve, samples = measure_curve(
        target, rounds=4, clock=lambda: target.now, progress=lambda d, n: seen.append((d, n))
    )
    assert target.prompt == 247  # there has to be room behind it
    assert target.kept == 0
    assert curve.costs[2] == pytest.approx(1.5, rel=0.02)
    assert curve.costs[14] == pytest.approx(5.0, rel=0.02)
    assert curve.costs[15] == curve.costs[14] > curve.costs[16] == pytest.approx(4.0, rel=0.02)
    assert seen[-1][0] == seen[-1][1] == len(seen)
    assert all(len(s) == 4 for s in samples.values())
    assert curve.seconds_per_step > 1


def test_measured_once_and_kept(
    tiny_target: LlamaTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUFFIXSVC_HOME", str(tmp_path))
    prompt = tiny_target.model.tokenize("keep me")
    before = generate(tiny_target, prompt, max_tokens=5)
    curve = measured_curve(tiny_target, rounds=1)
    assert curve.max_width == tiny_target.max_width
    assert curve.seconds_per_step > 0
    (path,) = (tmp_path / "cost").iterdir()
    assert measured_curve(tiny_target) == curve
    again = generate(tiny_target, prompt, max_tokens=5)
    assert again.token_ids == before.token_ids
    assert again.prefill.reused == len(prompt) - 1, "measuring took a slot nobody used"
    key = key_of(tiny_target)
    assert load_curve(path, key) == curve

    data = json.loads(path.read_text())
    for change, reason in (
        ({"machine": {"host": "elsewhere", "cpu": "other", "cores": 96}}, "another machine"),
        ({"key": {**data["key"], "threads": 8}}, "something else"),
        ({"format": "suffixsvc-cost/0"}, "not a cost curve"),
        ({"curve": {"costs": [0, 1, -1]}}, "width 2"),
        ({"curve": 5}, "not a cost curve"),
    ):
        path.write_text(json.dumps({**data, **change}))
        with pytest.raises(InvalidCostError, match=reason):
            load_curve(path, key)
    path.write_text("{torn")
    with pytest.raises(InvalidCostError, match="cannot be read"):
        load_curve(path, key)
    assert isinstance(measured_curve(tiny_target, rounds=1), CostCurve), "measured again instead"
    assert load_curve(path, key).max_width == 32
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_disk_that_cannot_keep_a_curve_does_not_lose_it(tiny_target: LlamaTarget, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file where a folder would have to be")
    with capture_logs() as said:
        curve = measured_curve(tiny_target, rounds=1, folder=tmp_path / "file" / "cost")
    assert curve.max_width == tiny_target.max_width
    assert curve.seconds_per_step > 0
    (warning,) = said
    assert warning["log_level"] == "warning"
    assert "cannot be kept" in warning["event"]
    assert "Not a directory" in warning["reason"]


def test_a_guess_goes_by_a_few_steps() -> None:
    """What four tokens take says what each further one does; a machine that slows down says less."""
    target = Scripted()
    curve = guessed_curve(target, clock=lambda: target.now)
    assert target.probes < 15
    assert curve.seconds_per_step == pytest.approx(1.0, rel=0.05)
    assert curve.costs[4] == pytest.approx(3.0, rel=0.08)
    assert curve.max_width == target.max_width

    class Free(Scripted):
        def probe(self, width: int) -> None:
            self.now += 1.0

    free = Free()
    assert guessed_curve(free, clock=lambda: free.now).costs[11] == pytest.approx(2.0), "never for nothing"


QUIET = {2: [1.5, 1.52, 1.48, 1.5], 3: [2.0, 2.1, 2.0, 1.9]}
BUSY = {2: [0.8, 2.5, 1.5, 4.0], 3: [1.0, 3.1, 2.0, 0.5]}


def test_scatter_is_told_from_the_samples() -> None:
    assert scatter(QUIET) < 0.05
    assert scatter(BUSY) > 0.3
    assert scatter({}) == scatter({2: [1.5]}) == 0.0


@pytest.mark.parametrize("kept", [False, True])
def test_what_a_busy_machine_says_takes_the_place_of_nothing_better(
    tiny_target: LlamaTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """It is measured twice; a quiet second time is as good as ever."""
    steady, disturbed = (
        CostCurve.from_samples(
            {1: 1.0, **{w: sorted(s)[1] for w, s in samples.items()}}, seconds_per_step=unit
        )
        for samples, unit in ((QUIET, 0.03), (BUSY, 0.5))
    )
    said = [(disturbed, BUSY)] * 2
    monkeypatch.setattr(cost, "measure_curve", lambda *_, **__: said.pop(0))
    monkeypatch.setattr(cost, "seconds_per_step", lambda *_: 0.5)
    if kept:
        cost.save_curve(tmp_path / key_of(tiny_target).file_name(), key_of(tiny_target), steady, QUIET)
    with capture_logs() as logged:
        assert measured_curve(tiny_target, folder=tmp_path, drift=1.25) == (steady if kept else disturbed)
    assert said == []
    assert "busy machine" in logged[0]["event"]
    said = [(disturbed, BUSY), (steady, QUIET)]
    with capture_logs() as logged:
        assert measured_curve(tiny_target, folder=tmp_path, again=True) == steady
    assert not logged
    assert cost.kept_curve(tiny_target, folder=tmp_path) == steady


def test_the_key_names_what_matters(tiny_target: LlamaTarget, tmp_path: Path) -> None:
    key = key_of(tiny_target)
    assert key.threads == 1
    assert "0.3.36" in key.build
    other = tmp_path / "other.gguf"
    data = bytearray(tiny_target.model.path.read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    with LlamaTarget(other, tiny_target.settings) as target:
        assert key_of(target).model != key.model
    assert cost.cost_folder().name == "cost"
