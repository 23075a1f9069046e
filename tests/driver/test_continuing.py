"""A draft model that goes on behind a draft from memory, and targets that compute accepted tokens again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from suffixsvc_driver.config import DriverConfig, LayerSpec
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.events import (
    AskLayer,
    Grant,
    LayerAnswer,
    Next,
    Propose,
    Verified,
    Verify,
    Wait,
    decision_to_json,
)
from suffixsvc_driver.state import Driver
from support.replica import GPU, MODEL, OTHER, SUFFIX, TWO_CORES, Replica, begin, chain, oracle, text

from suffixsvc.types import Draft, DraftSource

CONTINUES = replace(MODEL, continues=True)
CHECKS = replace(CONTINUES, seconds_per_read_token=0.00005, checks=16)


def four_then_model(truth: list[int]) -> Replica:
    """Memory knows four tokens, the draft model goes on from wherever it is asked to, five at most."""

    def answer(ask: AskLayer, written: list[int]) -> Draft:
        at = len(written) + len(ask.after)
        if ask.layer == "suffix":
            return chain(truth[at : at + 4], 0.97)
        return chain(truth[at : at + min(5, ask.budget)], 0.95, DraftSource.DRAFT_MODEL)

    return Replica(Driver(DriverConfig(), GPU, [SUFFIX, CONTINUES]), truth, answer)


def test_the_draft_model_goes_on_behind_memory() -> None:
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


def test_nothing_goes_on_behind_an_end() -> None:
    """Memory's draft ends the text: the model is not asked to go on behind it."""
    truth = text(60, seed=2)
    for ends in (False, True):
        driver = Driver(DriverConfig(), GPU, [SUFFIX, CONTINUES])
        eog_ids = frozenset({truth[3]} if ends else {-1})
        assert truth[3] not in truth[:3]
        assert isinstance(driver.on(replace(begin(50), eog_ids=eog_ids)), AskLayer)
        asked = driver.on(LayerAnswer("suffix", chain(truth[:4], 0.97)))
        after = asked.after if isinstance(asked, AskLayer) else ()
        assert after == (() if ends else tuple(truth[:4]))


def test_the_draft_model_takes_over_where_memory_has_its_doubts() -> None:
    """Three sure tokens, then a fork: what memory has behind it is left to the model."""
    tokens = [7, 8, 9, 10, 11, 12]
    for doubt, expected in ((0.97, tokens), (0.2, tokens[:3])):
        driver = Driver(DriverConfig(), GPU, [SUFFIX, CONTINUES])
        assert isinstance(driver.on(begin(50)), AskLayer)
        memory = Draft.chain(tokens, [0.97, 0.97, 0.97, doubt, 0.97, 0.97], DraftSource.NAMESPACE)
        ask = driver.on(LayerAnswer("suffix", memory))
        assert isinstance(ask, AskLayer)
        assert ask.after == tuple(expected)
    sent = driver.on(LayerAnswer("model", chain([20, 21, 22, 23], 0.95, DraftSource.DRAFT_MODEL)))
    assert isinstance(sent, Verify)
    assert sent.token_ids == (7, 8, 9, 20, 21, 22, 23)
    assert (sent.layer, sent.continued_by, sent.continued_at) == ("suffix", "model", 3)
    driver.on(Verified((7, 8, 9, 20, 50), 4, 8))
    assert driver.stats.layers["model"].sent.accepted == 1


def doubted(spec: LayerSpec, probs: list[float]) -> tuple[Driver, AskLayer]:
    """Memory drafts 7, 8, 9 .. with these probabilities; what the draft model is asked then."""
    driver = Driver(DriverConfig(), GPU, [SUFFIX, spec])
    assert isinstance(driver.on(begin(50)), AskLayer)
    memory = Draft.chain(list(range(7, 7 + len(probs))), probs, DraftSource.NAMESPACE)
    ask = driver.on(LayerAnswer("suffix", memory))
    assert isinstance(ask, AskLayer)
    return driver, ask


