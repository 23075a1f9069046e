"""KV of ended generations: stored in main memory, restored, shared, and dropped beyond the capacity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from suffixsvc.errors import ModelError
from suffixsvc_driver.decode.generation import Request
from suffixsvc_driver.sampling.settings import GREEDY
from suffixsvc_driver.targets.parallel import ParallelLlama
from support.exactness_parallel import check_parallel
from support.parallel_runs import CARELESS, alone, check, some_requests
from support.recorded_runs import RecordedRun, generate_many
from support.targets import WIDTH_INDEPENDENT
from support.tiny_kinds import KINDS, WINDOW

TWO = replace(WIDTH_INDEPENDENT, slots=2, prefix_tokens=2000)


@pytest.fixture(scope="module")
def two(tiny_model: Path) -> Iterator[ParallelLlama]:
    with ParallelLlama(tiny_model, replace(TWO, context_size=1024)) as target:
        yield target


def words(rng: np.random.Generator, count: int) -> list[int]:
    return [int(token) for token in rng.integers(0, 256, size=count)]


def in_cells(found: RecordedRun) -> int:
    """Tokens of a run whose KV was computed: all but the newest one of each."""
    return sum(len(r.prompt_ids) + len(r.token_ids) - 1 for r in found.results)


def run(
    target: ParallelLlama, prompts: Sequence[list[int]], principal: str = "", tokens: int = 6
) -> RecordedRun:
    requests = [Request(prompt, (), tokens, principal=principal) for prompt in prompts]
    found = generate_many(target, requests, curve=CARELESS)
    assert len(found.results) == len(prompts)
    return found


def test_conversations_that_take_turns_compute_their_new_tokens(two: ParallelLlama) -> None:
    """Four of them on two lanes, and a stranger between every two turns."""
    two.forget()
    rng = np.random.default_rng(5)
    texts = [words(rng, 40) for _ in range(4)]
    new = computed = 0
    for turn in range(20):
        found = run(two, texts)
        for text, result in zip(texts, found.results, strict=True):
            computed += result.prefill.computed
            new += 40 if turn == 0 else 13
            text += [*result.token_ids, *words(rng, 13)]
        run(two, [words(rng, 30)])
    # of each answer the newest token was never computed, and the last one of a prompt is part of a step
    assert computed == new + 4 * (19 - 20)
    expected = alone(two, [text[:-13] for text in texts], [1] * 4, GREEDY)
    assert [r.token_ids for r in run(two, [t[:-13] for t in texts], tokens=1).results] == [
        r.token_ids for r in expected
    ]


def test_agents_share_their_system_prompt(two: ParallelLlama) -> None:
    two.forget()
    rng = np.random.default_rng(6)
    system = words(rng, 100)
    first = run(two, [[*system, *words(rng, 50)]])
    later = run(two, [[*system, *words(rng, 50)] for _ in range(6)])
    assert [r.prefill.reused for r in first.results] == [0]
    assert all(r.prefill.reused >= 100 for r in later.results)
    other = run(two, [[*system, *words(rng, 50)]], "other")
    assert other.results[0].prefill.reused == 0


def test_beyond_the_capacity_the_oldest_prefix_is_dropped(tiny_model: Path) -> None:
    """Ten prompts that each fill a lane, on two lanes: each is right."""
    with ParallelLlama(tiny_model, replace(TWO, context_size=256, prefix_tokens=800)) as target:
        rng = np.random.default_rng(7)
        prompts = [words(rng, 220) for _ in range(10)]
        found = run(target, prompts, tokens=30)
        expected = alone(target, prompts, [30] * 10, GREEDY)
        assert [r.token_ids for r in found.results] == [r.token_ids for r in expected]
        assert check_parallel(target, found).ok
        # two are on the lanes, and three more fit
        reused = [run(target, [prompts[i]], tokens=1).results[0].prefill.reused for i in (6, 0)]
        assert reused == [219, 0]


def test_only_running_generations_are_in_the_cells(two: ParallelLlama) -> None:
    """What a lane held before is in main memory once another lane begins."""
    two.forget()
    rng = np.random.default_rng(10)
    first = [words(rng, 60), words(rng, 70)]
    for texts in (first, [words(rng, 40)]):
        found = run(two, texts)
        assert two.kv_use[0] == in_cells(found)
    again = run(two, [[*text, 1] for text in first])
    assert [r.prefill.reused for r in again.results] == [60, 70]


def test_a_free_lane_gives_its_prefix_without_a_store(tiny_model: Path) -> None:
    """Its rest stays for the next turn, as there is no store for it."""
    with ParallelLlama(tiny_model, replace(TWO, prefix_tokens=0)) as target:
        rng = np.random.default_rng(13)
        system = words(rng, 100)
        text = [*system, *words(rng, 50)]
        run(target, [text])
        for prompt, reused in (([*system, *words(rng, 50)], 100), ([*text, 1], 150)):
            assert run(target, [prompt]).results[0].prefill.reused == reused


def test_windowed_models_restore_whole_texts(tmp_path: Path) -> None:
    """llama.cpp saves the tokens of the window only."""
    with ParallelLlama(KINDS["gemma"](tmp_path / "gemma.gguf", seed=1), TWO) as target:
        rng = np.random.default_rng(14)
        text = words(rng, 5 * WINDOW)
        [answer] = run(target, [text]).results
        strangers = [words(rng, 5 * WINDOW) for _ in range(2)]
        run(target, strangers)
        [part] = run(target, [[*text[: 4 * WINDOW], *words(rng, WINDOW)]]).results
        assert part.prefill.reused == 0
        written = [*text, *answer.token_ids]
        run(target, strangers)
        [turn] = run(target, [[*written, 1]], tokens=20).results
        assert turn.prefill.reused == len(written) - 1
        [expected] = alone(target, [[*written, 1]], [20], GREEDY)
        assert turn.token_ids == expected.token_ids


@pytest.mark.parametrize("fails", ["save_state", "load_state"])
def test_a_state_that_llama_cpp_refuses_is_computed_again(
    two: ParallelLlama, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise ModelError("refused")

    two.forget()
    rng = np.random.default_rng(11)
    text, stranger = words(rng, 60), words(rng, 50)
    [expected] = run(two, [text]).results
    monkeypatch.setattr(two.context, fails, refuse)
    run(two, [stranger, stranger])
    [again] = run(two, [text]).results
    assert again.token_ids == expected.token_ids
    assert again.prefill.reused == 0


def test_without_a_store_a_lane_keeps_its_own_text(tiny_model: Path) -> None:
    with ParallelLlama(tiny_model, replace(TWO, prefix_tokens=0)) as target:
        rng = np.random.default_rng(12)
        texts = [words(rng, 60) for _ in range(2)]
        run(target, texts)
        for text in texts:
            assert run(target, [[*text, 1]], tokens=1).results[0].prefill.reused == 60
        assert target.kv_use[0] > 2 * 60
        run(target, [words(rng, 60)])
        assert run(target, [[*texts[0], 1]], tokens=1).results[0].prefill.reused == 0


@pytest.mark.parametrize("kind", ["llama", "moe", "gemma"])
@pytest.mark.parametrize("seed", range(3))
def test_hostile_drafts_in_little_memory(kind: str, seed: int, tmp_path: Path) -> None:
    path = KINDS[kind](tmp_path / f"{kind}.gguf", seed=1)
    with ParallelLlama(path, replace(TWO, context_size=256, branches=2)) as target:
        requests, expected = some_requests(np.random.default_rng(seed), target, 12, GREEDY)
        found = generate_many(target, requests, curve=CARELESS)
        check(target, found, expected)
        assert check_parallel(target, found).same_shapes_exact


@pytest.mark.parametrize("kind", ["mamba", "lfm2"])
def test_recurrent_models_keep_the_states_of_their_lanes(kind: str, tmp_path: Path) -> None:
    with ParallelLlama(KINDS[kind](tmp_path / f"{kind}.gguf", seed=1), TWO) as target:
        rng = np.random.default_rng(8)
        texts = [words(rng, 20) for _ in range(2)]
        for turn in range(4):
            found = run(target, texts)
            for text, result in zip(texts, found.results, strict=True):
                assert (result.prefill.reused > 0) == (turn > 0)
                text += [*result.token_ids, *words(rng, 9)]


def test_a_prompt_that_is_computed_whole_leaves_the_kv_of_its_prefix(two: ParallelLlama) -> None:
    two.forget()
    rng = np.random.default_rng(31)
    text = words(rng, 200)
    run(two, [text])
    scored = Request([*text[:100], *words(rng, 5)], (), 2, prompt_logprobs=0)
    found = generate_many(two, [scored], curve=CARELESS)
    assert [result.prefill.reused for result in found.results] == [0]
    again = run(two, [[*text, *words(rng, 5)]])
    assert [result.prefill.reused for result in again.results] == [len(text)]
