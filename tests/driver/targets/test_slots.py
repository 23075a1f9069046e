"""Slots of prompts, against a brute-force oracle; KV is shared within one principal only."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.generation import Request, Result
from suffixsvc_driver.decode.loop import drain, stream
from suffixsvc_driver.decode.parallel import generate_many
from suffixsvc_driver.targets.llama.context import LlamaContext, Part
from suffixsvc_driver.targets.parallel import ParallelLlama
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_driver.targets.slots import SlotCache
from support.long_form import rounds
from support.parallel_runs import CARELESS, LANES
from support.targets import shared_prefix


@pytest.mark.parametrize("whole", [False, True], ids=["cut", "whole"])
@pytest.mark.parametrize("copies", [True, False], ids=["copies", "own"])
@pytest.mark.parametrize("seed", range(rounds(4, full=10)))
def test_placements_are_those_of_brute_force(seed: int, copies: bool, whole: bool) -> None:
    """The longest prefix of the same principal is kept, nothing of another one's; without one, an empty slot
    or the least recently used one is taken; a long tail is overwritten only in that slot."""
    print("seed", seed)
    rng = random.Random(seed)
    count = rng.randint(1, 6)
    cache = SlotCache(count, whole=whole, copies=copies)
    # the oracle's memory: tokens, owner and time of the last use of each slot
    held: list[tuple[list[int], str, int]] = [([], "", 0)] * count
    reused = refused = 0
    for now in range(1, 200):
        owner = rng.choice("ab")
        # texts of three tokens meet often; the tail of some is long
        prompt = rng.choices((1, 2), k=rng.randint(1, 5)) + [7] * rng.choice((0, 0, 40))
        if rng.random() < 0.5:  # a next turn, of anyone's text
            prompt = [*rng.choice(held)[0], *rng.choices((1, 2), k=rng.randint(1, 3))]
        free = sorted(rng.sample(range(count), rng.randint(1, count)))
        best = other = 0
        for i, (tokens, whose, _) in enumerate(held):
            n = min(len(prompt) - 1, shared_prefix(tokens, prompt))
            if whole and n < len(tokens):
                n = 0
            if copies or i in free:
                best, other = (max(best, n), other) if whose == owner else (best, max(other, n))
        lru = min(free, key=lambda i: (bool(held[i][0]), held[i][2], i))
        placement = cache.place(prompt, free, owner)
        slot, source = placement.slot.index, placement.source.index
        assert placement.keep == best
        assert slot in free
        if best:
            assert held[source][0][:best] == prompt[:best]
            assert held[source][1] == owner
        if not best or source != slot:
            assert slot == lru
        elif copies:
            assert slot == lru or len(held[slot][0]) - best <= 32
        reused += best > 0
        refused += other > best
        cache.apply(placement)
        assert placement.slot.tokens == prompt[:best]
        text = [*prompt[:-1], *rng.choices((1, 2), k=rng.randint(0, 2))]
        placement.slot.tokens[:] = text
        held[slot] = (text, owner, now)
    assert reused > 10
    assert refused > 10 or count == 1


@pytest.fixture
def tiny(tiny_model: Path) -> Iterator[ParallelLlama]:
    with ParallelLlama(tiny_model, LANES) as target:
        yield target


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of every batch that llama.cpp computes without logits."""
    counts: list[int] = []
    real = LlamaContext.decode_part

    def counted(context: LlamaContext, part: Part) -> None:
        counts.append(part.logits_from)
        real(context, part)

    monkeypatch.setattr(LlamaContext, "decode_part", counted)
    return counts


def test_an_equal_prompt_of_another_principal_is_computed_in_full(
    tiny: ParallelLlama, computed: list[int]
) -> None:
    """Beside it, and after it; the text is the same."""
    prompt = np.random.default_rng(3).integers(0, 256, size=81).tolist()

    def run(*principals: str) -> list[Result]:
        computed.clear()
        requests = [Request(prompt, (), 12, principal=principal) for principal in principals]
        results = generate_many(tiny, requests, curve=CARELESS).results
        assert len(results) == len(principals)
        assert sum(computed) == sum(result.prefill.computed for result in results)
        return results

    first = run("a", "b", "a")
    assert [result.prefill.reused for result in first] == [0, 0, 80]
    again = run("b", "c", "a")
    assert [result.prefill.reused for result in again] == [80, 0, 80]
    assert len({result.token_ids for result in (*first, *again)}) == 1
    tiny.forget()
    assert run("")[0].prefill.reused == 0


def test_a_target_of_one_generation_keeps_principals_apart(tiny_model: Path) -> None:
    with LlamaTarget(tiny_model, replace(LANES, slots=3, branches=0)) as target:
        reused = [
            drain(
                stream(target, Request([5] * 50, (), 4, principal=principal), curve=CostCurve.linear(0.1, 8))
            ).prefill.reused
            for principal in ("a", "b", "a", "", "b", "")
        ]
    assert reused == [0, 0, 49, 0, 49, 49]


def test_the_lane_that_generated_last_is_kept(tiny: ParallelLlama) -> None:
    """A long generation that began first ends last: its text is the most recently used one."""
    long, short, other = [1, 2, 3], [4, 5, 6], [7, 8, 9]
    run = generate_many(
        tiny, [Request(p, (), n) for p, n in ((long, 40), (short, 2), (other, 2))], curve=CARELESS
    )
    texts = {result.prompt_ids: [*result.prompt_ids, *result.token_ids] for result in run.results}
    again = generate_many(tiny, [Request([9, 9], (), 1)], curve=CARELESS).results
    assert again[0].prefill.reused == 0
    turn = generate_many(tiny, [Request([*texts[tuple(long)], 5], (), 1)], curve=CARELESS).results
    assert turn[0].prefill.reused >= len(texts[tuple(long)]) - 1
