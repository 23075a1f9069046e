"""Measurement of cost curves, and their files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from suffixsvc.errors import InvalidCostError
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.curve_file import CurveKey, cost_folder, load_curve, read_curve, save_curve
from suffixsvc_driver.cost.live_curve import STORED, LiveCurve
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.profile import target_cost as cost
from suffixsvc_driver.profile.target_cost import (
    check_curve,
    guessed_curve,
    key_of,
    measure_curve,
    measured_curve,
    scatter,
    stored_or_measured_costs,
)
from suffixsvc_driver.targets.single import LlamaTarget

GOLDEN = Path(__file__).parents[2] / "golden" / "cost"


class Scripted:
    """Target whose steps take scripted times, on a machine that slows down by half meanwhile."""

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
        cast(LlamaTarget, target),
        rounds=4,
        clock=lambda: target.now,
        progress=lambda d, n: seen.append((d, n)),
    )
    assert target.prompt == 247  # leaves room for the steps
    assert target.kept == 0
    assert curve.costs[2] == pytest.approx(1.5, rel=0.02)
    assert curve.costs[14] == pytest.approx(5.0, rel=0.02)
    assert curve.costs[15] == curve.costs[14] > curve.costs[16] == pytest.approx(4.0, rel=0.02)
    assert seen[-1][0] == seen[-1][1] == len(seen)
    assert all(len(s) == 4 for s in samples.values())
    assert curve.seconds_per_step > 1
    # seconds, corrected for the slowdown
    assert samples[16] == pytest.approx([4.0 * curve.seconds_per_step] * 4, rel=0.02)


def test_measured_once_and_stored(
    tiny_target: LlamaTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUFFIXSVC_HOME", str(tmp_path))
    prompt = tiny_target.model.tokenize("keep me")
    before = generate(tiny_target, prompt, max_tokens=5)
    curve = stored_or_measured_costs(tiny_target, rounds=1)
    assert curve.max_width == tiny_target.max_width
    assert curve.seconds_per_step > 0
    (path,) = (tmp_path / "cost").iterdir()
    assert stored_or_measured_costs(tiny_target) == curve
    again = generate(tiny_target, prompt, max_tokens=5)
    assert again.token_ids == before.token_ids
    assert again.prefill.reused == len(prompt) - 1, "measuring took an idle slot"
    key = key_of(tiny_target)
    assert load_curve(path, key) == curve

    data = json.loads(path.read_text())
    for change, reason in (
        ({"machine": {"host": "elsewhere", "cpu": "other", "cores": 96}}, "must be of this machine"),
        ({"key": {**data["key"], "threads": 8}}, "key must be that of the target"),
        ({"format": "suffixsvc-cost/0"}, "format of a cost curve"),
        ({"seconds": [0, 0.03, -1]}, r"costs\[2\] must be"),
        ({"seconds": [0]}, "a plain step"),
        ({"seconds": 5}, "format of a cost curve"),
        ({"seconds": [0, "much"]}, "format of a cost curve"),
        ({"seconds": [0, 1, 10**400]}, "finite numbers"),
        ({"format": "suffixsvc-cost/1", "curve": {"costs": [0, 1, 10**400]}}, "finite numbers|must be"),
        ({"format": "suffixsvc-cost/1"}, "format of a cost curve"),
        (
            {"format": "suffixsvc-cost/1", "curve": {"costs": [0, 1, -1], "seconds_per_step": 1}},
            r"costs\[2\] must be",
        ),
        ({"format": "suffixsvc-cost/1", "curve": {"costs": [0, 1, 2]}}, "a plain step"),
    ):
        path.write_text(json.dumps({**data, **change}))
        with pytest.raises(InvalidCostError, match=reason):
            load_curve(path, key)
    nested = json.dumps(data)[:-1] + ', "more": ' + "[" * 100_000 + "]" * 100_000 + "}"
    for text in ("{torn", nested):
        path.write_text(text)
        with pytest.raises(InvalidCostError, match="must be readable JSON"):
            load_curve(path, key)
    assert isinstance(stored_or_measured_costs(tiny_target, rounds=1), CostCurve), "measured again instead"
    assert load_curve(path, key).max_width == 32
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("factor", [2, 0.5], ids=["wider", "narrower"])
def test_a_stored_curve_of_another_width_is_measured_again(
    tiny_target: LlamaTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    """A file with a curve wider than its key made every generation fail with InvalidConfigError; with a
    narrower one no draft was wider than the curve. Both count as damaged."""
    monkeypatch.setenv("SUFFIXSVC_HOME", str(tmp_path))
    width, key = tiny_target.max_width, key_of(tiny_target)
    path = cost_folder() / key.file_name()
    save_curve(path, key, CostCurve.linear(0.1, int(width * factor), seconds_per_step=0.01), {})
    with pytest.raises(InvalidCostError, match=f"must be {width} tokens wide.*got {int(width * factor)}"):
        load_curve(path, key)
    with capture_logs() as measurements:
        assert stored_or_measured_costs(tiny_target, rounds=1).max_width == width
    assert any("is unusable" in each["event"] for each in measurements)
    assert load_curve(path, key).max_width == width


def test_a_curve_that_cannot_be_stored_is_used(tiny_target: LlamaTarget, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file where a folder would have to be")
    with capture_logs() as measurements:
        curve = stored_or_measured_costs(tiny_target, rounds=1, folder=tmp_path / "file" / "cost")
    assert curve.max_width == tiny_target.max_width
    assert curve.seconds_per_step > 0
    (warning,) = (each for each in measurements if each["log_level"] == "warning")
    assert "cannot be stored" in warning["event"]
    assert "Not a directory" in warning["reason"]


def test_a_guess_from_a_few_steps() -> None:
    """The cost of a token follows from a step of four tokens; on a machine that slows down
    it is underestimated."""
    target = Scripted()
    curve = guessed_curve(cast(LlamaTarget, target), clock=lambda: target.now)
    assert target.probes < 15
    assert curve.seconds_per_step == pytest.approx(1.0, rel=0.05)
    assert curve.costs[4] == pytest.approx(3.0, rel=0.08)
    assert curve.max_width == target.max_width

    class Free(Scripted):
        def probe(self, width: int) -> None:
            self.now += 1.0

    free = Free()
    assert guessed_curve(cast(LlamaTarget, free), clock=lambda: free.now).costs[11] == pytest.approx(2.0), (
        "never for nothing"
    )


QUIET = {2: [1.5, 1.52, 1.48, 1.5], 3: [2.0, 2.1, 2.0, 1.9]}
BUSY = {2: [0.8, 2.5, 1.5, 4.0], 3: [1.0, 3.1, 2.0, 0.5]}


def test_scatter_of_samples() -> None:
    assert scatter(QUIET) < 0.05
    assert scatter(BUSY) > 0.3
    assert scatter({}) == scatter({2: [1.5]}) == 0.0


def test_files_of_all_versions_are_read(tmp_path: Path) -> None:
    """Version 1 held plain steps and the seconds of one; after an update it is not measured again."""
    for version in (1, 2):
        path = GOLDEN / f"v{version}.json"
        curve, key, machine = read_curve(path)
        assert curve.seconds == pytest.approx((0.0, 0.0363, 0.057, 0.0868, 0.0868))
        assert curve.costs[2] == pytest.approx(1.5702, rel=1e-4)
        assert (key["model_name"], key["threads"]) == ("some.gguf", 2)
        assert machine == {"host": "somewhere", "cpu": "some cpu", "cores": 2}


def test_a_file_holds_seconds(tiny_target: LlamaTarget, tmp_path: Path) -> None:
    curve = CostCurve.from_seconds([0.0, 0.0363, 0.057, 0.0868])
    path, key = tmp_path / "c.json", replace(key_of(tiny_target), max_width=3)
    save_curve(path, key, curve, {2: [0.055, 0.057, 0.06]})
    data = json.loads(path.read_text())
    assert data["format"] == "suffixsvc-cost/2"
    assert data["seconds"] == [0.0, 0.0363, 0.057, 0.0868]
    assert data["samples"] == {"2": [0.055, 0.057, 0.06]}
    assert load_curve(path, key) == curve


class Changed(Scripted):
    """Target on which a plain step took 1.4 s on another day."""

    def probe(self, width: int) -> None:
        self.probes += 1
        self.now += {1: 1.0, 2: 1.5, 4: 3.0, 8: 3.2, 16: 4.0}.get(width, 3.0)


def test_a_stored_curve_is_checked_by_a_few_steps_before_long_work() -> None:
    """For a demo or a benchmark of an hour, two dozen steps at the start are negligible, and no draft has
    to be sent at a wrong cost to detect it."""
    target = Changed()
    kept = CostCurve.from_seconds([0.0, 1.4, *[1.5] * 1, *[3.0] * 5, *[3.2] * 4, *[4.0] * 5])
    live = LiveCurve(kept, STORED)
    check_curve(cast(LlamaTarget, target), live, clock=lambda: target.now)
    assert target.probes == 4 * 5
    assert target.kept == 0
    now = live.expected()
    assert now.seconds_per_step == pytest.approx(1.0, rel=0.03)
    for width, seconds in ((2, 1.5), (4, 3.0), (8, 3.2), (16, 4.0)):
        assert now.costs[width] == pytest.approx(seconds, rel=0.06)
    # none of these widths was stepped
    assert now.costs[6] == pytest.approx(3.0, rel=0.1)


def test_measured_curve_reads_the_stored_curve_or_measures(
    tiny_target: LlamaTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = measured_curve(tiny_target, rounds=1, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    assert first.curve == load_curve(path, key_of(tiny_target))
    monkeypatch.setattr(cost, "measure_curve", lambda *_, **__: pytest.fail("measured again"))
    wrong = CostCurve.from_seconds([1000.0 * each for each in first.curve.seconds])
    save_curve(path, key_of(tiny_target), wrong, {})
    again = measured_curve(tiny_target, folder=tmp_path)
    assert again.seconds_per_step < 0.2 * wrong.seconds_per_step, "corrected by a few steps"


@pytest.mark.parametrize("kept", [False, True])
def test_a_disturbed_measurement_replaces_no_stored_curve(
    tiny_target: LlamaTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """The curve is measured twice; a quiet second measurement is used."""
    steady, disturbed = (
        CostCurve.from_seconds([0.0, unit, *[unit * sorted(samples[2])[1]] * (tiny_target.max_width - 1)])
        for samples, unit in ((QUIET, 0.03), (BUSY, 0.5))
    )
    measurements = [(disturbed, BUSY)] * 2
    monkeypatch.setattr(cost, "measure_curve", lambda *_, **__: measurements.pop(0))
    if kept:
        save_curve(tmp_path / key_of(tiny_target).file_name(), key_of(tiny_target), steady, QUIET)
    with capture_logs() as logged:
        assert stored_or_measured_costs(tiny_target, folder=tmp_path, again=kept) == (
            steady if kept else disturbed
        )
    assert measurements == []
    assert "busy machine" in logged[-1]["event"]
    measurements = [(disturbed, BUSY), (steady, QUIET)]
    with capture_logs() as logged:
        assert stored_or_measured_costs(tiny_target, folder=tmp_path, again=True) == steady
    assert all(each["log_level"] == "info" for each in logged)
    assert cost.stored_curve(tiny_target, folder=tmp_path) == steady


def test_a_measurement_on_a_busy_machine_ends_in_time() -> None:
    """On a busy machine, the README's example measured for 400 s before its first token. The samples within
    the budget are used; widths without a step have proportional costs."""
    target = Scripted()
    curve, samples = measure_curve(
        cast(LlamaTarget, target), rounds=5, seconds=40.0, clock=lambda: target.now
    )
    assert target.now < 50.0, "a step may end after the time is up"
    assert target.kept == 0
    assert curve.max_width == target.max_width
    assert set(samples) < {2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16}
    assert curve.costs[2] == pytest.approx(1.5, rel=0.1)
    assert curve.costs[16] == pytest.approx(4.0, rel=0.2), "from the steps before the first round"

    target = Scripted()
    curve, samples = measure_curve(cast(LlamaTarget, target), rounds=5, seconds=4.0, clock=lambda: target.now)
    assert target.now < 10.0
    assert curve.max_width == target.max_width
    assert samples == {}
    assert curve.costs[16] == pytest.approx(curve.costs[3] * 16 / 3), "no step of it"


class Clock:
    """Clock that advances only while a target computes."""

    def __init__(self, target: LlamaTarget, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.probes = 0
        probe = target.probe

        def slow(width: int) -> None:
            probe(width)
            self.probes += 1
            self.now += seconds * width * (1 + self.probes % 3)

        monkeypatch.setattr(target, "probe", slow)


def test_a_slow_target_is_measured_within_the_budget_and_stored(
    tiny_target: LlamaTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call of measured_curve measures for a few minutes at most, logs it and stores the result."""
    played = Clock(tiny_target, 1.0, monkeypatch)
    with capture_logs() as measurements:
        live = measured_curve(tiny_target, folder=tmp_path, clock=lambda: played.now)
    assert played.now < cost.MEASURE_SECONDS + 100.0
    assert measurements[0]["log_level"] == "info"
    assert "measuring" in measurements[0]["event"]
    assert measurements[0]["seconds_at_most"] == cost.MEASURE_SECONDS
    assert "busy machine" in measurements[-1]["event"]
    assert live.curve.max_width == tiny_target.max_width
    assert cost.stored_curve(tiny_target, folder=tmp_path) == live.curve


