"""A cost curve that learns from real steps and is not fooled by noise."""

from __future__ import annotations

import numpy as np
import pytest
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.live_curve import GUESSED, KEPT, MEASURED, LiveCurve
from support.stale_price import FOUND_LATER, KEPT_ONCE, SHAPES

SEED = 20


def shared_machine(seconds: float, rng: np.random.Generator) -> float:
    """As a step takes there: a few per cent of scatter, and 2 % that somebody else's work fell into."""
    slow = rng.uniform(2.0, 3.0) if rng.random() < 0.02 else 1.0
    return float(seconds * rng.lognormal(0.0, 0.04) * slow)


def off(live: LiveCurve, truth: tuple[float, ...], widths: tuple[int, ...]) -> float:
    """How far what is expected of these widths is off, in plain steps, at most."""
    now = live.expected().costs
    return max(abs(now[w] * truth[1] / truth[w] - 1.0) for w in widths)


def test_a_plain_step_that_became_quicker_while_wide_ones_did_not() -> None:
    """A curve was kept when a plain step took 36.3 ms; an hour later one took 27.5 and a step of 8 what it
    had taken before. By the kept ratios 8 tokens cost 3.9 plain steps and not 5.2, and each width had to be
    seen five times before its own price was mended: speculation made decoding slower. Now a few steps of one
    wide width tell for all."""
    live = LiveCurve(CostCurve.from_seconds(KEPT_ONCE))
    rng = np.random.default_rng(SEED)
    assert off(live, FOUND_LATER, (2, 4, 8, 16)) > 0.17
    for width in [*[1] * 14, 4, 1, 4, 1, 4, 1]:
        live.observe(width, shared_machine(FOUND_LATER[width], rng))
    # neither 2 nor 8 nor 16 was seen; 16 did become cheaper, and nothing told
    assert off(live, FOUND_LATER, (2, 4, 8)) < 0.06
    assert off(live, FOUND_LATER, (16,)) < 0.12
    assert live.seconds_per_step == pytest.approx(FOUND_LATER[1], rel=0.04)
    for width in (8, 16, 1, 16, 2, 1):
        live.observe(width, shared_machine(FOUND_LATER[width], rng))
    assert off(live, FOUND_LATER, (2, 4, 8, 16)) < 0.08


def test_a_plain_step_alone_makes_wide_ones_dearer_before_they_are_tried() -> None:
    """Nobody knows yet whether the wide ones are quicker as well: a price between the two is asked for."""
    live = LiveCurve(CostCurve.from_seconds(KEPT_ONCE))
    for _ in range(5):
        live.observe(1, FOUND_LATER[1])
    seen = live.curve.costs[8]
    assert KEPT_ONCE[8] / KEPT_ONCE[1] * 1.1 < seen < KEPT_ONCE[8] / FOUND_LATER[1] * 1.1
    assert seen > live.expected().costs[8], "what is in doubt costs more than is expected"


@pytest.mark.parametrize("factor", [0.6, 1.4])
def test_a_machine_that_is_slower_or_quicker_as_a_whole_keeps_its_curve(factor: float) -> None:
    truth = tuple(factor * each for each in KEPT_ONCE)
    live = LiveCurve(CostCurve.from_seconds(KEPT_ONCE))
    rng = np.random.default_rng(SEED)
    for width in [1, 1, 1, 1, 2, 1, 4, 1, 1, 16, 1, 1, 4, 1, 1, 1]:
        live.observe(width, shared_machine(truth[width], rng))
    assert off(live, truth, (2, 4, 8, 16, 32)) < 0.07
    assert live.expected().seconds_per_step == pytest.approx(truth[1], rel=0.05)


def test_a_disturbed_step_changes_little_and_a_lasting_change_is_learned() -> None:
    """One step that another process fell into is no news; three in a row are."""
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
    """Nothing is known yet, so a step of 2.7 plain ones might be true: the next ones must take it back."""
    live = LiveCurve(CostCurve.from_seconds(KEPT_ONCE))
    live.observe(1, 2.7 * KEPT_ONCE[1])
    assert live.seconds_per_step < 1.8 * KEPT_ONCE[1]
    for _ in range(4):
        live.observe(1, KEPT_ONCE[1])
    assert live.seconds_per_step == pytest.approx(KEPT_ONCE[1], rel=0.03)


