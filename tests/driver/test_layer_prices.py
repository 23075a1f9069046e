"""Which layers the state machine asks, by what their questions cost and bring. No clock, no model."""

from __future__ import annotations

import numpy as np
from suffixsvc_driver.config import DriverConfig, LayerKind, LayerSpec
from suffixsvc_driver.events import (
    AskLayer,
    Verified,
)
from suffixsvc_driver.state import Driver
from suffixsvc_driver.trust import Trust
from support.replica import GPU, MODEL, OTHER, SUFFIX, TWO_CORES, Replica, begin, chain, oracle, text

from suffixsvc.types import Draft


def test_a_slow_draft_model_is_given_up_and_probed() -> None:
    """It costs 0.8 of a target step per token, which nothing can earn back; then a slow answer is not the
    end of it: its price falls back to what it said of itself."""
    truth = text(2000)
    slow = LayerSpec("model", LayerKind.DRAFT_MODEL, seconds_per_token=0.024)
    driver = Driver(DriverConfig(), TWO_CORES, [slow])
    Replica(driver, truth, oracle(truth)).run(begin(200))
    assert driver.stats.layer("model").asked == 0
    wrong = Driver(DriverConfig(), GPU, [MODEL])
    replica = Replica(wrong, truth, oracle(truth, right=0))
    replica.run(begin(1000))
    asked = wrong.stats.layer("model").asked
    assert 10 < asked < 150, asked


def test_what_a_draft_model_has_to_read_is_priced() -> None:
    """It could earn back its tokens, but not a long prompt that it was never told, in so short an answer."""
    truth = text(2000)
    model = LayerSpec("model", LayerKind.DRAFT_MODEL, seconds_per_token=0.009)
    asked = {}
    for prompt in (10, 4000):
        driver = Driver(DriverConfig(), GPU, [model])
        Replica(driver, truth, oracle(truth)).run(begin(40, prompt_length=prompt, context_size=9000))
        asked[prompt] = driver.stats.layer("model").asked
    assert asked[10] > 3
    assert asked[4000] == 0
    patient = Driver(DriverConfig(), GPU, [model])
    Replica(patient, truth, oracle(truth)).run(begin(1900, prompt_length=4000, context_size=9000))
    assert patient.stats.layer("model").asked > 3


def test_a_late_layer_is_priced() -> None:
    truth = text(2000)
    driver = Driver(DriverConfig(), TWO_CORES, [SUFFIX])
    Replica(driver, truth, lambda ask, written: Draft.empty(), seconds=0.5).run(begin(500))
    assert driver.stats.layer("suffix").asked < 250


def asks_in(replica: Replica, layer: str) -> list[int]:
    """Tokens written before each question to a layer."""
    written, at = 0, []
    for event, decision in replica.trace:
        written += len(event.emitted) if isinstance(event, Verified) else 0
        if isinstance(decision, AskLayer) and decision.layer == layer:
            at.append(written)
    return at


def test_a_layer_that_adds_nothing_is_asked_now_and_then() -> None:
    """A question costs 0.1 of a step. The layer is always right, but the one before it is too."""
    truth = text(2000)
    driver = Driver(DriverConfig(probe_every_steps=32), GPU, [OTHER, SUFFIX])

    def answer(ask: AskLayer, written: list[int]) -> Draft:
        return chain(truth[len(written) :][:2], 0.95)

    replica = Replica(driver, truth, answer, seconds=0.003)
    replica.run(begin(1900))
    steps = driver.stats.steps
    assert driver.stats.layer("other").asked >= steps - 1  # the last token needs no draft
    assert 0.02 * steps < driver.stats.layer("suffix").asked < 0.5 * steps


def test_a_layer_that_gets_better_is_asked_again() -> None:
    truth = text(3000)
    driver = Driver(DriverConfig(probe_every_steps=32), GPU, [SUFFIX])

    def answer(ask: AskLayer, written: list[int]) -> Draft:
        return oracle(truth)(ask, written) if len(written) >= 1000 else Draft.empty()

    replica = Replica(driver, truth, answer, seconds=0.003)
    replica.run(begin(2900))
    asked = asks_in(replica, "suffix")
    dry = [at for at in asked if 500 <= at < 1000]
    assert 10 < len(dry) < 100
    assert np.mean(replica.widths[-20:]) > 20


def test_what_questions_are_worth_is_kept_between_generations() -> None:
    truth, trust = text(300), Trust()
    asked: list[int] = []
    for _ in range(30):
        driver = Driver(DriverConfig(), GPU, [SUFFIX], trust)
        Replica(driver, truth, lambda ask, written: Draft.empty(), seconds=0.003).run(begin(20))
        asked.append(driver.stats.layer("suffix").asked)
    assert 10 < asked[0] <= 19  # the last token needs no draft
    assert sum(asked[10:]) < 0.2 * 20 * len(asked[10:])
    assert sum(asked[10:]) >= 20 * len(asked[10:]) // 64 - 1  # short generations are no way out of probing


def test_first_match_teaches_nothing_about_worth() -> None:
    truth, trust = text(3000), Trust()
    first = Driver(DriverConfig(policy="first-match", first_match_cost=0), GPU, [SUFFIX], trust)
    Replica(first, truth, oracle(truth), seconds=0.003).run(begin(2000))
    driver = Driver(DriverConfig(), GPU, [SUFFIX], trust)
    Replica(driver, truth, oracle(truth), seconds=0.003).run(begin(60))
    assert driver.stats.steps < 10


def test_a_hopeless_layer_costs_little() -> None:
    truth = text(9000)
    driver = Driver(DriverConfig(), TWO_CORES, [SUFFIX])
    Replica(driver, truth, lambda ask, written: Draft.empty(), seconds=2.0).run(begin(8000))
    assert driver.stats.cost < 1.1 * 8000


def test_a_free_layer_is_always_asked() -> None:
    truth = text(600)
    driver = Driver(DriverConfig(), GPU, [SUFFIX])
    Replica(driver, truth, lambda ask, written: Draft.empty()).run(begin(500))
    assert driver.stats.layer("suffix").asked == 499