def test_what_memory_has_is_suggested_to_a_model_that_checks() -> None:
    probs = [0.6, 0.9, 0.9, 0.9, 0.9]
    for spec, expected in ((CHECKS, (7, 8, 9, 10, 11)), (CONTINUES, ()), (MODEL, ())):
        _, ask = doubted(spec, probs)
        assert ask.suggested == expected
        assert ask.after == ()
        assert ask.budget > len(ask.suggested)


def test_a_model_that_checks_is_never_asked_to_go_on_unseen() -> None:
    """What is sure costs it no more to look at than to go on behind."""
    _, ask = doubted(CHECKS, [0.99, 0.99, 0.5, 0.9])
    assert ask.after == ()
    assert ask.suggested == (7, 8, 9, 10)


def test_a_suggestion_nobody_would_believe_is_not_read() -> None:
    """Reading costs nearly what writing does: only what is likely is worth it."""
    dear = replace(CHECKS, seconds_per_read_token=0.8 * CHECKS.seconds_per_token)
    _, ask = doubted(dear, [0.6, 0.9])
    assert ask.suggested == ()


def test_where_model_and_memory_part_the_surer_one_is_sent() -> None:
    """At most one of them is right: what the model leaves is memory's."""
    for memory, model, layers, tokens, left in (
        (0.97, 0.9, ("suffix", "model"), (7, 8, 30, 31), counted(0.9)),
        (0.97, 0.6, ("suffix", ""), (7, 8, 9, 10), 1.0 - counted(0.6)),
    ):
        driver, ask = doubted(CHECKS, [0.6, 0.97, memory, 0.97])
        assert ask.suggested == (7, 8, 9, 10)
        answer = Draft.chain([7, 8, 30, 31], [0.97, 0.97, model, 0.97], DraftSource.DRAFT_MODEL)
        sent = driver.on(LayerAnswer("model", answer))
        assert isinstance(sent, Verify)
        assert (sent.layer, sent.continued_by) == layers
        assert sent.token_ids == tokens
        assert sent.considered[-1].how == "with 4 suggested"
        assert sent.probs[2] == pytest.approx(left)
        assert sent.probs[3] == pytest.approx(counted(0.97))


def counted(p: float) -> float:
    """What a chain's token counts as that is believed with this probability."""
    return p / (2.0 - p)


def test_two_that_are_sure_of_different_tokens_are_both_in_doubt() -> None:
    driver, _ = doubted(CHECKS, [0.6, 1.0, 1.0])
    answer = Draft.chain([7, 30], [0.97, 1.0], DraftSource.DRAFT_MODEL)
    sent = driver.on(LayerAnswer("model", answer))
    assert isinstance(sent, Verify)
    assert all(0.0 <= p <= 1.0 for p in sent.probs)


def test_another_layers_draft_is_sent_where_the_model_speaks_against_the_best() -> None:
    """Suffix was best, the model writes what another memory had, and nothing more."""
    driver = Driver(DriverConfig(), GPU, [OTHER, SUFFIX, CHECKS])
    assert isinstance(driver.on(begin(50)), AskLayer)
    lookup = Draft.chain([20, 21, 22, 23], [0.7, 0.9, 0.9, 0.9], DraftSource.PROMPT_LOOKUP)
    assert isinstance(driver.on(LayerAnswer("other", lookup)), AskLayer)
    suffix = Draft.chain([7, 8, 9, 10, 11, 12], [0.75, 0.9, 0.9, 0.9, 0.9, 0.9], DraftSource.NAMESPACE)
    ask = driver.on(LayerAnswer("suffix", suffix))
    assert isinstance(ask, AskLayer)
    assert ask.suggested[:2] == (7, 8)
    sent = driver.on(LayerAnswer("model", Draft.chain([20], [0.97], DraftSource.DRAFT_MODEL)))
    assert isinstance(sent, Verify)
    assert sent.token_ids == (20, 21, 22, 23)
    assert sent.layer == "other"
    assert sent.probs[0] > counted(0.9)


