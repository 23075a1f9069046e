"""What questions to a layer cost and are worth, as it is learned."""

from __future__ import annotations

import pytest
from suffixsvc_driver.asking import Asking
from suffixsvc_driver.config import LayerKind, LayerSpec
from suffixsvc_driver.layer_state import LayerState, layer_state


def test_a_slow_answer_is_soon_forgotten_and_a_slow_layer_is_not() -> None:
    asking = Asking(0.0)
    asking.measure(1.0)
    for _ in range(200):
        asking.pass_over()
    asking.asked()
    asking.measure(0.001)
    assert asking.seconds == pytest.approx(0.001, abs=1e-6)
    for _ in range(5):
        asking.asked()
        asking.measure(1.0)
    assert asking.seconds > 0.6


def test_trying_a_dear_layer_takes_a_small_share_of_the_time() -> None:
    cheap, dear = Asking(0.001), Asking(2.0)
    tried = {"cheap": 0, "dear": 0}
    for _ in range(20_000):
        for name, asking in (("cheap", cheap), ("dear", dear)):
            if asking.due(64, seconds_per_step=0.03):
                tried[name] += 1
                asking.asked()
                asking.measure(asking.seconds)
            else:
                asking.pass_over()
    assert tried["cheap"] == 20_000 // 18
    assert tried["dear"] >= 1
    assert tried["dear"] * 2.0 <= 0.02 * 20_000 * 0.03


def test_worth_depends_on_the_situation() -> None:
    asking = Asking(0.0)
    for _ in range(100):
        asking.learn(0, 2.0)
        asking.learn(20, 0.0)
    assert asking.worth(0) > 1.8
    assert asking.worth(20) < 0.2


def asked_state(asking: Asking) -> LayerState:
    """Of one generation: a layer whose questions are counted by ``asking``."""
    return layer_state(LayerSpec("suffix", LayerKind.SUFFIX), asking)


def test_a_question_that_finds_a_run_is_worth_the_run() -> None:
    """Hits came in runs of ten, and one question in a hundred found one. It was priced by its own half token:
    0.005 a question, below any price, so the layer was hardly asked and the runs were missed. What the
    questions after it add is its worth, too, less their price."""
    asking = Asking(0.003)
    state = asked_state(asking)
    assert asking.trial_after(20, 0.03) == 20
    for _ in range(20):
        for _ in range(99):
            state.learn(0.0, 0.02, 20, 0.03)
        for _ in range(10):
            state.learn(0.5, 0.02, 20, 0.03)
    assert asking.worth(20) > 0.03


def test_a_long_run_of_hits_is_no_credit_without_end() -> None:
    """All that a run added was credited to the question that found it, so the longer the run, the more
    questions that found nothing were paid out of it: behind 100 hits 473 at a price of 0.1 tokens, behind
    10,000 hits 1317. It counts as far as the question was sooner than a trial would have been."""
    fruitless = {}
    for hits in (100, 10_000):
        asking = Asking(0.003)
        state, price = asked_state(asking), 0.1
        assert asking.trial_after(64, 0.03) == pytest.approx(50)
        for added, questions in ((0.0, 40), (1.0, hits)):
            for _ in range(questions):
                state.learn(added, price, 64, 0.03)
        fruitless[hits] = 0
        while asking.worth(state.dry_steps) > price:
            state.learn(0.0, price, 64, 0.03)
            fruitless[hits] += 1
    assert fruitless[10_000] <= 1.1 * fruitless[100], fruitless
    assert fruitless[10_000] < 500, fruitless


@pytest.mark.parametrize("why", ["another generation", "another layer's hits"])
def test_a_run_that_is_over_pays_for_no_other_questions(why: str) -> None:
    """The run that a question had found stayed in the tables that generations share until the next one was
    found. It was charged for the first questions of the next generation, and for those that came because
    another layer had added something meanwhile: 300 of them made finding a run look worse than useless, minus
    0.9 tokens, and the layer was left alone where it would have found the next one."""
    asking = Asking(0.003)
    state = asked_state(asking)
    for added in (*[0.0] * 40, 1.0):
        state.learn(added, 0.1, 64, 0.03)
    state.learn(1.0, 0.1, 64, 0.03)
    for _ in range(300):
        if why == "another generation":
            state = asked_state(asking)
        else:
            for _ in range(5):
                state.pass_over()
            state.dry_steps = 0
        state.learn(0.0, 0.1, 64, 0.03)
    assert asking.worth(20) > 0.0
