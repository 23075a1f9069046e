"""Cost curve that learns from steps: adapts to changes and resists noise."""

from __future__ import annotations

import numpy as np
import pytest

from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import GUESSED, MEASURED, STORED, LiveCurve
from support.stale_cost import FOUND_LATER, KEPT_ONCE, SHAPES

SEED = 20


def shared_machine(seconds: float, rng: np.random.Generator) -> float:
    """Return the seconds of a step there: a few per cent of scatter, and 2 % of the steps disturbed."""
    slow = rng.uniform(2.0, 3.0) if rng.random() < 0.02 else 1.0
    return float(seconds * rng.lognormal(0.0, 0.04) * slow)


def off(live: LiveCurve, truth: tuple[float, ...], widths: tuple[int, ...]) -> float:
    """Return the largest error of the expected costs of these widths, in plain steps."""
    now = live.expected().costs
    return max(abs(now[w] * truth[1] / truth[w] - 1.0) for w in widths)


def test_a_plain_step_that_became_quicker_while_wide_ones_did_not() -> None:
    """A curve was stored when a plain step took 36.3 ms; an hour later one took 27.5 ms and a step of 8
    tokens as long as before. By the stored ratios 8 tokens cost 3.9 plain steps instead of 5.2, and each
    width had to be measured five times before its cost was corrected: speculation made decoding slower. Now
    a few steps of one wide width correct all of them."""
    live = LiveCurve(CostCurve.from_seconds(KEPT_ONCE))
    rng = np.random.default_rng(SEED)
    assert off(live, FOUND_LATER, (2, 4, 8, 16)) > 0.17
    for width in [*[1] * 14, 4, 1, 4, 1, 4, 1]:
        live.observe(width, shared_machine(FOUND_LATER[width], rng))
    # 2, 8 and 16 were not measured; that 16 became cheaper is unknown
    assert off(live, FOUND_LATER, (2, 4, 8)) < 0.06
    assert off(live, FOUND_LATER, (16,)) < 0.12
    assert live.seconds_per_step == pytest.approx(FOUND_LATER[1], rel=0.04)
    for width in (8, 16, 1, 16, 2, 1):
        live.observe(width, shared_machine(FOUND_LATER[width], rng))
    assert off(live, FOUND_LATER, (2, 4, 8, 16)) < 0.08


def test_a_faster_plain_step_raises_the_cost_of_wide_ones() -> None:
    """Whether wide steps became faster as well is unknown: their costs lie between both cases."""
    live = LiveCurve(CostCurve.from_seconds(KEPT_ONCE))
    for _ in range(5):
        live.observe(1, FOUND_LATER[1])
    seen = live.curve.costs[8]
    assert KEPT_ONCE[8] / KEPT_ONCE[1] * 1.1 < seen < KEPT_ONCE[8] / FOUND_LATER[1] * 1.1
    assert seen > live.expected().costs[8], "what is in doubt costs more than is expected"


@pytest.mark.parametrize("factor", [0.6, 1.4])
def test_a_machine_that_is_uniformly_slower_or_faster_keeps_its_curve(factor: float) -> None:
    truth = tuple(factor * each for each in KEPT_ONCE)
    live = LiveCurve(CostCurve.from_seconds(KEPT_ONCE))
    rng = np.random.default_rng(SEED)
    for width in [1, 1, 1, 1, 2, 1, 4, 1, 1, 16, 1, 1, 4, 1, 1, 1]:
        live.observe(width, shared_machine(truth[width], rng))
    assert off(live, truth, (2, 4, 8, 16, 32)) < 0.07
    assert live.expected().seconds_per_step == pytest.approx(truth[1], rel=0.05)


def test_a_disturbed_step_changes_little_and_a_lasting_change_is_learned() -> None:
    """A single outlier changes little; three in a row are a change."""
    live = LiveCurve(CostCurve.from_seconds(KEPT_ONCE), MEASURED)
    rng = np.random.default_rng(SEED)
    for _ in range(60):
        live.observe(1, KEPT_ONCE[1] * float(rng.lognormal(0, 0.03)))
    before = live.seconds_per_step
    live.observe(1, 3.0 * before)
    assert live.seconds_per_step == pytest.approx(before, rel=0.02)
    live.observe(1, before)
    steps = 0
    while abs(live.seconds_per_step / (0.7 * before) - 1.0) > 0.02:
        steps += 1
        live.observe(1, 0.7 * before)
    assert steps <= 5


def test_a_first_step_that_is_disturbed_does_not_make_every_draft_look_cheap() -> None:
    """Nothing is known yet, so a step of 2.7 plain ones is plausible: the next ones must correct it."""
    live = LiveCurve(CostCurve.from_seconds(KEPT_ONCE))
    live.observe(1, 2.7 * KEPT_ONCE[1])
    assert live.seconds_per_step < 1.8 * KEPT_ONCE[1]
    for _ in range(4):
        live.observe(1, KEPT_ONCE[1])
    assert live.seconds_per_step == pytest.approx(KEPT_ONCE[1], rel=0.03)


