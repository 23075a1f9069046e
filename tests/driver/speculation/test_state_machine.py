"""State machine: golden traces, invalid answers, statistics. No clock, no model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc.errors import InvalidConfigError, InvalidInputError, LimitExceededError
from suffixsvc.types import Draft, DraftSource
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.drafts.events import (
    Begin,
    FinishReason,
    LayerAnswer,
    QueryLayer,
    StepResult,
    Verify,
)
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.settings.driver_config import DriverConfig, Policy
from suffixsvc_driver.speculation.state_machine import GenerationStateMachine
from support.golden_traces import replay_golden, write_golden
from support.long_form import rounds
from support.replica import (
    EOG,
    GPU,
    LOOKUP,
    MODEL,
    OTHER,
    SUFFIX,
    TWO_CORES,
    VOCAB,
    Answer,
    Replica,
    begin,
    chain,
    oracle,
    text,
)

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "driver"


# -- golden traces


def golden_cases() -> dict[str, tuple[GenerationStateMachine, list[int], Answer, Begin]]:
    truth = [*text(70, seed=3), EOG]

    def mixed(query: QueryLayer, written: list[int]) -> Draft | None:
        step = len(written)
        ahead = truth[step:]
        if query.layer == "lookup":
            return chain(ahead[:2], 0.6, DraftSource.PROMPT_LOOKUP)
        if query.layer == "suffix":
            if step % 7 == 3:
                return None
            wrong = [*ahead[: step % 5], 7, 7, 7]
            return chain(wrong[: query.budget], 0.9) if query.budget else Draft.empty()
        return chain(ahead[: min(query.budget, 4)], 0.8, DraftSource.DRAFT_MODEL)

    layers = [LOOKUP, SUFFIX, MODEL]
    return {
        "plain": (GenerationStateMachine(DriverConfig(), TWO_CORES), truth, mixed, begin(12)),
        "gain-two-cores": (
            GenerationStateMachine(DriverConfig(), TWO_CORES, layers),
            truth,
            mixed,
            begin(80),
        ),
        "gain-gpu": (GenerationStateMachine(DriverConfig(), GPU, layers), truth, mixed, begin(40)),
        "first-match": (
            GenerationStateMachine(DriverConfig(policy="first-match"), GPU, layers),
            truth,
            mixed,
            begin(80),
        ),
        "context-full": (
            GenerationStateMachine(DriverConfig(), GPU, layers),
            truth,
            mixed,
            begin(80, 10, 30),
        ),
    }


@pytest.mark.parametrize("name", list(golden_cases()))
def test_golden_trace(name: str) -> None:
    """Equal events give equal decisions in every version that does not change them on purpose.
    SUFFIXSVC_UPDATE_GOLDEN=1 rewrites the traces."""
    path = GOLDEN / f"{name}.json"
    if os.environ.get("SUFFIXSVC_UPDATE_GOLDEN") == "1":
        driver, truth, answer, start = golden_cases()[name]
        replica = Replica(driver, truth, answer, seconds=0.0005)
        replica.run(start)
        write_golden(path, replica.trace)
    recorded = replay_golden(path, golden_cases()[name][0])
    assert recorded[-1]["out"]["decision"] == "Finish"


# -- invalid answers


junk_arrays = st.lists(
    st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(0, VOCAB + 2)), max_size=40
).map(lambda v: np.array(v, np.int32))
junk_floats = st.lists(st.floats(width=32), max_size=40).map(lambda v: np.array(v, np.float32))


@st.composite
def junk_drafts(draw: st.DrawFn) -> Any:
    kind = draw(st.integers(0, 4))
    if kind == 0:
        return draw(st.sampled_from([None, "draft", 7, [], Draft.empty()]))
    if kind == 1:
        n = 5_000  # more than is read of an answer
        return Draft.chain([draw(st.integers(0, VOCAB))] * n, [1.0] * n, DraftSource.NAMESPACE)
    n = draw(st.integers(0, 12))
    if kind == 2:  # a valid tree, or one with cycles, forward and self references
        parents = draw(st.lists(st.integers(-2, n), min_size=n, max_size=n))
        tokens = draw(st.lists(st.integers(-1, VOCAB + 1), min_size=n, max_size=n))
        probs = draw(st.lists(st.floats(width=32), min_size=n, max_size=n))
        return Draft(
            np.array(tokens, np.int32),
            np.array(parents, np.int32),
            np.array(probs, np.float32),
            np.array(draw(st.lists(st.integers(0, 255), min_size=n, max_size=n)), np.uint8),
            np.zeros(n, np.int32),
        )
    if kind == 3:
        return Draft(draw(junk_arrays), draw(junk_arrays), draw(junk_floats), draw(junk_floats), None)
    tokens = draw(st.lists(st.integers(0, VOCAB - 1), min_size=n, max_size=n))
    return chain(tokens, draw(st.floats(0, 1, width=32)))


@settings(max_examples=rounds(90, full=300), deadline=None)
@given(data=st.data(), policy=st.sampled_from(list(Policy)), curve=st.sampled_from([TWO_CORES, GPU]))
def test_no_answer_breaks_the_state_machine(data: st.DataObject, policy: Policy, curve: CostCurve) -> None:
    truth = [*text(30, seed=data.draw(st.integers(0, 5))), EOG, *text(100)]
    layers = [LOOKUP, SUFFIX, MODEL][: data.draw(st.integers(1, 3))]
    driver = GenerationStateMachine(DriverConfig(policy=policy), curve, layers)
    start = begin(data.draw(st.integers(1, 40)), 10, data.draw(st.integers(10, 60)))
    queried: set[str] = set()

    def answer(query: QueryLayer, written: list[int]) -> Any:
        assert query.layer not in queried, "queried twice in a step"
        queried.add(query.layer)
        assert 0 <= query.budget <= 64
        return data.draw(junk_drafts())

    replica = Replica(driver, truth, answer, seconds=data.draw(st.floats(0, 0.1)))
    original = replica.verify

    def verify(decision: Verify, start: Begin) -> StepResult:
        queried.clear()
        width = 1 + len(decision.token_ids)
        assert all(0 <= t < VOCAB for t in decision.token_ids)
        assert len(decision.sources) == len(decision.probs) == len(decision.token_ids)
        assert all(0.0 <= p <= 1.0 for p in decision.probs)
        assert start.prompt_length + len(replica.written) - 1 + width <= start.context_size
        assert len(decision.token_ids) - decision.padding <= start.max_tokens - len(replica.written) - 1 or (
            not decision.token_ids
        )
        return original(decision, start)

    replica.verify = verify  # type: ignore[method-assign]  # watches the decisions on their way
    finish = replica.run(start)
    assert replica.written == truth[: len(replica.written)]
    stats = driver.stats
    assert stats.tokens == len(replica.written)
    assert sum(c.output_tokens for c in stats.evidence.values()) == stats.tokens
    assert stats.steps == len(replica.widths)
    if finish.reason is FinishReason.STOP:
        assert replica.written[-1] == EOG
    elif finish.reason is FinishReason.LENGTH:
        assert len(replica.written) == start.max_tokens
    else:
        assert start.prompt_length + len(replica.written) > start.context_size


# -- decisions


def test_nothing_is_drafted_where_nothing_pays() -> None:
    truth = text(100)
    steep = CostCurve.linear(1.2, 32, seconds_per_step=0.03)
    replica = Replica(GenerationStateMachine(DriverConfig(), steep, [SUFFIX]), truth, oracle(truth))
    replica.run(begin(50))
    assert set(replica.widths) == {1}
    assert replica.driver.stats.layer("suffix").asked == 0, "a layer that cannot pay is not queried"


def test_a_cheaper_width_is_padded_to() -> None:
    """c[12] = 7.6 but c[16] = 6.7: eleven drafted tokens are padded to fifteen."""
    truth = text(200)
    replica = Replica(
        GenerationStateMachine(DriverConfig(), TWO_CORES, [SUFFIX]),
        truth,
        lambda query, written: chain(truth[len(written) :][:11], 1.0),
    )
    replica.run(begin(100))
    assert 16 in replica.widths
    assert 12 not in replica.widths
    assert replica.driver.stats.padding > 0


def test_a_step_of_the_curve_is_crossed() -> None:
    """Four tokens do not pay, sixteen do: a token-by-token rule would stop before."""
    curve = CostCurve((0, 1.0, *[4.0] * 15), 0.03)
    truth = text(200)
    replica = Replica(GenerationStateMachine(DriverConfig(), curve, [SUFFIX]), truth, oracle(truth))
    replica.run(begin(100))
    assert max(replica.widths) == 16


def test_an_overconfident_cache_is_demoted_in_tens_of_steps() -> None:
    truth = text(400)
    replica = Replica(
        GenerationStateMachine(DriverConfig(), GPU, [SUFFIX]), truth, oracle(truth, right=0, prob=0.99)
    )
    replica.run(begin(200))
    assert len(replica.written) == 200
    assert max(replica.widths[:3]) > 8, "it was sent at first"
    assert sum(replica.widths[40:]) <= 1.5 * len(replica.widths[40:]), "and is not any more"


def test_a_cache_that_becomes_accurate_recovers() -> None:
    """Unsent drafts are labelled by the emitted tokens, so a demoted layer recovers without exploration."""
    truth = text(900)
    inaccurate, accurate = oracle(truth, right=0, prob=0.9), oracle(truth, prob=0.9)
    replica = Replica(
        GenerationStateMachine(DriverConfig(), TWO_CORES, [SUFFIX]),
        truth,
        lambda query, written: (inaccurate if len(written) < 150 else accurate)(query, written),
    )
    replica.run(begin(800))
    assert max(replica.widths[60:140]) == 1
    assert max(replica.widths[-20:]) > 4


def test_calibration_is_shared_between_generations() -> None:
    truth, calibrator = text(300), Calibrator()
    for _ in range(2):
        replica = Replica(
            GenerationStateMachine(DriverConfig(), GPU, [SUFFIX], calibrator),
            truth,
            oracle(truth, right=0, prob=0.99),
        )
        replica.run(begin(100))
    assert max(replica.widths) < 4


def test_the_better_of_two_layers_is_sent() -> None:
    truth = text(300)

    def answer(query: QueryLayer, written: list[int]) -> Draft:
        right = oracle(truth)(query, written)
        return right if query.layer == "suffix" else chain([1, 1, 1, 1], 0.2, DraftSource.PROMPT_LOOKUP)

    replica = Replica(GenerationStateMachine(DriverConfig(), GPU, [OTHER, SUFFIX]), truth, answer)
    replica.run(begin(100))
    stats = replica.driver.stats
    assert stats.layer("suffix").sent.accepted > 60
    assert stats.layer("other").sent.drafted == 0
    assert stats.layer("other").answered == stats.steps


def test_first_match_takes_the_first_layer_with_three_tokens() -> None:
    truth = text(300)

    def answer(query: QueryLayer, written: list[int]) -> Draft:
        ahead = truth[len(written) :]
        if query.layer == "lookup":
            return chain(ahead[: 3 if len(written) % 2 else 2], 0.1, DraftSource.PROMPT_LOOKUP)
        assert query.budget <= 12
        return chain(ahead[: query.budget], 0.1)

    driver = GenerationStateMachine(DriverConfig(policy="first-match", k_max=12), GPU, [LOOKUP, SUFFIX])
    replica = Replica(driver, truth, answer)
    replica.run(begin(100))
    sent = [d for _, d in replica.trace if isinstance(d, Verify) and d.token_ids]
    queries = [d for _, d in replica.trace if isinstance(d, QueryLayer)]
    assert {d.layer for d in sent} == {"lookup", "suffix"}
    assert all(len(d.token_ids) == 3 for d in sent if d.layer == "lookup")
    # notified in every step, queried only if the first layer had too little
    budgets = [query.budget for query in queries if query.layer == "suffix"]
    assert len(budgets) == driver.stats.steps
    assert 0 in budgets[:-1]


@pytest.mark.parametrize("k", [1, 2])
def test_first_match_drafts_k_tokens_if_that_is_less_than_the_smallest_match(k: int) -> None:
    """With K of 1 or 2 no draft had the three tokens of a match, and nothing was drafted."""
    truth = text(300)
    config = DriverConfig(policy="first-match", controller="fixed-k", k_start=k)
    driver = GenerationStateMachine(config, GPU, [SUFFIX])
    replica = Replica(driver, truth, oracle(truth, right=99))
    replica.run(begin(100))
    assert {len(d.token_ids) for _, d in replica.trace if isinstance(d, Verify)} <= {0, k}
    assert driver.stats.layer("suffix").sent.accepted >= 45


@pytest.mark.parametrize(("right", "expected"), [(99, 24), (1, 4)])
def test_adaptive_k(right: int, expected: int) -> None:
    truth = text(4000)
    driver = GenerationStateMachine(DriverConfig(policy="first-match"), GPU, [SUFFIX])
    budgets: list[int] = []

    def answer(query: QueryLayer, written: list[int]) -> Draft:
        budgets.append(query.budget)
        return oracle(truth, right=right)(query, written)

    Replica(driver, truth, answer).run(begin(2000))
    assert budgets[0] == 12
    assert budgets[-8] == expected


def test_feedback_is_what_was_sent() -> None:
    truth = text(300)
    driver = GenerationStateMachine(DriverConfig(), GPU, [SUFFIX])
    replica = Replica(driver, truth, oracle(truth, right=5))
    replica.run(begin(60))
    queries = [d for _, d in replica.trace if isinstance(d, QueryLayer)]
    assert queries[0].verified is None
    pairs = zip(replica.trace, replica.trace[1:], strict=False)
    for (event, decision), _ in pairs:
        if isinstance(event, StepResult) and isinstance(decision, QueryLayer):
            assert decision.verified is not None
            assert decision.verified.width == event.width
            assert decision.verified.accepted <= event.accepted


def test_events_out_of_order_change_nothing() -> None:
    driver = GenerationStateMachine(DriverConfig(), GPU, [SUFFIX])
    with pytest.raises(InvalidInputError, match="idle"):
        driver.on(StepResult((1,), 0, 1))
    with pytest.raises(LimitExceededError):
        driver.on(Begin(11, 5, 10, VOCAB))
    with pytest.raises(InvalidInputError):
        driver.on(Begin(0, 5, 10, VOCAB))
    query = driver.on(begin())
    assert isinstance(query, QueryLayer)
    with pytest.raises(InvalidInputError):
        driver.on(begin())
    with pytest.raises(InvalidInputError, match="suffix"):
        driver.on(LayerAnswer("lookup", Draft.empty()))
    verify = driver.on(LayerAnswer("suffix", chain([1, 2, 3], 0.9)))
    assert isinstance(verify, Verify)
    for wrong in (
        StepResult((), 0, 4),
        StepResult((1, 2, 3, 4, 5), 3, 4),
        StepResult((9, 4), 1, 4),
        StepResult((1, 2), 1, 3),
        StepResult((1,), 9, 4),
    ):
        with pytest.raises(InvalidInputError, match="verifying"):
            driver.on(wrong)
    assert isinstance(driver.on(StepResult((1, 2, 4), 2, 4)), QueryLayer)
    assert driver.stats.tokens == 3


def test_layers_have_different_names() -> None:
    with pytest.raises(InvalidConfigError):
        GenerationStateMachine(DriverConfig(), GPU, [SUFFIX, SUFFIX])
