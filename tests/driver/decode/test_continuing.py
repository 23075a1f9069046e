"""Draft models that continue or verify a draft from memory, and targets that recompute accepted tokens."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from suffixsvc.core import AcceptanceTable
from suffixsvc.types import Draft, DraftSource
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.drafts.chain import CleanDraft
from suffixsvc_driver.drafts.events import (
    BudgetGrant,
    LayerAnswer,
    Next,
    Propose,
    QueryLayer,
    StepResult,
    Verify,
    Wait,
)
from suffixsvc_driver.policy.layer_value import LayerValue
from suffixsvc_driver.settings.driver_config import DriverConfig, LayerSpec
from suffixsvc_driver.speculation.layer_state import DraftModelState, layer_state
from suffixsvc_driver.speculation.state_machine import GenerationStateMachine
from support.golden_traces import decision_to_json
from support.replica import GPU, MODEL, OTHER, SUFFIX, TWO_CORES, Replica, begin, chain, oracle, text

CONTINUES = replace(MODEL, can_continue=True)
CHECKS = replace(CONTINUES, seconds_per_read_token=0.00005, max_suggested=16)


def four_then_model(truth: list[int]) -> Replica:
    """Memory drafts four tokens; the draft model continues from any position, five tokens at most."""

    def answer(query: QueryLayer, written: list[int]) -> Draft:
        at = len(written) + len(query.after)
        if query.layer == "suffix":
            return chain(truth[at : at + 4], 0.97)
        return chain(truth[at : at + min(5, query.budget)], 0.95, DraftSource.DRAFT_MODEL)

    return Replica(GenerationStateMachine(DriverConfig(), GPU, [SUFFIX, CONTINUES]), truth, answer)


def test_the_draft_model_continues_memory() -> None:
    truth = text(300, seed=2)
    replica = four_then_model(truth)
    replica.run(begin(200))
    assert replica.written == truth[:200]
    stats = replica.driver.stats
    assert stats.mat > 7, "four from memory, five from the model, one of the target"
    sent = {name: counts.sent for name, counts in stats.layers.items()}
    assert sent["suffix"].drafted >= 4 * (stats.steps - 2)
    assert sent["model"].drafted > 0.8 * sent["suffix"].drafted
    assert sent["model"].accepted == sent["model"].drafted
    assert stats.evidence["draft-model"].output_tokens == sent["model"].output_tokens


def test_nothing_continues_after_an_end_token() -> None:
    """A draft from memory ends with an end token: the model is not queried to continue it."""
    truth = text(60, seed=2)
    for ends in (False, True):
        driver = GenerationStateMachine(DriverConfig(), GPU, [SUFFIX, CONTINUES])
        eog_ids = frozenset({truth[3]} if ends else {-1})
        assert truth[3] not in truth[:3]
        assert isinstance(driver.on(replace(begin(50), eog_ids=eog_ids)), QueryLayer)
        decision = driver.on(LayerAnswer("suffix", chain(truth[:4], 0.97)))
        after = decision.after if isinstance(decision, QueryLayer) else ()
        assert after == (() if ends else tuple(truth[:4]))


def test_the_draft_model_takes_over_where_memory_is_uncertain() -> None:
    """Three confident tokens, then an uncertain one: the model continues after the third."""
    tokens = [7, 8, 9, 10, 11, 12]
    for doubt, expected in ((0.97, tokens), (0.2, tokens[:3])):
        driver = GenerationStateMachine(DriverConfig(), GPU, [SUFFIX, CONTINUES])
        assert isinstance(driver.on(begin(50)), QueryLayer)
        memory = Draft.chain(tokens, [0.97, 0.97, 0.97, doubt, 0.97, 0.97], DraftSource.NAMESPACE)
        query = driver.on(LayerAnswer("suffix", memory))
        assert isinstance(query, QueryLayer)
        assert query.after == tuple(expected)
    sent = driver.on(LayerAnswer("model", chain([20, 21, 22, 23], 0.95, DraftSource.DRAFT_MODEL)))
    assert isinstance(sent, Verify)
    assert sent.token_ids == (7, 8, 9, 20, 21, 22, 23)
    assert (sent.layer, sent.continued_by, sent.continued_at) == ("suffix", "model", 3)
    driver.on(StepResult((7, 8, 9, 20, 50), 4, 8))
    assert driver.stats.layers["model"].sent.accepted == 1


def doubted(spec: LayerSpec, probs: list[float]) -> tuple[GenerationStateMachine, QueryLayer]:
    """Return the query of the draft model after memory drafts 7, 8, 9 .. with these probabilities."""
    driver = GenerationStateMachine(DriverConfig(), GPU, [SUFFIX, spec])
    assert isinstance(driver.on(begin(50)), QueryLayer)
    memory = Draft.chain(list(range(7, 7 + len(probs))), probs, DraftSource.NAMESPACE)
    query = driver.on(LayerAnswer("suffix", memory))
    assert isinstance(query, QueryLayer)
    return driver, query


def test_the_draft_from_memory_is_suggested_to_a_verifying_model() -> None:
    probs = [0.6, 0.9, 0.9, 0.9, 0.9]
    for spec, expected in ((CHECKS, (7, 8, 9, 10, 11)), (CONTINUES, ()), (MODEL, ())):
        _, query = doubted(spec, probs)
        assert query.suggested == expected
        assert query.after == ()
        assert query.budget > len(query.suggested)


def test_a_verifying_model_is_never_queried_to_continue() -> None:
    """Verifying a confident draft costs the model no more than continuing it."""
    _, query = doubted(CHECKS, [0.99, 0.99, 0.5, 0.9])
    assert query.after == ()
    assert query.suggested == (7, 8, 9, 10)


def test_an_improbable_suggestion_is_not_sent() -> None:
    """Reading a token costs nearly as much as drafting one: only probable tokens are suggested."""
    dear = replace(CHECKS, seconds_per_read_token=0.8 * CHECKS.seconds_per_token)
    _, query = doubted(dear, [0.6, 0.9])
    assert query.suggested == ()


def test_at_a_difference_the_more_probable_token_is_sent() -> None:
    """At most one of two different tokens is right: memory gets the probability that the model leaves."""
    for memory, model, layers, tokens, left in (
        (0.97, 0.9, ("suffix", "model"), (7, 8, 30, 31), counted(0.9)),
        (0.97, 0.6, ("suffix", ""), (7, 8, 9, 10), 1.0 - counted(0.6)),
    ):
        driver, query = doubted(CHECKS, [0.6, 0.97, memory, 0.97])
        assert query.suggested == (7, 8, 9, 10)
        answer = Draft.chain([7, 8, 30, 31], [0.97, 0.97, model, 0.97], DraftSource.DRAFT_MODEL)
        sent = driver.on(LayerAnswer("model", answer))
        assert isinstance(sent, Verify)
        assert (sent.layer, sent.continued_by) == layers
        assert sent.token_ids == tokens
        assert sent.considered[-1].how == "with 4 suggested"
        assert sent.probs[2] == pytest.approx(left)
        assert sent.probs[3] == pytest.approx(counted(0.97))


def counted(p: float) -> float:
    """Return the probability after the discount of chains."""
    return p / (2.0 - p)


def test_two_confident_layers_with_different_tokens_are_both_discounted() -> None:
    driver, _ = doubted(CHECKS, [0.6, 1.0, 1.0])
    answer = Draft.chain([7, 30], [0.97, 1.0], DraftSource.DRAFT_MODEL)
    sent = driver.on(LayerAnswer("model", answer))
    assert isinstance(sent, Verify)
    assert all(0.0 <= p <= 1.0 for p in sent.probs)


def test_another_layers_draft_is_sent_if_the_model_contradicts_the_best() -> None:
    """Suffix was best, and the model drafts what another memory layer had."""
    driver = GenerationStateMachine(DriverConfig(), GPU, [OTHER, SUFFIX, CHECKS])
    assert isinstance(driver.on(begin(50)), QueryLayer)
    lookup = Draft.chain([20, 21, 22, 23], [0.7, 0.9, 0.9, 0.9], DraftSource.PROMPT_LOOKUP)
    assert isinstance(driver.on(LayerAnswer("other", lookup)), QueryLayer)
    suffix = Draft.chain([7, 8, 9, 10, 11, 12], [0.75, 0.9, 0.9, 0.9, 0.9, 0.9], DraftSource.NAMESPACE)
    query = driver.on(LayerAnswer("suffix", suffix))
    assert isinstance(query, QueryLayer)
    assert query.suggested[:2] == (7, 8)
    sent = driver.on(LayerAnswer("model", Draft.chain([20], [0.97], DraftSource.DRAFT_MODEL)))
    assert isinstance(sent, Verify)
    assert sent.token_ids == (20, 21, 22, 23)
    assert sent.layer == "other"
    assert sent.probs[0] > counted(0.9)


def test_a_reconciled_draft_can_be_proposed() -> None:
    driver = GenerationStateMachine(DriverConfig(), GPU, [SUFFIX, CHECKS])
    assert isinstance(driver.on(replace(begin(50), batched=True)), Wait)
    assert isinstance(driver.on(Next(0, 64)), QueryLayer)
    memory = Draft.chain([7, 8, 9, 10], [0.6, 0.97, 0.6, 0.97], DraftSource.NAMESPACE)
    assert isinstance(driver.on(LayerAnswer("suffix", memory)), QueryLayer)
    answer = Draft.chain([7, 8, 30, 31], [0.97, 0.97, 0.97, 0.97], DraftSource.DRAFT_MODEL)
    proposal = driver.on(LayerAnswer("model", answer))
    assert isinstance(proposal, Propose)
    assert len(proposal.gains) == 4
    sent = driver.on(BudgetGrant(3, 0, 0))
    assert isinstance(sent, Verify)
    assert sent.token_ids == (7, 8, 30)


def test_what_is_suggested_for_a_tree_is_its_best_path() -> None:
    driver = GenerationStateMachine(DriverConfig(), GPU, [SUFFIX, CHECKS])
    assert isinstance(driver.on(replace(begin(50), max_branches=4)), QueryLayer)
    memory = Draft.chain([7, 8, 9, 10], [0.6, 0.9, 0.9, 0.9], DraftSource.NAMESPACE)
    query = driver.on(LayerAnswer("suffix", memory))
    assert isinstance(query, QueryLayer)
    assert query.suggested == (7, 8, 9, 10)
    answer = Draft.chain([7, 30], [0.9, 0.9], DraftSource.DRAFT_MODEL)
    sent = driver.on(LayerAnswer("model", answer))
    assert isinstance(sent, Verify)
    assert {7, 8, 30} <= set(sent.token_ids)
    assert sent.considered[-1].how == "with 4 suggested"


def test_no_more_is_suggested_than_the_model_verifies() -> None:
    _, query = doubted(replace(CHECKS, max_suggested=2), [0.6, 0.97, 0.97, 0.97])
    assert query.suggested == (7, 8)


def test_common_tokens_get_the_larger_probability() -> None:
    driver, _ = doubted(CHECKS, [0.6, 0.97, 0.97])
    answer = Draft.chain([7, 8, 9, 10], [0.97, 0.5, 0.5, 0.5], DraftSource.DRAFT_MODEL)
    sent = driver.on(LayerAnswer("model", answer))
    assert isinstance(sent, Verify)
    assert (sent.layer, sent.continued_by, sent.continued_at) == ("suffix", "model", 3)
    assert sent.probs[0] > 0.9
    assert sent.probs[1] > 0.9
    assert sent.probs[3] < 0.5


def test_tokens_that_cost_no_pass_are_no_measurement() -> None:
    """Four suggested tokens and one more in a single pass take the time of one token, and of reading."""
    layer = layer_state(CHECKS, LayerValue(0.0), AcceptanceTable())
    assert isinstance(layer, DraftModelState)
    layer.wrote(10)
    layer.suggested = (7, 8, 9, 10)
    layer.answer = CleanDraft((7, 8, 9, 10, 40), (0.95,) * 5)
    layer.measure(5, CHECKS.seconds_per_token + CHECKS.seconds_per_read_token * (10 + 4))
    assert layer.token_seconds == pytest.approx(CHECKS.seconds_per_token)


def test_a_continued_draft_that_was_rejected_is_not_labelled() -> None:
    """Nothing is learned about the tokens after a wrong one, and nothing is credited."""
    truth = text(40, seed=3)
    driver = GenerationStateMachine(DriverConfig(), GPU, [SUFFIX, CONTINUES])
    query = driver.on(begin(30))
    assert isinstance(query, QueryLayer)
    wrong = [(t % 40) + 5 for t in truth[:4]]
    query = driver.on(LayerAnswer("suffix", chain(wrong, 0.97)))
    assert isinstance(query, QueryLayer)
    assert query.after == tuple(wrong)
    verify = driver.on(LayerAnswer("model", chain([9] * query.budget, 0.9)))
    assert isinstance(verify, Verify)
    assert (verify.layer, verify.continued_by, verify.continued_at) == ("suffix", "model", 4)
    assert len(verify.token_ids) == 4 + query.budget
    before = driver.calibrator.table("model").acceptance(0.7)
    right = next(i for i in range(5) if i == 4 or wrong[i] != truth[i])
    driver.on(StepResult(tuple(truth[: right + 1]), right, len(verify.token_ids) + 1))
    assert driver.calibrator.table("model").acceptance(0.7) == before
    assert driver.stats.layers["model"].sent.accepted == 0
    assert driver.stats.layers["model"].sent.drafted == query.budget


def test_a_layer_that_cannot_continue_is_queried_from_the_end_of_the_text() -> None:
    truth = text(100)
    driver = GenerationStateMachine(DriverConfig(), GPU, [SUFFIX, MODEL])
    replica = Replica(driver, truth, lambda query, written: oracle(truth)(query, written))
    replica.run(begin(80))
    queries = [decision for _, decision in replica.trace if isinstance(decision, QueryLayer)]
    assert queries
    assert all(query.after == () for query in queries)


def test_suggestions_as_json() -> None:
    _, query = doubted(CHECKS, [0.6, 0.9, 0.9])
    assert json.loads(json.dumps(decision_to_json(query)))["suggested"] == [7, 8, 9]


def test_continuing_decisions_as_json() -> None:
    replica = four_then_model(text(60, seed=5))
    replica.run(begin(30))
    lines = [json.dumps(decision_to_json(decision)) for _, decision in replica.trace]
    assert any('"continued_by": "model"' in line for line in lines)
    assert any('"after": [' in line for line in lines)


def test_where_the_replay_costs_more_than_the_draft_gains_nothing_is_drafted() -> None:
    """Most drafts fail at the first token. If rejected tokens are removed for free, a token still pays; if
    accepted tokens are recomputed, it does not."""
    curve = CostCurve((0, 1, 1.3, 1.6, 1.9, 2.2), 0.03)
    sent = {}
    for replays in (False, True):
        driver = GenerationStateMachine(DriverConfig(), curve, [SUFFIX])
        query = driver.on(replace(begin(50), replays=replays))
        assert isinstance(query, QueryLayer)
        verify = driver.on(LayerAnswer("suffix", chain([7, 8, 9], 0.5)))
        assert isinstance(verify, Verify)
        sent[replays] = len(verify.token_ids)
    assert sent[False] >= 1
    assert sent[True] == 0


def test_replayed_tokens_are_part_of_the_cost_and_of_the_room() -> None:
    truth = text(60, seed=4)
    driver = GenerationStateMachine(DriverConfig(), TWO_CORES, [SUFFIX])
    query = driver.on(replace(begin(50), replays=True))
    assert isinstance(query, QueryLayer)
    verify = driver.on(LayerAnswer("suffix", chain(truth[:15], 1.0)))
    assert isinstance(verify, Verify)
    assert len(verify.token_ids) == 15
    cost = driver.stats.cost
    query = driver.on(StepResult(tuple(truth[:6]), 5, 16, replay=6))
    assert driver.stats.cost - cost == pytest.approx(TWO_CORES.costs[16])
    assert isinstance(query, QueryLayer)
    assert query.budget <= 16 - 6 - 1, "the curve knows no wider batch"
    verify = driver.on(LayerAnswer("suffix", Draft.empty()))
    assert isinstance(verify, Verify)
    assert verify.token_ids == ()
    cost = driver.stats.cost
    driver.on(StepResult((truth[6],), 0, 1))
    assert driver.stats.cost - cost == pytest.approx(TWO_CORES.costs[7])
    assert driver.stats.replayed == 6


def test_considered_layers_are_reported() -> None:
    replica = four_then_model(text(60, seed=5))
    replica.run(begin(30))
    verify = next(d for _, d in replica.trace if isinstance(d, Verify) and d.continued_by)
    first, second = verify.considered
    assert (first.layer, first.length, len(first.probs)) == ("suffix", 4, 4)
    assert second.layer == "model"
    assert second.how == "after 4 tokens"
    assert second.length == len(verify.token_ids) - verify.padding
    assert second.gain > first.gain
