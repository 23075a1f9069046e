"""Log probabilities of emitted tokens are those of plain decoding, wherever a token comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from suffixsvc.errors import InvalidConfigError, InvalidInputError
from suffixsvc.types import Draft
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.generation import Request
from suffixsvc_driver.decode.loop import Result, generate, stream
from suffixsvc_driver.drafts.events import FinishReason, TokenLogprobs
from suffixsvc_driver.sampling.logprobs import token_logprobs
from suffixsvc_driver.sampling.settings import GREEDY, Sampling
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.parallel import ParallelLlama
from suffixsvc_driver.targets.single import LlamaTarget
from support.layers import ScriptedLayer, hostile_drafter, hostile_tree_drafter
from support.recorded_runs import generate_many
from support.targets import WIDTH_INDEPENDENT, talkative_prompt

CARELESS = CostCurve.linear(0.001, 32)
SAMPLINGS = {
    "greedy": GREEDY,
    "hot": Sampling(temperature=1.5, top_k=40, seed=5),
    "changed": Sampling(0.8, seed=3, repeat_penalty=1.3, logit_bias={97: 4.0, 98: float("-inf")}),
    "grammar": Sampling(grammar="root ::= [a-c] [x-z]* [0-9] root"),
}
DRAFTERS = {"chains": hostile_drafter, "trees": hostile_tree_drafter}


def oracle(target: LlamaTarget, result: Result, top: int) -> list[tuple[float, list[int], np.ndarray]]:
    """Token by token, in float64: log probability, the most probable tokens, and all log probabilities."""
    target.begin(result.prompt_ids, fresh=True)
    found = []
    for before, token in zip([result.prompt_ids[-1], *result.token_ids], result.token_ids, strict=False):
        wide = target.compute((before,))[0].astype(np.float64)
        scores = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
        order = np.argsort(-scores, kind="stable")[:top].tolist()
        found.append((float(scores[token]), order, scores))
    return found


def scored(result: Result) -> list[TokenLogprobs]:
    return [each for step in result.steps for each in step.logprobs]


def check(target: LlamaTarget, result: Result, top: int, tolerance: float = 1e-4) -> None:
    """``tolerance`` is that of rounding at another width of the batch."""
    found = scored(result)
    assert len(found) == len(result.token_ids)
    for mine, (logprob, order, scores) in zip(found, oracle(target, result, top), strict=True):
        assert mine.logprob == pytest.approx(logprob, abs=tolerance)
        assert len(mine.top_ids) == top
        # near-ties may change places, values may not
        assert scores[mine.top_ids] == pytest.approx(mine.top_logprobs.astype(np.float64), abs=tolerance)
        assert scores[mine.top_ids] == pytest.approx(scores[order], abs=2 * tolerance)
        assert all(np.diff(mine.top_logprobs) <= 0)


@pytest.fixture
def target(tiny_model: Path) -> Iterator[LlamaTarget]:
    with LlamaTarget(tiny_model, replace(WIDTH_INDEPENDENT, slots=1, branches=4)) as target:
        yield target


@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_they_are_those_of_plain_decoding(
    target: LlamaTarget, sampling: Sampling, drafter: Callable[..., Callable[[list[int], int], Draft]]
) -> None:
    sampling = replace(sampling, logprobs=5)
    prompt = talkative_prompt(target, 40)
    plain = generate(target, prompt, max_tokens=40, sampling=sampling)
    check(target, plain, 5)
    rng = np.random.default_rng(4)
    truth = [*prompt, *plain.token_ids]
    layer = ScriptedLayer(drafter(rng, truth, target.vocab_size))
    result = generate(target, prompt, None, [layer], 40, sampling=sampling, curve=CARELESS)
    assert result.token_ids == plain.token_ids
    assert result.stats.accepted > 5
    check(target, result, 5)
    for mine, other in zip(scored(result), scored(plain), strict=True):
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_each_lane_of_a_shared_batch_has_its_own(tiny_model: Path) -> None:
    sampling = [Sampling(logprobs=2), GREEDY, Sampling(temperature=1.0, seed=7, logprobs=0)]
    with (
        LlamaTarget(tiny_model, WIDTH_INDEPENDENT) as alone,
        ParallelLlama(tiny_model, WIDTH_INDEPENDENT) as target,
    ):
        prompts = [alone.model.tokenize(f"question {i}:") for i in range(3)]
        plain = [
            generate(alone, prompt, max_tokens=30, sampling=each)
            for prompt, each in zip(prompts, sampling, strict=True)
        ]
        rng = np.random.default_rng(1)
        requests = [
            Request(
                prompt,
                [ScriptedLayer(hostile_drafter(rng, [*prompt, *each.token_ids], target.vocab_size))],
                30,
                each.sampling,
            )
            for prompt, each in zip(prompts, plain, strict=True)
        ]
        results = generate_many(target, requests, curve=CARELESS).results
        assert [each.token_ids for each in results] == [each.token_ids for each in plain]
        assert sum(each.stats.accepted for each in results) > 5
        check(alone, results[0], 2)
        assert not scored(results[1])
        check(alone, results[2], 0)


@pytest.mark.model
def test_on_a_quantised_model_within_the_rounding_of_the_width(real_model: Path) -> None:
    settings = ContextSettings(context_size=512, slots=1, threads=1)
    with LlamaTarget(real_model, settings) as target:
        prompt = target.model.tokenize("A list of colours: red, green, blue, red, green,")
        sampling = Sampling(logprobs=20)
        plain = generate(target, prompt, max_tokens=24, sampling=sampling)
        truth = [*prompt, *plain.token_ids]
        layer = ScriptedLayer(hostile_drafter(np.random.default_rng(2), truth, target.vocab_size))
        result = generate(
            target, prompt, None, [layer], 24, sampling=sampling, curve=CostCurve.linear(0.01, 16)
        )
        assert result.stats.accepted > 5
        check(target, plain, 20, 1e-3)
        check(target, result, 20, 0.5)  # as the gap of a near-tie (docs/architecture.md)


@pytest.mark.parametrize("count", [0, 1, 7, 4096, 5000])
def test_values_without_a_model(count: int) -> None:
    logits = np.random.default_rng(3).normal(0, 20, 4096).astype(np.float32)
    logits[17] = logits[5] = logits.max() + 1  # a tie
    found = token_logprobs(logits, 9, count)
    wide = logits.astype(np.float64)
    scores = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    assert found.logprob == pytest.approx(scores[9], abs=1e-5)
    assert found.top_ids.tolist() == np.argsort(-scores, kind="stable")[:count].tolist()
    assert found.top_logprobs == pytest.approx(scores[found.top_ids], abs=1e-5)


@pytest.mark.parametrize("count", [-1, 1.5, True, "2"])
def test_another_number_is_refused(count: object) -> None:
    with pytest.raises(InvalidConfigError, match="logprobs must be an int >= 0"):
        Sampling(logprobs=count)  # type: ignore[arg-type]


def prompt_of(tokens: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(8).integers(0, 256, tokens)]


@pytest.mark.parametrize("tokens", [1, 2, 33, 34, 100])
@pytest.mark.parametrize("max_tokens", [0, 9])
def test_those_of_a_prompt_are_computed_anew_and_leave_its_kv(
    tiny_model: Path, tokens: int, max_tokens: int
) -> None:
    prompt = prompt_of(tokens)
    found: list[tuple[TokenLogprobs, ...]] = []
    with (
        LlamaTarget(tiny_model, WIDTH_INDEPENDENT) as alone,
        ParallelLlama(tiny_model, WIDTH_INDEPENDENT) as target,
    ):
        scoring = Request(prompt, (), max_tokens, prompt_logprobs=3, on_prompt=found.append)
        others = [Request(prompt, (), 12), Request([*prompt, 7], (), 12)]
        expected = [generate(alone, each.prompt_ids, max_tokens=12).token_ids for each in others]
        for requests in ([others[0]], [scoring, *others], [scoring]):  # the prompt's KV is there, or in use
            results = generate_many(target, requests).results
            texts = [each.token_ids for each in results if each.prompt_ids != tuple(prompt)]
            assert texts in ([], [expected[1]])
        assert results[0].token_ids == expected[0][:max_tokens]
        assert results[0].prefill.reused == 0
        assert max_tokens or results[0].finish is FinishReason.LENGTH
        again = generate_many(target, [others[0]]).results[0]
        assert again.token_ids == expected[0]
        assert again.prefill.reused == tokens - 1
        alone.begin(prompt[:1], fresh=True)
        rows = [alone.compute((token,))[0].astype(np.float64) for token in prompt[:-1]]
    assert len(found) == 2
    for scores in found:
        assert len(scores) == tokens - 1
        for mine, row, token in zip(scores, rows, prompt[1:], strict=True):
            exact = row - row.max() - np.log(np.exp(row - row.max()).sum())
            assert mine.logprob == pytest.approx(exact[token], abs=1e-4)
            assert mine.top_logprobs == pytest.approx(np.sort(exact)[::-1][:3], abs=1e-4)


def test_one_generation_alone_does_not_report_those_of_the_prompt(target: LlamaTarget) -> None:
    with pytest.raises(InvalidInputError, match="prompt_logprobs must be None"):
        next(stream(target, Request([1, 2], prompt_logprobs=1)))
