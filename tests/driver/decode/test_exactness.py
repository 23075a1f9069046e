"""The output is independent of the drafts: bit-identical where the arithmetic allows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.exactness import Exactness, Flip, check_exactness
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.sampling.settings import GREEDY, Sampling
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.single import LlamaTarget
from support.layers import ScriptedLayer, chain, hostile_drafter
from support.targets import WIDTH_INDEPENDENT
from support.tiny_gguf import write_tiny_llama
from support.tiny_kinds import KINDS

#: nearly free drafts, so that the driver sends as many as possible
CARELESS = CostCurve.linear(0.001, 32)
SAMPLINGS = [
    GREEDY,
    Sampling(temperature=1.0, seed=11),
    Sampling(temperature=0.8, top_k=20, seed=12),
    Sampling(temperature=1.3, top_k=40, top_p=0.9, seed=13),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "top-k", "top-k-top-p"])
@pytest.mark.parametrize("model_seed", [1, 2, 3])
def test_hostile_drafts_never_change_the_output(tmp_path: Path, model_seed: int, sampling: Sampling) -> None:
    """Form (c): F32 weights and KV, no flash attention: bit-identical to plain decoding."""
    rng = np.random.default_rng(model_seed)
    path = write_tiny_llama(tmp_path / "t.gguf", seed=model_seed)
    with LlamaTarget(path, WIDTH_INDEPENDENT) as target:
        for _ in range(4):
            prompt = rng.integers(0, 256, size=int(rng.integers(1, 80))).tolist()
            plain = generate(target, prompt, max_tokens=60, sampling=sampling)
            truth = [*prompt, *plain.token_ids]
            accepted = 0
            for policy in ("expected-gain", "first-match"):
                layer = ScriptedLayer(hostile_drafter(rng, truth, target.vocab_size))
                drafted = generate(
                    target,
                    prompt,
                    DriverConfig(policy=policy),
                    [layer],
                    max_tokens=60,
                    sampling=sampling,
                    curve=CARELESS,
                )
                assert drafted.token_ids == plain.token_ids
                assert drafted.finish == plain.finish
                assert layer.text == truth
                accepted += drafted.stats.accepted
            assert accepted > 0 or len(plain.token_ids) < 3


def test_same_batches_again_and_one_at_a_time(tiny_target: LlamaTarget) -> None:
    """Checks (a) and (b), with a prompt whose KV comes from an earlier generation's drafted batches."""
    rng = np.random.default_rng(5)
    prompt = tiny_target.model.tokenize("SELECT name FROM users")
    for sampling in SAMPLINGS[:2]:
        first = generate(tiny_target, prompt, max_tokens=40, sampling=sampling)
        layer = ScriptedLayer(hostile_drafter(rng, [*prompt, *first.token_ids], tiny_target.vocab_size))
        again = generate(tiny_target, prompt, None, [layer], 40, sampling=sampling, curve=CARELESS)
        longer = [*prompt, *again.token_ids, *tiny_target.model.tokenize("; SELECT")]
        layer = ScriptedLayer(lambda text, budget: chain([text[-1]] * 4))
        result = generate(tiny_target, longer, None, [layer], 40, sampling=sampling, curve=CARELESS)
        assert result.prefill.reused >= len(prompt)
        report = check_exactness(tiny_target, result)
        assert report.ok, report.describe()
        assert report.flips == ()
        assert report.positions == len(result.token_ids)


@pytest.mark.parametrize("slots", [1, 3])
def test_a_prompt_that_ends_inside_an_earlier_batch(tmp_path: Path, slots: int) -> None:
    """All of the prompt is cached, and its last batch continues after it: a shorter prompt after a longer
    one, and a text resumed inside a drafted step."""
    prompt = np.random.default_rng(1).integers(0, 256, size=140).tolist()
    path = KINDS["llama"](tmp_path / "t.gguf", seed=1)
    with LlamaTarget(path, replace(WIDTH_INDEPENDENT, slots=slots)) as target:
        generate(target, prompt, max_tokens=5)
        shorter = generate(target, prompt[:50], max_tokens=30)
        assert shorter.prefill.computed == 0
        assert check_exactness(target, shorter).ok
        target.forget()
        text = [*prompt, *generate(target, prompt, max_tokens=40).token_ids]
        layer = ScriptedLayer(lambda seen, budget: chain(text[len(seen) : len(seen) + min(6, budget)]))
        target.forget()
        generate(target, prompt, None, [layer], 40, curve=CARELESS)
        taken_up = generate(target, text[:150], max_tokens=20)
        assert taken_up.prefill.computed == 0
        assert list(taken_up.token_ids) == text[150:170]
        assert check_exactness(target, taken_up).ok


def test_a_wrong_token_is_noticed(tiny_target: LlamaTarget) -> None:
    """The check can fail: one emitted token is replaced afterwards."""
    prompt = tiny_target.model.tokenize("abc")
    result = generate(tiny_target, prompt, max_tokens=10)
    step = result.steps[4]
    wrong = (step.emitted[0] + 1) % 256
    steps = (*result.steps[:4], step._replace(emitted=(wrong,)), *result.steps[5:])
    tokens = (*result.token_ids[:4], wrong, *result.token_ids[5:])
    report = check_exactness(tiny_target, replace(result, steps=steps, token_ids=tokens))
    assert not report.same_shapes_exact
    assert not report.ok
    assert report.flips[0].position == len(prompt) + 4


def test_each_flip_is_judged_by_its_own_kind() -> None:
    """A greedy flip far from a tie used to pass once a sampled result was added to it."""
    greedy = Exactness(100, 100, (Flip(5, 1, 2, gap=9.0),))
    sampled = Exactness(100, 100, (Flip(6, 1, 2, gap=9.0, distance=0.01),), sampled=True)
    assert not greedy.ok
    assert sampled.ok
    assert not (greedy + sampled).ok
    assert not (sampled + greedy).ok
    assert Exactness(100, 100, (Flip(5, 1, 2, gap=0.4),)).ok
    assert not Exactness(100, 99, ()).ok
    assert not Exactness(
        100, 100, (Flip(1, 1, 2, 0.1), Flip(2, 1, 2, 0.1), Flip(3, 1, 2, 0.1), Flip(4, 1, 2, 0.1))
    ).ok


def test_a_near_tie_of_two_other_tokens_excuses_nothing(tiny_target: LlamaTarget) -> None:
    """The gap is between the sampled and the emitted token, not between the two best."""
    from dataclasses import replace

    prompt = tiny_target.model.tokenize("SELECT name FROM users")
    result = generate(tiny_target, prompt, max_tokens=4)
    worst = int(np.argmin(tiny_target.compute((int(prompt[-1]),))[0]))
    wrong = replace(result, token_ids=(worst, *result.token_ids[1:]))
    flip = check_exactness(tiny_target, wrong).flips[0]
    assert flip.written == worst
    assert flip.gap > 0.5
