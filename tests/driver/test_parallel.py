"""Several generations in shared batches on tiny models: each writes what it writes alone, whatever the others
do, draft or fail at."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from suffixsvc_driver.config import DriverConfig
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.events import FinishReason
from suffixsvc_driver.exactness_parallel import check_parallel
from suffixsvc_driver.generation import Result, StepRecord
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.live_curve import LiveCurve
from suffixsvc_driver.loop import generate
from suffixsvc_driver.parallel import Began, Failure, Filled, Request, Run, Stepped, generate_many
from suffixsvc_driver.sampling import GREEDY, Sampling
from suffixsvc_driver.targets import LaneStep, Verification
from suffixsvc_driver.targets.llama import LlamaTarget
from suffixsvc_driver.targets.llama_context import ContextSettings, LlamaContext, Part
from suffixsvc_driver.targets.llama_grammar import LlamaGrammar
from suffixsvc_driver.targets.parallel import ParallelLlama
from suffixsvc_driver.trust import Trust
from support.layers import ScriptedLayer, chain, hostile_drafter, hostile_tree_drafter
from support.targets import WIDTH_INDEPENDENT, nearly_no_flips, same_texts
from support.tiny_kinds import KINDS, WINDOW

from suffixsvc import SuffixCache
from suffixsvc.errors import (
    GrammarError,
    InvalidConfigError,
    InvalidInputError,
    InvalidTokensError,
    LimitExceededError,
    ModelError,
)

CARELESS = CostCurve.linear(0.001, 32)
LANES = replace(WIDTH_INDEPENDENT, slots=3, branches=2)
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


@pytest.fixture
def tiny(tiny_model: Path) -> Iterator[ParallelLlama]:
    with ParallelLlama(tiny_model, LANES) as target:
        yield target


def alone(
    target: ParallelLlama, prompts: list[list[int]], tokens: list[int], sampling: Sampling
) -> list[Result]:
    """What each prompt gives by itself, without drafts."""
    with LlamaTarget(target.model, replace(target.settings, slots=1, branches=0)) as solo:
        return [
            generate(solo, p, max_tokens=n, sampling=sampling) for p, n in zip(prompts, tokens, strict=True)
        ]


def some_requests(
    rng: np.random.Generator, target: ParallelLlama, count: int, sampling: Sampling
) -> tuple[list[Request], list[Result]]:
    """Prompts of all lengths, answers of all lengths, hostile drafts, a beginning that most share."""
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


def check(target: ParallelLlama, run: Run, expected: list[Result]) -> None:
    assert not [o for o in run.outcomes if isinstance(o, Failure)]
    with LlamaTarget(target.model, replace(target.settings, slots=1, branches=0)) as solo:
        same_texts(solo, run.results, expected)
    for operation in run.operations:
        if isinstance(operation, Stepped):
            assert sum(1 + len(drafted) for _, drafted, _ in operation.steps) <= target.max_width
    for result in run.results:
        assert sum(c.output_tokens for c in result.stats.evidence.values()) == len(result.token_ids)
        assert len(result.sources) == len(result.token_ids)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_everyone_writes_what_they_write_alone(target: ParallelLlama, sampling: Sampling) -> None:
    """More requests than lanes, ending at different times, hostile drafts in chains and trees; then (a),
    (b)."""
    rng = np.random.default_rng(6)
    requests, expected = some_requests(rng, target, 12, sampling)
    target.forget()
    run = generate_many(target, requests, curve=CARELESS)
    check(target, run, expected)
    assert run.batches < sum(len(e.token_ids) for e in expected)
    shared = [o for o in run.operations if isinstance(o, Stepped) and len(o.steps) > 1]
    assert len(shared) > 5
    assert any(len(o.steps) == 3 for o in shared)
    accepted = sum(r.stats.accepted for r in run.results)
    assert accepted > 20
    assert sum(r.stats.drafted for r in run.results) - accepted > 25
    if target.max_branches > 1:
        assert any(parents for o in shared for _, _, parents in o.steps)
    report = check_parallel(target, run)
    assert report.ok, report.describe()
    assert nearly_no_flips(report)
    assert report.recomputed_equal == report.positions == run.tokens
    assert [layer.text for r in requests for layer in r.layers] == [  # type: ignore[attr-defined]  # scripted ones
        [*r.prompt_ids, *r.token_ids] for r in run.results for _ in range(2)
    ]


def test_windows_forget_in_shared_memory(tmp_path: Path) -> None:
    """llama.cpp gave away cells that no window saw any more, though others were free and all were to be kept:
    prompts that began like an earlier text then found holes in it, wrote something else, or could not be
    computed at all ("have divereged")."""
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


def test_everyone_chooses_as_they_like(tiny: ParallelLlama) -> None:
    """Penalties, biases and grammars side by side, with drafted trees of which what a grammar forbids is
    cut."""
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


def test_the_first_match_shares_too(tiny: ParallelLlama) -> None:
    rng = np.random.default_rng(7)
    requests, expected = some_requests(rng, tiny, 6, GREEDY)
    run = generate_many(tiny, requests, DriverConfig(policy="first-match"), curve=CARELESS)
    check(tiny, run, expected)
    assert sum(r.stats.drafted for r in run.results) > 100


def test_one_lane_is_the_loop(tiny_model: Path) -> None:
    """Step by step the same as generate, decisions and all."""
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


def test_common_beginnings_are_computed_once(tiny: ParallelLlama) -> None:
    """Also from a lane that is writing, which goes on undisturbed."""
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


def test_nothing_to_do(tiny: ParallelLlama) -> None:
    run = generate_many(tiny, [])
    assert (run.outcomes, run.operations, run.tokens, run.batches) == ((), (), 0, 0)


def test_who_fails_fails_alone(tiny: ParallelLlama) -> None:
    """A prompt that is too long, one that is none, ids outside, layers of one name, a stop rule and a
    callback that raise: the others write what they write alone."""
    rng = np.random.default_rng(11)
    prompts = [rng.integers(0, 256, size=12).tolist() for _ in range(4)]
    expected = alone(tiny, prompts, [24] * 4, GREEDY)
    calls = 0

    def angry(written: object) -> bool:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise ValueError("not today")
        return False

    def upset(record: StepRecord) -> None:
        raise KeyError(record.start)

    good = [Request(p, (), 24) for p in prompts]
    layer = ScriptedLayer(lambda text, budget: chain([1, 2]))
    bad = [
        Request([5] * 513),
        Request([]),
        Request([1, tiny.vocab_size]),
        Request([1, 2], [layer, layer]),
        Request([1, 2], max_tokens=0),
        Request(prompts[0], (), 24, stop=angry),
        Request(prompts[1], (), 24, on_step=upset),
    ]
    mixed = [bad[0], good[0], bad[5], good[1], *bad[1:5], good[2], bad[6], good[3]]
    tiny.forget()
    run = generate_many(tiny, mixed, curve=CARELESS)
    assert [r.token_ids for r in run.results] == [e.token_ids for e in expected]
    errors = [o.error for o in run.outcomes if isinstance(o, Failure)]
    assert [type(e) for e in errors] == [
        LimitExceededError, ValueError, InvalidTokensError, InvalidTokensError,
        InvalidConfigError, InvalidInputError, KeyError,
    ]  # fmt: skip
    assert [isinstance(o, Failure) for o in run.outcomes] == [r in bad for r in mixed]
    report = check_parallel(tiny, run)
    assert report.same_shapes_exact, report.describe()
    # and every lane is free again
    assert len(generate_many(tiny, good, curve=CARELESS).results) == 4


def test_a_failing_batch_ends_who_was_in_it(tiny: ParallelLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(12)
    prompts = [rng.integers(0, 256, size=12).tolist() for _ in range(5)]
    expected = alone(tiny, prompts, [10] * 5, GREEDY)
    real = LlamaContext.decode_parts
    calls = 0

    def fails_once(context: LlamaContext, parts: list[Part]) -> list[int]:
        nonlocal calls
        offsets = real(context, parts)
        calls += 1
        if calls == 4:
            raise ModelError("llama_decode failed", expected=0, got=-3)
        return offsets

    monkeypatch.setattr(LlamaContext, "decode_parts", fails_once)
    run = generate_many(tiny, [Request(p, (), 10) for p in prompts], curve=CARELESS)
    failed = [isinstance(o, Failure) for o in run.outcomes]
    assert failed == [True, True, True, False, False]
    assert [r.token_ids for r in run.results] == [e.token_ids for e in expected[3:]]


def test_closed_in_the_middle(tiny_model: Path) -> None:
    target = ParallelLlama(tiny_model, LANES)

    def close(record: StepRecord) -> None:
        target.close()

    requests = [Request([n], (), 20, on_step=close if n == 1 else None) for n in range(5)]
    run = generate_many(target, requests, curve=CARELESS)
    errors = [o.error for o in run.outcomes if isinstance(o, Failure)]
    assert len(errors) == 5
    assert all(isinstance(e, ModelError) and "closed" in str(e) for e in errors)


def test_contexts_that_fill_up(target: ParallelLlama) -> None:
    """Every lane at its end at once, in the middle of drafts: nobody takes a cell that is another's."""
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
    """The same question six times, on the embedded engine: side by side they are a token or two apart, but
    who comes later drafts all that the first have written, while the others still write."""
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