def test_a_draft_that_was_compared_can_be_proposed() -> None:
    driver = Driver(DriverConfig(), GPU, [SUFFIX, CHECKS])
    assert isinstance(driver.on(replace(begin(50), paced=True)), Wait)
    assert isinstance(driver.on(Next(0, 64)), AskLayer)
    memory = Draft.chain([7, 8, 9, 10], [0.6, 0.97, 0.6, 0.97], DraftSource.NAMESPACE)
    assert isinstance(driver.on(LayerAnswer("suffix", memory)), AskLayer)
    answer = Draft.chain([7, 8, 30, 31], [0.97, 0.97, 0.97, 0.97], DraftSource.DRAFT_MODEL)
    proposal = driver.on(LayerAnswer("model", answer))
    assert isinstance(proposal, Propose)
    assert len(proposal.gains) == 4
    sent = driver.on(Grant(3, 0, 0))
    assert isinstance(sent, Verify)
    assert sent.token_ids == (7, 8, 30)


def test_what_is_suggested_for_a_tree_is_its_best_path() -> None:
    driver = Driver(DriverConfig(), GPU, [SUFFIX, CHECKS])
    assert isinstance(driver.on(replace(begin(50), max_branches=4)), AskLayer)
    memory = Draft.chain([7, 8, 9, 10], [0.6, 0.9, 0.9, 0.9], DraftSource.NAMESPACE)
    ask = driver.on(LayerAnswer("suffix", memory))
    assert isinstance(ask, AskLayer)
    assert ask.suggested == (7, 8, 9, 10)
    answer = Draft.chain([7, 30], [0.9, 0.9], DraftSource.DRAFT_MODEL)
    sent = driver.on(LayerAnswer("model", answer))
    assert isinstance(sent, Verify)
    assert {7, 8, 30} <= set(sent.token_ids)
    assert sent.considered[-1].how == "with 4 suggested"


def test_no_more_is_suggested_than_is_looked_at() -> None:
    _, ask = doubted(replace(CHECKS, checks=2), [0.6, 0.97, 0.97, 0.97])
    assert ask.suggested == (7, 8)


def test_where_model_and_memory_agree_the_surer_one_counts() -> None:
    driver, _ = doubted(CHECKS, [0.6, 0.97, 0.97])
    answer = Draft.chain([7, 8, 9, 10], [0.97, 0.5, 0.5, 0.5], DraftSource.DRAFT_MODEL)
    sent = driver.on(LayerAnswer("model", answer))
    assert isinstance(sent, Verify)
    assert (sent.layer, sent.continued_by, sent.continued_at) == ("suffix", "model", 3)
    assert sent.probs[0] > 0.9
    assert sent.probs[1] > 0.9
    assert sent.probs[3] < 0.5


def test_tokens_that_cost_no_pass_are_no_measurement() -> None:
    """Four suggested tokens and one more, in one pass: it took what one token takes, and reading."""
    driver, ask = doubted(CHECKS, [0.6, 0.9, 0.9, 0.9])
    agreed = [*ask.suggested, 40]
    answer = Draft.chain(agreed, [0.95] * len(agreed), DraftSource.DRAFT_MODEL)
    reading = CHECKS.seconds_per_read_token * (begin(50).prompt_length + len(ask.suggested))
    assert isinstance(driver.on(LayerAnswer("model", answer, CHECKS.seconds_per_token + reading)), Verify)
    sent = driver.on(Verified((*agreed, 41), len(agreed), len(agreed) + 1))
    assert isinstance(sent, AskLayer)
    price = driver._layers[1].token_seconds  # type: ignore[attr-defined]  # what it has learned shows nowhere else
    assert price == pytest.approx(CHECKS.seconds_per_token)


def test_what_it_went_on_behind_did_not_come() -> None:
    """Nothing is learned about tokens behind a wrong one, and nothing is credited."""
    truth = text(40, seed=3)
    driver = Driver(DriverConfig(), GPU, [SUFFIX, CONTINUES])
    ask = driver.on(begin(30))
    assert isinstance(ask, AskLayer)
    wrong = [(t % 40) + 5 for t in truth[:4]]
    ask = driver.on(LayerAnswer("suffix", chain(wrong, 0.97)))
    assert isinstance(ask, AskLayer)
    assert ask.after == tuple(wrong)
    verify = driver.on(LayerAnswer("model", chain([9] * ask.budget, 0.9)))
    assert isinstance(verify, Verify)
    assert (verify.layer, verify.continued_by, verify.continued_at) == ("suffix", "model", 4)
    assert len(verify.token_ids) == 4 + ask.budget
    before = driver.trust.acceptance("model", 0.7)
    right = next(i for i in range(5) if i == 4 or wrong[i] != truth[i])
    driver.on(Verified(tuple(truth[: right + 1]), right, len(verify.token_ids) + 1))
    assert driver.trust.acceptance("model", 0.7) == before
    assert driver.stats.layers["model"].sent.accepted == 0
    assert driver.stats.layers["model"].sent.drafted == ask.budget