def test_noise_changes_little() -> None:
    rng = np.random.default_rng(1)
    live = LiveCurve(CostCurve((0.0, 1.0, 1.5, 2.0, 2.5), 0.03))
    for _ in range(300):
        live.observe(1, 0.03 * rng.lognormal(0, 0.1))
        slow = 5.0 if rng.random() < 0.1 else 1.0  # disturbed
        live.observe(2, 0.03 * 1.5 * slow * rng.lognormal(0, 0.1))
    assert live.curve.costs[2] == pytest.approx(1.5, rel=0.15)


def test_a_width_without_recent_steps_becomes_as_uncertain_as_at_the_start() -> None:
    seconds = SHAPES["1.5B on 2 threads"]
    live = LiveCurve(CostCurve.from_seconds(seconds))
    for width in (1, 4, 1, 8, 1, 16, 1, 2) * 4:
        live.observe(width, seconds[width])
    sure = live.curve.costs[8]
    assert sure == pytest.approx(seconds[8] / seconds[1], rel=0.06)
    for _ in range(3000):
        live.observe(1, seconds[1])
    assert 1.05 * sure < live.curve.costs[8] < 1.25 * sure
    assert live.expected().costs[8] == pytest.approx(seconds[8] / seconds[1], rel=0.04)


@pytest.mark.parametrize("doubt", [MEASURED, STORED, GUESSED])
def test_an_uncertain_curve_adapts_faster(doubt: float) -> None:
    live = LiveCurve(CostCurve.from_seconds(KEPT_ONCE), doubt)
    live.observe(4, 1.2 * KEPT_ONCE[4])
    learned = {MEASURED: (1.05, 1.15), STORED: (1.14, 1.2), GUESSED: (1.17, 1.2)}[doubt]
    now = live.expected().seconds[4] / KEPT_ONCE[4]
    assert learned[0] < now < learned[1]


@pytest.mark.parametrize("width", [64, 100, 300, 512])
def test_very_wide_steps_share_a_state(width: int) -> None:
    """A curve of 512 widths has a few dozen states."""
    live = LiveCurve(CostCurve.linear(0.1, 512, seconds_per_step=0.02))
    truth = live.curve.seconds
    for _ in range(6):
        live.observe(1, truth[1])
        live.observe(width, 1.3 * truth[width])
    now = live.expected().seconds
    assert now[width] == pytest.approx(1.3 * truth[width], rel=0.03)
    assert now[width - 3] == pytest.approx(1.3 * truth[width - 3], rel=0.05)
    assert now[1] == pytest.approx(truth[1], rel=0.03)


@pytest.mark.parametrize(
    ("width", "seconds"),
    [(0, 1.0), (5, 1.0), (2, 0.0), (2, -1.0), (2, float("nan")), (2, float("inf"))],
)
def test_invalid_measurements_are_ignored(width: int, seconds: float) -> None:
    curve = CostCurve((0.0, 1.0, 1.5, 2.0, 2.5), seconds_per_step=0.03)
    live = LiveCurve(curve)
    for _ in range(20):
        live.observe(width, seconds)
    assert live.curve == curve
    assert live.expected().costs == pytest.approx(curve.costs)


def test_the_first_step_of_any_width_sets_unknown_seconds() -> None:
    live = LiveCurve(CostCurve.linear(0.2, 4), GUESSED)
    assert live.seconds_per_step == 0.0
    live.observe(2, 0.12)
    assert live.seconds_per_step == pytest.approx(0.1, rel=0.2)
    for _ in range(9):
        live.observe(1, 0.1)
        live.observe(2, 0.3)
    assert live.expected().costs[2] == pytest.approx(3.0, rel=0.03)
    assert live.curve.seconds_per_step == pytest.approx(0.1, rel=0.05)


def test_a_plain_step_is_due_after_many_others() -> None:
    live = LiveCurve(CostCurve.linear(0.0, 8, seconds_per_step=0.03))
    for _ in range(150):
        live.observe(4, 0.03)
    assert not live.plain_due
    for _ in range(60):
        live.observe(4, 0.03)
    assert live.plain_due
    live.observe(1, 0.03)
    assert not live.plain_due


def test_a_trial_keeps_the_cost_of_queries() -> None:
    """A trial's curve had no unit, by which query costs are converted: while one was due, which is at every
    step where nothing can be drafted, queries and tokens of a draft model were free. A layer that found
    nothing was queried in each of 2000 steps, and in 55 with a fixed curve."""
    live = LiveCurve(CostCurve.linear(1.0, 32, seconds_per_step=0.03), STORED)
    rng = np.random.default_rng(SEED)
    for _ in range(40):
        live.observe(1, shared_machine(0.045, rng))
    trial = live.trial()
    assert trial is not None, "a step of some tokens is in doubt, and none was taken"
    assert trial.seconds_per_step == live.curve.seconds_per_step > 0.0


@pytest.mark.parametrize("every", [6, 50])
def test_repeated_changes_do_not_raise_costs(every: int) -> None:
    """Each change, three outliers in a row, added the initial variance to the current one, and costs
    include a margin for it: 8 tokens of 1.14 plain steps cost 3.36 after 600 steps of a machine that
    alternates between two speeds."""
    truth = CostCurve.linear(0.02, 32, seconds_per_step=0.01)
    live = LiveCurve(truth, STORED)
    rng = np.random.default_rng(SEED)
    for step in range(600):
        speed = 1.6 if step // every % 2 else 1.0
        live.observe(1, shared_machine(0.01 * speed, rng))
        assert live.curve.costs[8] < 1.3 * truth.costs[8], step
