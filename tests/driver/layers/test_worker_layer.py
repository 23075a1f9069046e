"""Where a draft model's drafts end, by what their tokens cost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from suffixsvc.types import Draft
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.drafts.events import QueryLayer
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.layers.worker_layer import break_even_probability
from suffixsvc_driver.workers.client.interface import WorkerDescription

GPU = CostCurve.linear(0.01, 64, seconds_per_step=0.03)
TWO_CORES = CostCurve((0.0, 1.0, 2.0, 2.8, 3.2, 4.1, 4.7, 5.6, 7.2), 0.04)


def test_the_dearer_a_token_the_likelier_it_has_to_be() -> None:
    assert break_even_probability(GPU, 0.0012) == pytest.approx(0.05)  # 0.01 to verify, 0.04 to draft
    assert break_even_probability(GPU, 0.006) == pytest.approx(0.21)
    assert break_even_probability(GPU, 0.0) == 0.05  # the lower bound: a draft of noise has no gain
    assert break_even_probability(TWO_CORES, 0.025) == 0.4  # it will hardly be asked
    assert break_even_probability(CostCurve((0.0, 1.0, 1.9, 1.5), 0.03), 0.0) == 0.25  # the best width counts
    costs = [break_even_probability(GPU, seconds) for seconds in (0.001, 0.002, 0.004, 0.008, 0.1)]
    assert costs == sorted(costs)


def described(seconds_per_token: float) -> WorkerDescription:
    vocabulary: Any = SimpleNamespace()
    return WorkerDescription("m", 512, seconds_per_token, 0, "i", vocabulary)


def test_no_worker_makes_a_step_wait_for_ever() -> None:
    """Whatever it says of its speed."""
    waited: list[float] = []
    session = SimpleNamespace(
        append=lambda tokens: None,
        draft=lambda budget, seconds, after, suggested: (waited.append(seconds), Draft.empty())[1],
        seconds_per_token=1e300,
    )
    worker: Any = SimpleNamespace(
        check_vocabulary=lambda target: described(1e300), open_session=lambda **given: session
    )
    layer = DraftModelLayer(worker, SimpleNamespace())  # type: ignore[arg-type]  # never looked at
    assert len(layer.draft([1], QueryLayer("x", 4))) == 0
    assert waited == [10.0]


@pytest.mark.parametrize(
    ("options", "p_min"), [({}, 0.4), ({"curve": GPU}, 0.11), ({"curve": GPU, "p_min": 0.3}, 0.3)]
)
def test_p_min_follows_the_cost_unless_it_is_set(options: dict[str, Any], p_min: float) -> None:
    opened: dict[str, Any] = {}
    worker: Any = SimpleNamespace(
        check_vocabulary=lambda target: described(0.003),
        open_session=lambda **given: opened.update(given),
    )
    layer = DraftModelLayer(worker, SimpleNamespace(), **options)  # type: ignore[arg-type]  # never looked at
    assert layer.spec.seconds_per_token == 0.003
    assert opened["p_min"] == pytest.approx(p_min)