def test_a_layer_that_cannot_continue_is_asked_from_the_texts_end() -> None:
    truth = text(100)
    driver = Driver(DriverConfig(), GPU, [SUFFIX, MODEL])
    replica = Replica(driver, truth, lambda ask, written: oracle(truth)(ask, written))
    replica.run(begin(80))
    asks = [decision for _, decision in replica.trace if isinstance(decision, AskLayer)]
    assert asks
    assert all(ask.after == () for ask in asks)


def test_suggestions_can_be_written_down() -> None:
    _, ask = doubted(CHECKS, [0.6, 0.9, 0.9])
    assert json.loads(json.dumps(decision_to_json(ask)))["suggested"] == [7, 8, 9]


def test_decisions_that_go_on_can_be_written_down() -> None:
    replica = four_then_model(text(60, seed=5))
    replica.run(begin(30))
    lines = [json.dumps(decision_to_json(decision)) for _, decision in replica.trace]
    assert any('"continued_by": "model"' in line for line in lines)
    assert any('"after": [' in line for line in lines)


def test_where_the_replay_costs_more_than_the_draft_gains_nothing_is_drafted() -> None:
    """Most drafts fail at once. Cut for free, a token still pays; computed again, it does not."""
    curve = CostCurve((0, 1, 1.3, 1.6, 1.9, 2.2), 0.03)
    sent = {}
    for replays in (False, True):
        driver = Driver(DriverConfig(), curve, [SUFFIX])
        ask = driver.on(replace(begin(50), replays=replays))
        assert isinstance(ask, AskLayer)
        verify = driver.on(LayerAnswer("suffix", chain([7, 8, 9], 0.5)))
        assert isinstance(verify, Verify)
        sent[replays] = len(verify.token_ids)
    assert sent[False] >= 1
    assert sent[True] == 0


def test_tokens_computed_again_are_part_of_the_price_and_of_the_room() -> None:
    truth = text(60, seed=4)
    driver = Driver(DriverConfig(), TWO_CORES, [SUFFIX])
    ask = driver.on(replace(begin(50), replays=True))
    assert isinstance(ask, AskLayer)
    verify = driver.on(LayerAnswer("suffix", chain(truth[:15], 1.0)))
    assert isinstance(verify, Verify)
    assert len(verify.token_ids) == 15
    cost = driver.stats.cost
    ask = driver.on(Verified(tuple(truth[:6]), 5, 16, replay=6))
    assert driver.stats.cost - cost == pytest.approx(TWO_CORES.costs[16])
    assert isinstance(ask, AskLayer)
    assert ask.budget <= 16 - 6 - 1, "the curve knows no wider batch"
    verify = driver.on(LayerAnswer("suffix", Draft.empty()))
    assert isinstance(verify, Verify)
    assert verify.token_ids == ()
    cost = driver.stats.cost
    driver.on(Verified((truth[6],), 0, 1))
    assert driver.stats.cost - cost == pytest.approx(TWO_CORES.costs[7])
    assert driver.stats.replayed == 6


def test_what_was_considered_is_said() -> None:
    replica = four_then_model(text(60, seed=5))
    replica.run(begin(30))
    verify = next(d for _, d in replica.trace if isinstance(d, Verify) and d.continued_by)
    first, second = verify.considered
    assert (first.layer, first.length, len(first.probs)) == ("suffix", 4, 4)
    assert second.layer == "model"
    assert second.how == "behind 4 tokens"
    assert second.length == len(verify.token_ids) - verify.padding
    assert second.gain > first.gain