# -- what a step is


def test_a_prompt_holds_nobody_up_longer_than_a_batch(tiny_model: Path) -> None:
    """A long prompt arrives while others write: a piece of it, a step of theirs, a piece of it."""
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
    assert len(long.steps) == len(long.token_ids), "a piece of a prompt is no step"


def test_a_batch_is_counted_once(tiny: ParallelLlama) -> None:
    """The curve sees each batch once, at its whole width; what a batch costs is shared out and adds up."""
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
    assert [w for w, _ in seen] == widths
    cost = sum(CARELESS.cost(w) for w in widths)
    assert sum(r.stats.cost for r in run.results) == pytest.approx(cost)
    steps = [s for r in run.results for s in r.steps]
    assert sum(len(s.token_ids) for s in steps) == sum(widths)
    assert {len(s.token_ids) + s.replayed + s.beside for s in steps} == set(widths)


@pytest.mark.parametrize("where", ["while proposing", "in the batch", "after the batch"])
def test_a_batch_is_observed_whichever_generation_fails(tiny: ParallelLlama, where: str) -> None:
    """The first generation of a batch told the curve what the batch took, so where that one failed nothing
    was learned of the batch; and the width without drafts was noted before all had proposed, so where another
    one failed then, a batch with a drafted token counted as one without. The loop that shares the batch tells
    the curve: each batch once, with its width and the width that it would have had without drafts."""
    seen: list[tuple[int, int]] = []

    class Watching(LiveCurve):
        def observe(self, width: int, seconds: float, base: int = 1) -> None:
            if seconds:
                seen.append((width, base))

    class Failing(Trust):
        calls = 0

        def believe(self, layer: str, claim: float, depth: int) -> float:
            self.calls += 1
            if self.calls > 3:
                raise ArithmeticError
            return super().believe(layer, claim, depth)

    calls = 0

    def angry(written: object) -> bool:
        nonlocal calls
        calls += 1
        if calls > 4:
            raise ValueError("not today")
        return False

    def upset(record: StepRecord) -> None:
        if record.start > 14:
            raise KeyError(record.start)

    def layers() -> list[ScriptedLayer]:
        return [ScriptedLayer(lambda text, budget: chain([1, 2][:budget]))]

    first = {
        "while proposing": Request([5] * 12, layers(), 24, trust=Failing()),
        "in the batch": Request([5] * 12, layers(), 24, stop=angry),
        "after the batch": Request([5] * 12, layers(), 24, on_step=upset),
    }[where]
    ticks = iter(range(10**6))
    requests = [first, *(Request([n] * 12, layers(), 24) for n in (6, 7))]
    run = generate_many(tiny, requests, curve=Watching(CARELESS), clock=lambda: float(next(ticks)))
    assert [isinstance(outcome, Failure) for outcome in run.outcomes] == [True, False, False]
    batches = [o.steps for o in run.operations if isinstance(o, Stepped)]
    widths = [(sum(1 + len(drafted) for _, drafted, _ in steps), len(steps)) for steps in batches]
    assert len({lanes for _, lanes in widths}) > 1
    assert any(width > lanes for width, lanes in widths)
    assert seen == widths


