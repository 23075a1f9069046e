"""Order of prefill: short prompts first, none for ever, common prefixes once."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from suffixsvc_driver.decode.generation import Request, curve_for
from suffixsvc_driver.decode.prefill_order import Filling, PrefillOrder
from suffixsvc_driver.decode.requests import Outcome
from suffixsvc_driver.decode.running_batch import RunningBatch
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.parallel import ParallelLlama
from support.long_form import rounds
from support.parallel_runs import CARELESS, LANES


class Memory:
    """Prefixes that were computed, by principal, as a target holds them."""

    def __init__(self) -> None:
        self._known: set[tuple[str, tuple[int, ...]]] = set()
        self.computed = 0

    def missing(self, filling: Filling) -> int:
        text = tuple(filling.prompt[:-1])
        cached = max(n for n in range(len(text) + 1) if not n or (filling.principal, text[:n]) in self._known)
        return len(text) - cached

    def fill(self, filling: Filling, batch: int) -> None:
        filling.begun = True
        n = len(filling.prompt) - 1 - filling.missing
        batch = min(batch, filling.missing)
        for end in range(n + 1, n + batch + 1):
            self._known.add((filling.principal, tuple(filling.prompt[:end])))
        filling.missing -= batch
        self.computed += batch


@pytest.mark.parametrize("seed", range(rounds(10, full=40)))
def test_a_common_prefix_is_computed_once(seed: int) -> None:
    """The oracle counts the distinct prefixes of each principal."""
    print("seed", seed)
    rng = random.Random(seed)
    prompts: list[Filling] = []
    for _ in range(rng.randint(1, 8)):
        start = list(rng.choice(prompts).prompt) if prompts and rng.random() < 0.7 else []
        text = [*start[: rng.randint(0, len(start))], *rng.choices(range(3), k=rng.randint(1, 30))]
        prompts.append(Filling(text, rng.choice("aab")))
    prefixes = {(p.principal, tuple(p.prompt[:n])) for p in prompts for n in range(1, len(p.prompt))}
    memory, order, waiting = Memory(), PrefillOrder(), list(prompts)
    while waiting:
        for filling in waiting:
            if not filling.begun:
                filling.missing = memory.missing(filling)
        chosen = waiting[order.next(waiting)]
        memory.fill(chosen, rng.randint(1, 8))
        if not chosen.missing:
            waiting.remove(chosen)
    assert memory.computed == len(prefixes)


@pytest.mark.parametrize("seed", range(rounds(4, full=10)))
def test_short_prompts_that_keep_coming_do_not_starve_a_long_one(seed: int) -> None:
    rng = random.Random(seed)
    memory, order = Memory(), PrefillOrder(shares=False)
    long = Filling([1] * 81, "a", 80)
    waiting = [long]
    short_done = batches = 0
    while long.missing:
        while len(waiting) < 4:
            text = [2 + len(waiting)] * rng.randint(2, 6)
            waiting.append(Filling(text, "b", len(text) - 1))
        chosen = waiting[order.next(waiting)]
        memory.fill(chosen, 8)
        batches += 1
        if not chosen.missing:
            waiting.remove(chosen)
            short_done += chosen is not long
    assert batches == 4 * 10
    assert short_done == 3 * 10


def test_a_short_prompt_does_not_wait_for_a_long_one(tiny_model: Path) -> None:
    """On real lanes: it generates while the long one is computed, and both texts are those alone."""
    rng = random.Random(1)
    with ParallelLlama(tiny_model, replace(LANES, batch_size=36)) as target:
        long, short = rng.choices(range(256), k=400), rng.choices(range(256), k=30)
        alone: list[Outcome] = []
        for prompt in (long, short):
            batch = RunningBatch(
                target, DriverConfig(), curve_for(target, CARELESS), Calibrator(), lambda: 0.0
            )
            batch.add(Request(prompt, (), 5), alone.append)
            while not batch.idle:
                batch.advance()
            target.forget()
        batch = RunningBatch(target, DriverConfig(), curve_for(target, CARELESS), Calibrator(), lambda: 0.0)
        ended: dict[str, tuple[int, Outcome]] = {}
        steps = 0
        batch.add(Request(long, (), 5), lambda outcome: ended.update(long=(steps, outcome)))
        batch.advance()
        batch.add(Request(short, (), 5), lambda outcome: ended.update(short=(steps, outcome)))
        while not batch.idle:
            steps += 1
            batch.advance()
    assert ended["short"][0] == 5
    assert (
        ended["long"][0] == 12 + 4
    )  # its 11 batches after the first, one for the short prompt, four steps more
    texts = [outcome.token_ids for _, outcome in (ended["long"], ended["short"])]  # type: ignore[union-attr]
    assert texts == [outcome.token_ids for outcome in alone]  # type: ignore[union-attr]