def test_noise_moves_it_little() -> None:
    rng = np.random.default_rng(1)
    live = LiveCurve(CostCurve((0.0, 1.0, 1.5, 2.0, 2.5), 0.03))
    for _ in range(300):
        live.observe(1, 0.03 * rng.lognormal(0, 0.1))
        slow = 5.0 if rng.random() < 0.1 else 1.0  # somebody else's work
        live.observe(2, 0.03 * 1.5 * slow * rng.lognormal(0, 0.1))
    assert live.curve.costs[2] == pytest.approx(1.5, rel=0.15)


def test_what_nobody_has_seen_lately_becomes_dearer_again_and_no_dearer_than_at_the_start() -> None:
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


@pytest.mark.parametrize("doubt", [MEASURED, KEPT, GUESSED])
def test_the_more_a_curve_is_in_doubt_the_quicker_it_is_given_up(doubt: float) -> None:
    live = LiveCurve(CostCurve.from_seconds(KEPT_ONCE), doubt)
    live.observe(4, 1.2 * KEPT_ONCE[4])
    learned = {MEASURED: (1.05, 1.15), KEPT: (1.14, 1.2), GUESSED: (1.17, 1.2)}[doubt]
    now = live.expected().seconds[4] / KEPT_ONCE[4]
    assert learned[0] < now < learned[1]


@pytest.mark.parametrize("width", [64, 100, 300, 512])
def test_very_wide_steps_share_what_they_are_off_by(width: int) -> None:
    """A curve of 512 widths is learned in a few dozens of estimates."""
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
def test_what_is_no_measurement_is_ignored(width: int, seconds: float) -> None:
    curve = CostCurve((0.0, 1.0, 1.5, 2.0, 2.5), seconds_per_step=0.03)
    live = LiveCurve(curve)
    for _ in range(20):
        live.observe(width, seconds)
    assert live.curve == curve
    assert live.expected().costs == pytest.approx(curve.costs)


def test_without_known_seconds_the_first_step_of_any_width_tells_them() -> None:
    live = LiveCurve(CostCurve.linear(0.2, 4), GUESSED)
    assert live.seconds_per_step == 0.0
    live.observe(2, 0.12)
    assert live.seconds_per_step == pytest.approx(0.1, rel=0.2)
    for _ in range(9):
        live.observe(1, 0.1)
        live.observe(2, 0.3)
    assert live.expected().costs[2] == pytest.approx(3.0, rel=0.03)
    assert live.curve.seconds_per_step == pytest.approx(0.1, rel=0.05)


def test_a_plain_step_is_due_when_only_others_were_taken_for_long() -> None:
    live = LiveCurve(CostCurve.linear(0.0, 8, seconds_per_step=0.03))
    for _ in range(150):
        live.observe(4, 0.03)
    assert not live.plain_due
    for _ in range(60):
        live.observe(4, 0.03)
    assert live.plain_due
    live.observe(1, 0.03)
    assert not live.plain_due


def test_a_trial_leaves_questions_their_price() -> None:
    """A trial's curve had no unit, by which questions are priced in plain steps: while one was due, which is
    at every step where nothing can be drafted, every layer's question and a draft model's tokens were free.
    A layer that found nothing was asked at each of 2000 steps, 55 times with a fixed curve."""
    live = LiveCurve(CostCurve.linear(1.0, 32, seconds_per_step=0.03), KEPT)
    rng = np.random.default_rng(SEED)
    for _ in range(40):
        live.observe(1, shared_machine(0.045, rng))
    trial = live.trial()
    assert trial is not None, "a step of some tokens is in doubt, and none was taken"
    assert trial.seconds_per_step == live.curve.seconds_per_step > 0.0


@pytest.mark.parametrize("every", [6, 50])
def test_a_machine_that_changes_again_and_again_does_not_make_drafts_dear(every: int) -> None:
    """Each change, three steps in a row that lay far off, added all of the first doubt to what was in doubt
    already, and prices rise with doubt: 8 tokens of 1.14 plain steps cost 3.36 after 600 steps of a machine
    that alternates between two speeds."""
    truth = CostCurve.linear(0.02, 32, seconds_per_step=0.01)
    live = LiveCurve(truth, KEPT)
    rng = np.random.default_rng(SEED)
    for step in range(600):
        speed = 1.6 if step // every % 2 else 1.0
        live.observe(1, shared_machine(0.01 * speed, rng))
        assert live.curve.costs[8] < 1.3 * truth.costs[8], step