def test_requests_are_taken_as_lanes_become_free(tiny: ParallelLlama) -> None:
    """A generator makes the next request of what came of the last: agents that answer each other."""
    answers: list[tuple[int, ...]] = []

    def conversation() -> Iterator[Request]:
        for turn in range(6):
            text = [turn, *(answers[-1] if answers else ())]
            yield Request(text, (), 6, on_step=lambda s: answers.append(s.emitted))

    run = generate_many(tiny, conversation(), curve=CARELESS)
    assert len(run.results) == 6
    assert [o.request for o in run.operations if isinstance(o, Began)] == list(range(6))
    assert len(run.results[3].prompt_ids) == 2, "made when three had begun to write"


def test_an_element_that_is_no_request_fails_alone(tiny: ParallelLlama) -> None:
    """None among the requests counted as their end: the requests after it were dropped without a word."""
    requests: list[Any] = [Request([1, 2], (), 4), None, Request([3, 4], (), 4), "x"]
    run = generate_many(tiny, requests, curve=CARELESS)
    assert [isinstance(outcome, Result) for outcome in run.outcomes] == [True, False, True, False]
    errors = [outcome.error for outcome in run.outcomes if isinstance(outcome, Failure)]
    assert all(isinstance(error, InvalidInputError) for error in errors)
    assert [str(error) for error in errors] == [
        "requests[1] must be a Request; got NoneType",
        "requests[3] must be a Request; got str",
    ]


