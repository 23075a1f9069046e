"""Queries of the state machine by their cost and gain. No clock, no model."""

from __future__ import annotations

import numpy as np

from suffixsvc.types import Draft
from suffixsvc_driver.drafts.events import QueryLayer, StepResult
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.settings.driver_config import DriverConfig, LayerKind, LayerSpec
from suffixsvc_driver.speculation.state_machine import GenerationStateMachine
from support.replica import GPU, MODEL, OTHER, SUFFIX, TWO_CORES, Replica, begin, chain, oracle, text


def test_a_slow_draft_model_is_skipped_and_probed() -> None:
    """A token costs 0.8 of a target step, which no acceptance compensates; after a slow answer its cost
    returns to the initial value."""
    truth = text(2000)
    slow = LayerSpec("model", LayerKind.DRAFT_MODEL, seconds_per_token=0.024)
    driver = GenerationStateMachine(DriverConfig(), TWO_CORES, [slow])
    Replica(driver, truth, oracle(truth)).run(begin(200))
    assert driver.stats.layer("model").asked == 0
    wrong = GenerationStateMachine(DriverConfig(), GPU, [MODEL])
    replica = Replica(wrong, truth, oracle(truth, right=0))
    replica.run(begin(1000))
    asked = wrong.stats.layer("model").asked
    assert 10 < asked < 150, asked


def test_reading_is_part_of_the_cost() -> None:
    """The model pays for its tokens, but not for reading a long prompt for so short an answer."""
    truth = text(2000)
    model = LayerSpec("model", LayerKind.DRAFT_MODEL, seconds_per_token=0.009)
    asked = {}
    for prompt in (10, 4000):
        driver = GenerationStateMachine(DriverConfig(), GPU, [model])
        Replica(driver, truth, oracle(truth)).run(begin(40, prompt_length=prompt, context_size=9000))
        asked[prompt] = driver.stats.layer("model").asked
    assert asked[10] > 3
    assert asked[4000] == 0
    patient = GenerationStateMachine(DriverConfig(), GPU, [model])
    Replica(patient, truth, oracle(truth)).run(begin(1900, prompt_length=4000, context_size=9000))
    assert patient.stats.layer("model").asked > 3


def test_a_slow_layer_is_skipped() -> None:
    truth = text(2000)
    driver = GenerationStateMachine(DriverConfig(), TWO_CORES, [SUFFIX])
    Replica(driver, truth, lambda query, written: Draft.empty(), seconds=0.5).run(begin(500))
    assert driver.stats.layer("suffix").asked < 250


def queries_of(replica: Replica, layer: str) -> list[int]:
    """Return the number of emitted tokens before each query of a layer."""
    written, at = 0, []
    for event, decision in replica.trace:
        written += len(event.emitted) if isinstance(event, StepResult) else 0
        if isinstance(decision, QueryLayer) and decision.layer == layer:
            at.append(written)
    return at


def test_a_layer_that_adds_nothing_is_queried_at_intervals() -> None:
    """A query costs 0.1 of a step. The layer is always right, but so is the one before it."""
    truth = text(2000)
    driver = GenerationStateMachine(DriverConfig(probe_every_steps=32), GPU, [OTHER, SUFFIX])

    def answer(query: QueryLayer, written: list[int]) -> Draft:
        return chain(truth[len(written) :][:2], 0.95)

    replica = Replica(driver, truth, answer, seconds=0.003)
    replica.run(begin(1900))
    steps = driver.stats.steps
    assert driver.stats.layer("other").asked >= steps - 1  # the last token needs no draft
    assert 0.02 * steps < driver.stats.layer("suffix").asked < 0.5 * steps


def test_a_layer_that_improves_is_queried_again() -> None:
    truth = text(3000)
    driver = GenerationStateMachine(DriverConfig(probe_every_steps=32), GPU, [SUFFIX])

    def answer(query: QueryLayer, written: list[int]) -> Draft:
        return oracle(truth)(query, written) if len(written) >= 1000 else Draft.empty()

    replica = Replica(driver, truth, answer, seconds=0.003)
    replica.run(begin(2900))
    asked = queries_of(replica, "suffix")
    dry = [at for at in asked if 500 <= at < 1000]
    assert 10 < len(dry) < 100
    assert np.mean(replica.widths[-20:]) > 20


def test_the_gain_of_queries_is_learned_across_generations() -> None:
    truth, calibrator = text(300), Calibrator()
    asked: list[int] = []
    for _ in range(30):
        driver = GenerationStateMachine(DriverConfig(), GPU, [SUFFIX], calibrator)
        Replica(driver, truth, lambda query, written: Draft.empty(), seconds=0.003).run(begin(20))
        asked.append(driver.stats.layer("suffix").asked)
    assert 10 < asked[0] <= 19  # the last token needs no draft
    assert sum(asked[10:]) < 0.2 * 20 * len(asked[10:])
    assert sum(asked[10:]) >= 20 * len(asked[10:]) // 64 - 1  # short generations are probed as well


def test_first_match_does_not_learn_gains() -> None:
    truth, calibrator = text(3000), Calibrator()
    first = GenerationStateMachine(
        DriverConfig(policy="first-match", first_match_cost=0), GPU, [SUFFIX], calibrator
    )
    Replica(first, truth, oracle(truth), seconds=0.003).run(begin(2000))
    driver = GenerationStateMachine(DriverConfig(), GPU, [SUFFIX], calibrator)
    Replica(driver, truth, oracle(truth), seconds=0.003).run(begin(60))
    assert driver.stats.steps < 10


def test_a_useless_layer_costs_little() -> None:
    truth = text(9000)
    driver = GenerationStateMachine(DriverConfig(), TWO_CORES, [SUFFIX])
    Replica(driver, truth, lambda query, written: Draft.empty(), seconds=2.0).run(begin(8000))
    assert driver.stats.cost < 1.1 * 8000


def test_a_free_layer_is_always_queried() -> None:
    truth = text(600)
    driver = GenerationStateMachine(DriverConfig(), GPU, [SUFFIX])
    Replica(driver, truth, lambda query, written: Draft.empty()).run(begin(500))
    assert driver.stats.layer("suffix").asked == 499
