"""A kept curve that is not true any more: what it costs to have believed it.

Everything is simulated (``support/stale_price.py``): the driver, its layers and its learning are the real
ones, the machine and its clock are numbers. Seeds are printed; a run with the same seed takes the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.live_curve import GUESSED, KEPT, LiveCurve
from support.shared_machine import shared
from support.stale_price import (
    FOUND_LATER,
    KEPT_ONCE,
    MADE_UP,
    SHAPES,
    Curve,
    Step,
    lived,
    recorded,
    slowdown,
    slowdown_of_text,
)

#: steps after which nothing may be left of it, and what "nothing" is
LEARNED, NOTHING = 30, 1.02
SEEDS = (1, 2, 3)
#: Runs of a few hundred steps differ by 4 % by luck alone: what a generation gained so far decides with the
#: price, and goes its own way for a hundred steps. So many are taken where fewer leave it open.
MOST_SEEDS = 16

Seconds = tuple[float, ...]


def believing(seconds: Sequence[float]) -> Curve:
    """A driver's curve that was kept when steps took this."""
    return LiveCurve(CostCurve.from_seconds(seconds))


@cache
def rightly(shape: str, workload: str, seed: int) -> list[Step]:
    """Lived with the right curve kept."""
    return lived(MADE_UP[workload], SHAPES[shape], believing(SHAPES[shape]), seed)


def only_plain(factor: float) -> Callable[[Seconds], Seconds]:
    return lambda seconds: (0.0, factor * seconds[1], *seconds[2:])


def all_alike(factor: float) -> Callable[[Seconds], Seconds]:
    return lambda seconds: tuple(factor * each for each in seconds)


