"""Requests for shared batches on tiny models, their reference texts, and checks of a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.generation import Request, Result
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.decode.requests import Failure
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.targets.parallel import ParallelLlama
from suffixsvc_driver.targets.single import LlamaTarget
from support.layers import ScriptedLayer, hostile_drafter, hostile_tree_drafter
from support.recorded_runs import RecordedRun, Stepped
from support.targets import WIDTH_INDEPENDENT, same_texts
from support.tiny_kinds import WINDOW

#: a curve on which drafts of any width pay
CARELESS = CostCurve.linear(0.001, 32)
LANES = replace(WIDTH_INDEPENDENT, slots=3, branches=2, prefix_tokens=1000)


def alone(
    target: ParallelLlama, prompts: list[list[int]], tokens: list[int], sampling: Sampling
) -> list[Result]:
    """Return the result of each prompt alone, without drafts."""
    with LlamaTarget(target.model, replace(target.settings, slots=1, branches=0)) as solo:
        return [
            generate(solo, p, max_tokens=n, sampling=sampling) for p, n in zip(prompts, tokens, strict=True)
        ]


def some_requests(
    rng: np.random.Generator, target: ParallelLlama, count: int, sampling: Sampling
) -> tuple[list[Request], list[Result]]:
    """Return requests of different lengths with hostile drafts, most with a common prefix, and
    their reference results."""
    common = rng.integers(0, 256, size=40).tolist()
    prompts = [
        [*common[: int(rng.integers(0, 41))], *rng.integers(0, 256, size=int(n)).tolist()]
        for n in rng.choice([1, 8, 3 * WINDOW, 130], size=count)
    ]
    tokens = [int(n) for n in rng.integers(1, 50, size=count)]
    expected = alone(target, prompts, tokens, sampling)
    requests = []
    for prompt, n, result in zip(prompts, tokens, expected, strict=True):
        truth = [*prompt, *result.token_ids]
        layers = [
            ScriptedLayer(hostile_tree_drafter(rng, truth, target.vocab_size), "tree"),
            ScriptedLayer(hostile_drafter(rng, truth, target.vocab_size), "chain"),
        ]
        requests.append(Request(prompt, layers, n, sampling))
    return requests, expected


def check(target: ParallelLlama, run: RecordedRun, expected: list[Result]) -> None:
    """Check texts, batch widths and statistics of a run."""
    assert not [o for o in run.outcomes if isinstance(o, Failure)]
    with LlamaTarget(target.model, replace(target.settings, slots=1, branches=0)) as solo:
        same_texts(solo, run.results, expected)
    for operation in run.operations:
        if isinstance(operation, Stepped):
            assert sum(1 + len(drafted) for _, drafted, _ in operation.steps) <= target.max_width
    for result in run.results:
        assert sum(c.output_tokens for c in result.stats.evidence.values()) == len(result.token_ids)
        assert len(result.sources) == len(result.token_ids)