def test_a_measurement_that_would_not_end_in_time_is_not_repeated(
    tiny_target: LlamaTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scattered samples are measured again only if the budget suffices for all of them."""
    now = [0.0]
    spans: list[float] = []

    def measured(*_: object, seconds: float, **__: object) -> object:
        spans.append(seconds)
        now[0] += cost.MEASURE_SECONDS * 0.6
        return CostCurve.from_seconds([0.0, 0.5, 0.75, 1.0]), BUSY

    monkeypatch.setattr(cost, "measure_curve", measured)
    with capture_logs() as measurements:
        stored_or_measured_costs(tiny_target, folder=tmp_path, clock=lambda: now[0])
    assert spans == [cost.MEASURE_SECONDS]
    assert "busy machine" in measurements[-1]["event"]


def test_curves_of_a_cpu_keep_their_files() -> None:
    """Files from before the device was part of the key stay valid, and are never those of a GPU."""
    cpu = CurveKey("digest", "a.gguf", 2, "build", 8, False, "f16")
    assert cpu.file_name() == "a-t2-w8-f23beae69d11d1ca.json"
    assert "device" not in cpu.as_dict()
    gpu = replace(cpu, device="CUDA0 (a GPU); 29 of 29 layers")
    assert gpu.file_name() != cpu.file_name()
    assert gpu.as_dict()["device"] == gpu.device


def test_a_curve_of_a_cpu_is_not_used_on_a_gpu(tmp_path: Path) -> None:
    cpu = CurveKey("digest", "a.gguf", 2, "build", 3, False, "f16")
    gpu = replace(cpu, device="CUDA0 (a GPU); 29 of 29 layers")
    path, curve = tmp_path / "c.json", CostCurve.from_seconds([0.0, 0.5, 0.75, 1.0])
    for its, other in ((cpu, gpu), (gpu, cpu), (gpu, replace(gpu, device="CUDA0 (a GPU); 5 of 29 layers"))):
        save_curve(path, its, curve, {})
        assert load_curve(path, its) == curve
        with pytest.raises(InvalidCostError, match="key must be that of the target"):
            load_curve(path, other)


def test_the_key_holds_all_settings(tiny_target: LlamaTarget, tmp_path: Path) -> None:
    key = key_of(tiny_target)
    assert key.threads == 1
    assert "0.3.36" in key.build
    other = tmp_path / "other.gguf"
    data = bytearray(tiny_target.model.path.read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    with LlamaTarget(other, tiny_target.settings) as target:
        assert key_of(target).model != key.model
    assert cost_folder().name == "cost"
