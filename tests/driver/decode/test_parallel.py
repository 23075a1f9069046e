"""Several generations in shared batches on tiny models: each generates what it generates alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import (
    GrammarError,
    InvalidConfigError,
    InvalidInputError,
    LimitExceededError,
)
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.decode.generation import Request
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.decode.requests import Failure
from suffixsvc_driver.drafts.events import FinishReason, StepResult
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.sampling.settings import GREEDY, Sampling
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets import LaneStep
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.llama.grammar import LlamaGrammar
from suffixsvc_driver.targets.parallel import ParallelLlama
from suffixsvc_driver.targets.single import LlamaTarget
from support.exactness_parallel import check_parallel
from support.layers import ScriptedLayer, half_right, hostile_tree_drafter
from support.parallel_runs import CARELESS, LANES, alone, check, some_requests
from support.recorded_runs import Began, Filled, Stepped, generate_many
from support.targets import WIDTH_INDEPENDENT, nearly_no_flips
from support.tiny_kinds import KINDS

SAMPLED = Sampling(temperature=1.0, top_k=40, seed=5)
STATES = {
    "llama": ("llama", LANES),
    "moe": ("moe", LANES),
    "window": ("gemma", LANES),
    "window-forgetting": ("gemma", replace(LANES, full_window=False)),
    "recurrent": ("mamba", LANES),
    "hybrid": ("lfm2", LANES),
    "hybrid-checkpoints": ("lfm2", replace(LANES, snapshots=False)),
}


@pytest.fixture(scope="module", params=list(STATES))
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ParallelLlama]:
    kind, settings = STATES[request.param]
    path = KINDS[kind](tmp_path_factory.mktemp(kind) / f"{kind}.gguf", seed=1)
    with ParallelLlama(path, settings) as target:
        yield target


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_each_request_generates_what_it_generates_alone(target: ParallelLlama, sampling: Sampling) -> None:
    """More requests than lanes, of different lengths, with hostile chains and trees; then checks
    (a) and (b)."""
    rng = np.random.default_rng(6)
    requests, expected = some_requests(rng, target, 12, sampling)
    target.forget()
    run = generate_many(target, requests, curve=CARELESS)
    check(target, run, expected)
    batches = [o for o in run.operations if isinstance(o, Stepped)]
    assert len(batches) < sum(len(e.token_ids) for e in expected)
    shared = [o for o in batches if len(o.steps) > 1]
    assert len(shared) > 5
    assert any(len(o.steps) == 3 for o in shared)
    accepted = sum(r.stats.accepted for r in run.results)
    assert accepted > 20
    assert sum(r.stats.drafted for r in run.results) - accepted > 20
    if target.max_branches > 1:
        assert any(parents for o in shared for _, _, parents in o.steps)
    report = check_parallel(target, run)
    assert report.ok, report.describe()
    assert nearly_no_flips(report)
    assert report.recomputed_equal == report.positions == run.tokens
    assert [layer.text for r in requests for layer in r.layers] == [  # type: ignore[attr-defined]  # scripted ones
        [*r.prompt_ids, *r.token_ids] for r in run.results for _ in range(2)
    ]


def test_sliding_windows_in_shared_memory(tmp_path: Path) -> None:
    """llama.cpp reused cells that no window needed, although others were free and all should stay. Prompts
    that began like an earlier text then met holes in it and gave other texts, or failed ("have divereged").
    """
    path = KINDS["gemma"](tmp_path / "g.gguf", seed=1)
    with ParallelLlama(path, LANES) as target:
        for seed in (10, 15):
            requests, expected = some_requests(np.random.default_rng(seed), target, 12, GREEDY)
            target.forget()
            check(target, generate_many(target, requests, curve=CARELESS), expected)


LISTS = """
root ::= item ("," " "? item)* "."
item ::= [a-z] [a-z] [a-z]* | "(" root ")"
"""
SETTINGS = [
    GREEDY,
    Sampling(grammar=LISTS),
    Sampling(1.0, 40, seed=3, repeat_penalty=1.2, penalty_last_n=20),
    Sampling(1.0, seed=6, grammar=LISTS),
    Sampling(1.2, min_p=0.1, seed=5, logit_bias={32: -math.inf, 101: 2.0}),
    Sampling(1.0, 30, 0.95, 7, 0.02, 1.2, 0.1, 0.1, 30, {120: -1.0}, LISTS),
]


def test_requests_with_different_sampling(tiny: ParallelLlama) -> None:
    """Penalties, biases and grammars side by side, with drafted trees from which forbidden
    tokens are removed."""
    rng = np.random.default_rng(17)
    prompts = [rng.integers(0, 256, size=int(rng.integers(1, 40))).tolist() for _ in SETTINGS]
    requests, expected = [], []
    for prompt, sampling in zip(prompts, SETTINGS, strict=True):
        plain = alone(tiny, [prompt], [40], sampling)[0]
        drafter = hostile_tree_drafter(rng, [*prompt, *plain.token_ids], tiny.vocab_size)
        requests.append(Request(prompt, [ScriptedLayer(drafter)], 40, sampling))
        expected.append(plain)
    bad = Request([1], sampling=Sampling(grammar="root ::= [a"))
    tiny.forget()
    run = generate_many(tiny, [*requests, bad], curve=CARELESS)
    assert isinstance(run.outcomes[-1], Failure)
    assert isinstance(run.outcomes[-1].error, GrammarError)
    good = replace(run, outcomes=run.outcomes[:-1])
    check(tiny, good, expected)
    report = check_parallel(tiny, run)
    assert report.ok, report.describe()
    assert nearly_no_flips(report)
    sent = forbidden = 0
    for result in run.results:
        if result.sampling.grammar is None:
            continue
        grammar = LlamaGrammar(tiny.model, result.sampling.grammar)
        forbidden += result.stats.layer("scripted").forbidden
        for step in result.steps:
            tokens, parents = step.decision.token_ids, step.decision.parents or range(-1, 99)
            for i in range(len(tokens) - step.decision.padding):
                path, at = [], i
                while at >= 0:
                    path.insert(0, tokens[at])
                    at = parents[at]
                assert grammar.allowed(path) == len(path)
                sent += 1
            for token in step.emitted:
                grammar.accept(token)
    assert sent > 10
    assert forbidden > 20


def test_first_match_in_shared_batches(tiny: ParallelLlama) -> None:
    rng = np.random.default_rng(7)
    requests, expected = some_requests(rng, tiny, 6, GREEDY)
    run = generate_many(tiny, requests, DriverConfig(policy="first-match"), curve=CARELESS)
    check(tiny, run, expected)
    assert sum(r.stats.drafted for r in run.results) > 100


def test_first_match_does_not_replay_more_than_a_batch_holds(tmp_path: Path) -> None:
    """Every draft of every lane is accepted in part, so that only a step without drafts ends the growth of
    the replay."""
    path = KINDS["mamba"](tmp_path / "m.gguf", seed=1)
    settings = replace(LANES, branches=0, max_width=12, batch_size=15)
    rng = np.random.default_rng(12)
    prompts = [rng.integers(0, 256, size=20).tolist() for _ in range(5)]
    with ParallelLlama(path, settings) as target:
        expected = alone(target, prompts, [40] * 5, GREEDY)
        requests = [
            Request(prompt, [ScriptedLayer(half_right([*prompt, *result.token_ids]))], 40)
            for prompt, result in zip(prompts, expected, strict=True)
        ]
        curve = CostCurve.linear(0.001, 12)
        run = generate_many(target, requests, DriverConfig(policy="first-match"), curve=curve)
        check(target, run, expected)
        steps = [step for result in run.results for step in result.steps]
        # at most a newest token of each lane beside them
        assert max(len(s.token_ids) + s.replayed + s.other_tokens for s in steps) <= 12 + 3
        assert sum(s.replayed for s in steps) > 50
        assert check_parallel(target, run).ok


def test_one_lane_equals_generate(tiny_model: Path) -> None:
    """Every step equals that of generate, decisions included."""
    rng = np.random.default_rng(8)
    prompt = rng.integers(0, 256, size=20).tolist()
    settings = replace(WIDTH_INDEPENDENT, slots=1, branches=2)
    with ParallelLlama(tiny_model, settings) as many, LlamaTarget(many.model, settings) as one:
        truth = [*prompt, *generate(one, prompt, max_tokens=40).token_ids]
        results = []
        for run in (generate, generate_many):
            drafter = hostile_tree_drafter(np.random.default_rng(9), truth, one.vocab_size)
            layer = ScriptedLayer(drafter)
            if run is generate:
                results.append(generate(one, prompt, None, [layer], 40, curve=CARELESS, clock=lambda: 0.0))
            else:
                requests = [Request(prompt, [layer], 40)]
                results += generate_many(many, requests, curve=CARELESS, clock=lambda: 0.0).results
    loop, parallel = results
    assert [s.decision.token_ids for s in loop.steps] == [s.decision.token_ids for s in parallel.steps]
    assert [s.decision.parents for s in loop.steps] == [s.decision.parents for s in parallel.steps]
    assert loop.stats == parallel.stats
    assert loop.token_ids == parallel.token_ids


def test_common_prefixes_are_computed_once(tiny: ParallelLlama) -> None:
    """Also if they are on a lane that is generating, which is not disturbed."""
    rng = np.random.default_rng(10)
    system = rng.integers(0, 256, size=90).tolist()
    prompts = [[*system, *rng.integers(0, 256, size=9).tolist()] for _ in range(7)]
    expected = alone(tiny, prompts, [20] * 7, GREEDY)
    run = generate_many(tiny, [Request(p, (), 20) for p in prompts], curve=CARELESS)
    check(tiny, run, expected)
    reused = [r.prefill.reused for r in run.results]
    assert reused[0] == 0
    assert min(reused[1:]) >= len(system)
    assert tiny.begin(0, [*prompts[-1], *expected[-1].token_ids, 5]) >= len(prompts[-1])


def test_no_requests(tiny: ParallelLlama) -> None:
    run = generate_many(tiny, [])
    assert (run.outcomes, run.operations, run.tokens) == ((), (), 0)


def test_contexts_that_fill_up(target: ParallelLlama) -> None:
    """All lanes reach the end of their context at once, with drafts: no lane takes the cell
    of another one."""
    rng = np.random.default_rng(13)
    size = target.context_size
    prompts = [rng.integers(0, 256, size=size - n).tolist() for n in (0, 3, 9, 20)]
    expected = alone(target, prompts, [60] * 4, GREEDY)
    requests = []
    for prompt, result in zip(prompts, expected, strict=True):
        truth = [*prompt, *result.token_ids]
        layer = ScriptedLayer(hostile_tree_drafter(rng, truth, target.vocab_size))
        requests.append(Request(prompt, [layer], 60))
    run = generate_many(target, requests, curve=CARELESS)
    check(target, run, expected)
    assert {r.finish for r in run.results} <= {FinishReason.CONTEXT, FinishReason.STOP}
    assert run.results[0].finish is FinishReason.CONTEXT


def test_siblings_draft_from_each_other(tiny: ParallelLlama) -> None:
    """Six equal prompts on the embedded engine: parallel ones are a token or two apart, and later ones
    draft all that the first have emitted so far."""
    rng = np.random.default_rng(18)
    prompts = [rng.integers(0, 256, size=30).tolist()] * 6
    expected = alone(tiny, prompts, [40] * 6, GREEDY)
    with SuffixCache() as cache:
        namespace = cache.namespace("test/siblings")
        sessions = [namespace.open_session(prompt) for prompt in prompts]
        requests = [
            Request(prompt, [PromptLookupLayer(), SuffixLayer(session, tree=True)], 40)
            for prompt, session in zip(prompts, sessions, strict=True)
        ]
        run = generate_many(tiny, requests, curve=CostCurve.linear(0.02, 32))
        check(tiny, run, expected)
        assert all(session.close() is not None for session in sessions)
    accepted = [result.stats.layer("suffix").sent.accepted for result in run.results]
    print(accepted)
    assert sum(accepted[3:]) > 60
    assert sum(accepted[:3]) < sum(accepted[3:])


# -- steps


def test_a_prompt_delays_other_lanes_by_one_batch(tiny_model: Path) -> None:
    """A long prompt arrives while other lanes generate: its batches alternate with their steps."""
    settings = replace(LANES, batch_size=48)
    rng = np.random.default_rng(14)
    with ParallelLlama(tiny_model, settings) as target:
        prompts = [[1], [2], rng.integers(0, 256, size=48 * 5 + 1).tolist()]
        expected = alone(target, prompts, [30, 30, 5], GREEDY)
        seen: list[tuple[int, float]] = []
        requests = [
            Request(p, (), n, on_step=lambda s: seen.append((s.start, s.target_seconds)))
            for p, n in zip(prompts, [30, 30, 5], strict=True)
        ]
        live = LiveCurve(CARELESS)
        run = generate_many(target, requests, curve=live)
    assert [r.token_ids for r in run.results] == [e.token_ids for e in expected]
    filled = [i for i, o in enumerate(run.operations) if o == Filled(2)]
    assert len(filled) == 5
    between = [o for o in run.operations[filled[0] : filled[-1]] if not isinstance(o, Filled)]
    assert len(between) == 4
    assert all(isinstance(o, Stepped) and len(o.steps) == 2 for o in between)
    long = run.results[2]
    assert (long.prefill.reused, long.prefill.computed) == (0, 240)
    assert len(long.steps) == len(long.token_ids), "prefill is not a step"


def test_a_batch_is_counted_once(tiny: ParallelLlama) -> None:
    """The curve observes each batch once, at its full width; the cost of a batch is divided
    among its generations."""
    ticks = iter(range(10**6))
    seen: list[tuple[int, float]] = []

    class Watching(LiveCurve):
        def observe(self, width: int, seconds: float, base: int = 1) -> None:
            if seconds:
                seen.append((width, seconds))

    rng = np.random.default_rng(15)
    requests, expected = some_requests(rng, tiny, 5, GREEDY)
    run = generate_many(tiny, requests, curve=Watching(CARELESS), clock=lambda: float(next(ticks)))
    check(tiny, run, expected)
    batches = [o for o in run.operations if isinstance(o, Stepped)]
    widths = [sum(1 + len(drafted) for _, drafted, _ in o.steps) for o in batches]
    steps = [s for r in run.results for s in r.steps]
    observed = [width for width, _ in seen]  # with the tokens of trees that are computed again
    assert all(full >= width for full, width in zip(observed, widths, strict=True))
    assert sum(observed) == sum(widths) + sum(s.replayed for s in steps)
    cost = sum(CARELESS.cost(width) for width in observed)
    assert sum(r.stats.cost for r in run.results) == pytest.approx(cost)
    assert sum(len(s.token_ids) for s in steps) == sum(widths)
    assert {len(s.token_ids) + s.replayed + s.other_tokens for s in steps} == set(observed)


def test_requests_are_taken_as_lanes_become_free(tiny: ParallelLlama) -> None:
    """A generator derives requests from earlier results."""
    answers: list[tuple[int, ...]] = []

    def conversation() -> Iterator[Request]:
        for turn in range(6):
            text = [turn, *(answers[-1] if answers else ())]
            yield Request(text, (), 6, on_step=lambda s: answers.append(s.emitted))

    run = generate_many(tiny, conversation(), curve=CARELESS)
    assert len(run.results) == 6
    assert [o.request for o in run.operations if isinstance(o, Began)] == list(range(6))
    assert len(run.results[3].prompt_ids) == 2, "created when three were generating"


# -- the target alone


def test_invalid_settings(tiny_model: Path) -> None:
    for wrong, message in (
        (ContextSettings(slots=8, max_width=4), "max_width must be >= slots = 8"),
        (
            ContextSettings(slots=8, max_width=32, batch_size=36),
            "batch_size must be >= max_width . slots = 40",
        ),
        (
            ContextSettings(slots=64, max_width=64, branches=4),
            "slots . .1 . branches. must be <= 256",
        ),
    ):
        with pytest.raises(InvalidConfigError, match=message):
            ParallelLlama(tiny_model, wrong)
    with ParallelLlama(tiny_model, LANES) as target, pytest.raises(InvalidConfigError, match="wider"):
        generate_many(target, [], curve=CostCurve.linear(0.1, 33))


def test_invalid_steps(tiny: ParallelLlama) -> None:
    """Invalid steps change nothing, and the next step succeeds."""
    rng = np.random.default_rng(16)
    prompts = [rng.integers(0, 256, size=9).tolist() for _ in range(2)]
    with LlamaTarget(tiny.model, replace(LANES, slots=1)) as solo:
        expected = [generate(solo, p, max_tokens=3).token_ids for p in prompts]
    for lane, prompt in enumerate(prompts):
        tiny.begin(lane, prompt)

    def step(lane: int, *drafted: int, parents: tuple[int, ...] = ()) -> LaneStep:
        return LaneStep(lane, drafted, GREEDY, 9, None, parents)

    with pytest.raises(InvalidInputError, match="prefilled"):
        tiny.verify_many([step(0)])
    assert tiny.prefill(0) == 0
    assert tiny.prefill(1) == 0
    for wrong in ([step(0), step(0)], [step(2)], [step(0, 1, 2, parents=(1, 0))]):
        with pytest.raises(InvalidInputError):
            tiny.verify_many(wrong)
    with pytest.raises(LimitExceededError, match="too wide"):
        tiny.verify_many([step(0, *range(20)), step(1, *range(20))])
    with pytest.raises(LimitExceededError, match="leaves"):
        tiny.verify_many([step(1), step(0, *range(4), parents=(-1,) * 4)])
    assert tiny.verify_many([]) == []
    first = tiny.verify_many([step(1, expected[1][0], 7), step(0, 9)])
    assert first == [StepResult(expected[1][:2], 1), StepResult(expected[0][:1], 0)]
    assert tiny.verify_many([step(0, expected[0][1])]) == [StepResult(expected[0][1:], 1)]