def test_requests_that_raise_lose_no_result(tiny: ParallelLlama) -> None:
    """An iterator that raised took the results of all requests before it along. It is the last outcome."""

    def some() -> Iterator[Request]:
        for first in range(5):  # more than there are lanes
            yield Request([first, 2], (), 4)
        raise KeyError("no more")

    run = generate_many(tiny, some(), curve=CARELESS)
    assert [len(result.token_ids) for result in run.results] == [4] * 5
    last = run.outcomes[-1]
    assert isinstance(last, Failure)
    assert isinstance(last.error, KeyError)
    assert len(run.outcomes) == 6
    assert len(generate_many(tiny, [Request([1, 2], (), 4)], curve=CARELESS).results) == 1


# -- the target by itself


def test_settings_that_cannot_be(tiny_model: Path) -> None:
    for wrong, message in (
        (ContextSettings(slots=8, max_width=4), "max_width >= 8"),
        (ContextSettings(slots=8, max_width=32, batch_size=36), "batch_size >= max_width . slots = 40"),
        (ContextSettings(slots=64, max_width=64, branches=4), "slots . .1 . branches. <= 256"),
    ):
        with pytest.raises(InvalidConfigError, match=message):
            ParallelLlama(tiny_model, wrong)
    with ParallelLlama(tiny_model, LANES) as target, pytest.raises(InvalidConfigError, match="wider"):
        generate_many(target, [], curve=CostCurve.linear(0.1, 33))


def test_steps_that_cannot_be(tiny: ParallelLlama) -> None:
    """Nothing changes, and the next step is fine."""
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
    assert tiny.prefill(0)
    assert tiny.prefill(1)
    for wrong in ([step(0), step(0)], [step(2)], [step(0, 1, 2, parents=(1, 0))]):
        with pytest.raises(InvalidInputError):
            tiny.verify_many(wrong)
    with pytest.raises(LimitExceededError, match="too wide"):
        tiny.verify_many([step(0, *range(20)), step(1, *range(20))])
    with pytest.raises(LimitExceededError, match="leaves"):
        tiny.verify_many([step(1), step(0, *range(4), parents=(-1,) * 4)])
    assert tiny.verify_many([]) == []
    first = tiny.verify_many([step(1, expected[1][0], 7), step(0, 9)])
    assert first == [Verification(expected[1][:2], 1), Verification(expected[0][:1], 0)]
    assert tiny.verify_many([step(0, expected[0][1])]) == [Verification(expected[0][1:], 1)]
