"""Cost and expected gain of queries, as they are learned."""

from __future__ import annotations

import pytest

from suffixsvc.core import AcceptanceTable
from suffixsvc_driver.policy.layer_value import LayerValue
from suffixsvc_driver.settings.driver_config import LayerKind, LayerSpec
from suffixsvc_driver.speculation.layer_state import LayerState, layer_state


def test_a_slow_answer_is_forgotten_and_a_slow_layer_is_not() -> None:
    value = LayerValue(0.0)
    value.measure(1.0)
    for _ in range(200):
        value.record_skip()
    value.record_query()
    value.measure(0.001)
    assert value.seconds == pytest.approx(0.001, abs=1e-6)
    for _ in range(5):
        value.record_query()
        value.measure(1.0)
    assert value.seconds > 0.6


def test_exploring_an_expensive_layer_takes_a_small_share_of_the_time() -> None:
    cheap, dear = LayerValue(0.001), LayerValue(2.0)
    tried = {"cheap": 0, "dear": 0}
    for _ in range(20_000):
        for name, value in (("cheap", cheap), ("dear", dear)):
            if value.exploration_due(64, seconds_per_step=0.03):
                tried[name] += 1
                value.record_query()
                value.measure(value.seconds)
            else:
                value.record_skip()
    assert tried["cheap"] == 20_000 // 18
    assert tried["dear"] >= 1
    assert tried["dear"] * 2.0 <= 0.02 * 20_000 * 0.03


def test_expected_gain_depends_on_misses() -> None:
    value = LayerValue(0.0)
    for _ in range(100):
        value.learn(0, 2.0)
        value.learn(20, 0.0)
    assert value.expected_gain(0) > 1.8
    assert value.expected_gain(20) < 0.2


def state_of(value: LayerValue) -> LayerState:
    """Return the state of a layer, in one generation, whose queries are recorded in ``value``."""
    return layer_state(LayerSpec("suffix", LayerKind.SUFFIX), value, AcceptanceTable())


def test_a_query_that_finds_a_run_is_credited_with_the_run() -> None:
    """Hits came in runs of ten, and one query in a hundred found one. Such a query was credited with its
    half token only: 0.005 per query, below any cost, so the layer was hardly queried and the runs were
    missed. The net gain of the following queries is credited, too."""
    value = LayerValue(0.003)
    state = state_of(value)
    assert value.exploration_interval(20, 0.03) == 20
    for _ in range(20):
        for _ in range(99):
            state.learn(0.0, 0.02, 20, 0.03)
        for _ in range(10):
            state.learn(0.5, 0.02, 20, 0.03)
    assert value.expected_gain(20) > 0.03


def test_the_credit_of_a_long_run_is_bounded() -> None:
    """All gains of a run were credited to the query that found it, so a longer run paid for more queries
    that found nothing: 473 at a cost of 0.1 tokens after 100 hits, 1317 after 10,000. The credit now ends
    where exploration would have found the run."""
    fruitless = {}
    for hits in (100, 10_000):
        value = LayerValue(0.003)
        state, cost = state_of(value), 0.1
        assert value.exploration_interval(64, 0.03) == pytest.approx(50)
        for added, questions in ((0.0, 40), (1.0, hits)):
            for _ in range(questions):
                state.learn(added, cost, 64, 0.03)
        fruitless[hits] = 0
        while value.expected_gain(state.misses) > cost:
            state.learn(0.0, cost, 64, 0.03)
            fruitless[hits] += 1
    assert fruitless[10_000] <= 1.1 * fruitless[100], fruitless
    assert fruitless[10_000] < 500, fruitless


@pytest.mark.parametrize("why", ["another generation", "another layer's hits"])
def test_a_run_that_is_over_is_not_charged_for_other_queries(why: str) -> None:
    """The run that a query had found stayed in the shared tables until the next one was found. It was
    charged for the first queries of the next generation, and for those made because another layer had added
    something: 300 of them made the expected gain of finding a run negative, -0.9 tokens, and the layer was
    skipped where it would have found the next run."""
    value = LayerValue(0.003)
    state = state_of(value)
    for added in (*[0.0] * 40, 1.0):
        state.learn(added, 0.1, 64, 0.03)
    state.learn(1.0, 0.1, 64, 0.03)
    for _ in range(300):
        if why == "another generation":
            state = state_of(value)
        else:
            for _ in range(5):
                state.skip()
            state.misses = 0
        state.learn(0.0, 0.1, 64, 0.03)
    assert value.expected_gain(20) > 0.0