WRONG = {
    "the unit 40 % too long": only_plain(1.4),
    "the unit 40 % too short": only_plain(0.6),
    "everything 40 % too long": all_alike(1.4),
    "everything 40 % too short": all_alike(0.6),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("workload", MADE_UP)
def test_a_kept_curve_that_is_wrong_in_its_unit_slows_nothing_down_after_thirty_steps(
    workload: str, wrong: str
) -> None:
    """The curve was measured when a plain step took 36 ms, and later one took 27 while wide ones took what
    they had taken. Every price was too low then, and only the widths that were sent again and again were
    mended: up to 27 % slower than with the right curve, and slower than no drafts at all. Now all prices are
    learned from every step."""
    for shape, seconds in SHAPES.items():
        kept = WRONG[wrong](seconds)
        ratios: list[float] = []
        for seed in range(1, MOST_SEEDS + 1):
            steps = lived(MADE_UP[workload], seconds, believing(kept), seed)
            ratios.append(slowdown(steps, rightly(shape, workload, seed), after=LEARNED))
            error = float(np.std(ratios)) / max(1, len(ratios) - 1) ** 0.5
            if len(ratios) >= len(SEEDS) and np.mean(ratios) + 2 * error <= NOTHING:
                break
        found = float(np.mean(ratios))
        print(f"{workload}, {wrong}, {shape}: {found:.3f} +- {error:.3f} (seeds 1 .. {len(ratios)})")
        assert found <= NOTHING, shape


def in_parts(seconds: Seconds, memory: float, arithmetic: float, overlap: float) -> Seconds:
    """The same machine with other memory and other arithmetic. ``overlap``: 1 where a step waits for the one
    and then for the other; the higher, the more it is only the slower one of both that counts."""
    read = 0.97 * seconds[1]
    computed = [max(0.0, each**overlap - read**overlap) ** (1 / overlap) for each in seconds]
    now = [
        ((memory * read) ** overlap + (arithmetic * each) ** overlap) ** (1 / overlap) for each in computed
    ]
    return (0.0, *now[1:])


@pytest.mark.parametrize("overlap", [1.0, 3.0], ids=["one after the other", "at once"])
@pytest.mark.parametrize(("memory", "arithmetic"), [(0.6, 1.4), (1.4, 0.6), (0.6, 1.0), (1.0, 1.4)])
def test_memory_and_arithmetic_that_change_apart_slow_nothing_down_after_thirty_steps(
    memory: float, arithmetic: float, overlap: float
) -> None:
    """That is what happens on a shared machine: who shares the memory comes and goes apart from who shares
    the cores. A curve of ratios is wrong in every width then, each by something else."""
    found = []
    for shape in ("1.5B on 2 threads", "0.5B on 1 thread", "GPU"):
        truth = in_parts(SHAPES[shape], memory, arithmetic, overlap)
        for workload in ("hot", "middling", "mixed"):
            for seed in SEEDS[:2]:
                run = MADE_UP[workload]
                steps = lived(run, truth, believing(SHAPES[shape]), seed)
                found.append(slowdown(steps, lived(run, truth, believing(truth), seed), after=LEARNED))
                print(f"{shape}, {workload}, seed {seed}: {found[-1]:.3f}")
    assert np.mean(found) <= NOTHING


@pytest.mark.parametrize("kept", [KEPT_ONCE, only_plain(1.4)(FOUND_LATER), only_plain(0.6)(FOUND_LATER)])
def test_recorded_calls_on_the_machine_where_it_was_found(kept: Seconds) -> None:
    """The layers that a user has, calls of agents as they were recorded, and the costs of the machine on
    which speculation fell to 0.76 of its forecast: kept once, or wrong by 40 % either way."""
    run = recorded(calls=12)
    found = []
    for seed in SEEDS:
        right = lived(run, FOUND_LATER, believing(FOUND_LATER), seed)
        found.append(slowdown_of_text(lived(run, FOUND_LATER, believing(kept), seed), right, after=LEARNED))
        print(f"seed {seed}: {found[-1]:.3f}")
    assert np.mean(found) <= NOTHING


@pytest.mark.parametrize("workload", ["cold", "weak"])
def test_where_little_can_be_gained_a_wrong_curve_is_hardly_slower_than_no_drafts(workload: str) -> None:
    """The first steps included: a price that is too low is noticed before it was paid often."""
    for shape, seconds in SHAPES.items():
        found = []
        for seed in SEEDS:
            steps = lived(MADE_UP[workload], seconds, believing(only_plain(1.4)(seconds)), seed)
            found.append(sum(s.seconds for s in steps) / sum(s.expected for s in steps) / seconds[1])
        print(f"{workload}, {shape}: {np.mean(found):.3f} of plain decoding's time (seeds {SEEDS})")
        assert np.mean(found) <= 1.03


def test_somebody_who_takes_no_plain_steps_any_more_notices_that_they_became_quicker() -> None:
    """Steps of 2 and of 4 looked cheap beside a plain step, so no plain one was taken, so nobody saw that it
    had become half as long: 20 % slower for hundreds of steps. Now a plain step is due after 200 plain steps'
    worth of others."""
    before, after = SHAPES["0.5B on 1 thread"], only_plain(0.55)(SHAPES["0.5B on 1 thread"])
    live = LiveCurve(CostCurve.from_seconds(only_plain(1.5)(before)))
    for _ in range(40):  # drafts that are always worth it
        for width in (2, 4):
            live.observe(width, before[width])
    steps = lived(MADE_UP["weak"], after, live, seed=5)
    assert any(step.width == 1 for step in steps[:LEARNED])
    assert live.expected().seconds_per_step == pytest.approx(after[1], rel=0.06)


def test_a_curve_by_which_no_draft_can_ever_pay_is_tried_nevertheless() -> None:
    """A plain step had been measured a third as long as it is: by that curve no width was worth its price, so
    no layer was asked, no step was wide, and nobody learned that all of it was wrong. Now a few tokens are
    tried where a price is in doubt."""
    seconds = SHAPES["1.5B on 2 threads"]
    kept = only_plain(0.3)(seconds)
    assert CostCurve.from_seconds(kept).widest_paying == 1
    found = []
    for seed in SEEDS:
        steps = lived(MADE_UP["hot"], seconds, believing(kept), seed)
        found.append(slowdown(steps, rightly("1.5B on 2 threads", "hot", seed), after=60))
        print(f"seed {seed}: {found[-1]:.3f}")
        assert max(step.width for step in steps[60:]) > 16
    assert np.mean(found) <= NOTHING


@pytest.mark.parametrize(
    ("lanes", "plain", "doubt", "slower"),
    [(1, 0.03, KEPT, 1.1), (2, 0.01, GUESSED, 1.2), (3, 0.01, KEPT, 3.0)],
    ids=["one", "two", "three"],
)
def test_generations_that_share_batches_try_a_curve_by_which_no_draft_can_ever_pay(
    lanes: int, plain: float, doubt: float, slower: float
) -> None:
    """Only a generation by itself tried a few tokens where a price was in doubt. Where batches are shared,
    also with one generation left in them, nothing was drafted in 2000 steps by a curve whose wide steps took
    longer than as many plain ones: no batch was wide, so none told that the curve was wrong."""
    truth = tuple(0.03 * (1 + 0.05 * (width - 1)) for width in range(33))
    kept = CostCurve.from_seconds(tuple(plain * (1 + 1.2 * (width - 1)) for width in range(33)))
    assert kept.widest_paying == 1
    wrong = shared(truth, LiveCurve(kept, doubt), lanes=lanes, tokens=2000, seed=1)
    right = shared(truth, believing(truth), lanes=lanes, tokens=2000, seed=1)
    print(f"{lanes} lanes: {wrong.taken / right.taken:.3f}")
    assert sum(width > base for base, width in wrong.widths) > 100
    # beside three tokens the next ones are hardly in doubt: only 200 batches without drafts make one try
    assert wrong.taken <= slower * right.taken, "the first tries included"


@pytest.mark.parametrize("lanes", [1, 3])
def test_generations_that_share_batches_take_one_without_drafts_now_and_then(lanes: int) -> None:
    """By the kept curve drafts always paid, so no batch went without any, and what one takes, by which all
    others are priced, could change unseen: only a generation by itself took a plain step when one was due."""
    kept = tuple(0.03 * (1 + 0.02 * (width - 1)) for width in range(33))
    machine = shared(kept, believing(kept), lanes=lanes, tokens=3000, seed=1)
    without = [i for i, (base, width) in enumerate(machine.widths) if width == base]
    print(f"{lanes} lanes: without drafts {without} of {len(machine.widths)} batches")
    assert 100 < without[0] < 220


@pytest.mark.parametrize(("base", "doubt"), [(1, KEPT), (2, GUESSED), (8, GUESSED)])
def test_where_nothing_can_be_drafted_trying_costs_next_to_nothing(base: int, doubt: float) -> None:
    """It takes one narrow step in hundreds."""
    seconds = SHAPES["1.5B on 1 thread"]
    live = LiveCurve(CostCurve.from_seconds(seconds), doubt)
    tried = 0
    for _ in range(2000):
        width = base + 1 if live.trial(base) is not None else base
        tried += width > base
        live.observe(width, seconds[width], base)
    assert 1 <= tried <= 15
