"""Costs of a draft worker's batches, and placement of contexts on its KV sequences."""

from __future__ import annotations

import pytest

from suffixsvc_driver.targets.slots import SlotCache
from suffixsvc_driver.workers.server.batching import BatchCosts


@pytest.mark.parametrize(
    ("seconds", "lanes", "of_three"),
    [
        ({1: 11.5, 2: 22.9, 4: 37.3, 8: 63.5}, 1, 1),  # smollm2-135m on one core
        ({1: 1.0, 2: 1.05, 4: 1.2, 8: 1.5}, 8, 3),  # a batch costs what its weights' reading costs
        ({1: 1.0, 2: 1.9, 4: 2.5, 8: 3.9}, 8, 1),  # pays from five on
        ({1: 1.0}, 1, 1),
    ],
)
def test_the_width_that_pays(seconds: dict[int, float], lanes: int, of_three: int) -> None:
    costs = BatchCosts(seconds, 0.1)
    assert costs.lanes == lanes
    assert costs.width_for(3) == of_three
    for ready in range(1, 9):
        width = costs.width_for(ready)
        assert costs.step_seconds(width) <= costs.step_seconds(1) * (width + 1) / 2
    assert BatchCosts(seconds, 0.1, 3).width_for(8) == 3


def test_a_sequence_in_use_is_copied_not_reassigned() -> None:
    """A context with the prefix of a used sequence goes to another one, which gets a copy of its KV."""
    sequences = SlotCache(2)
    first = sequences.place([1, 2, 3, 4])
    sequences.apply(first)
    first.slot.tokens.extend([1, 2, 3, 4])
    second = sequences.place([1, 2, 3, 9], [1 - first.slot.index])
    assert (second.keep, second.copy_from) == (3, first.slot)
    assert second.slot is not first.slot
    sequences.apply(second)
    assert sequences.place([1, 2, 3, 4, 5]).slot is first.slot


def test_short_prefills_do_not_change_the_measured_cost() -> None:
    costs = BatchCosts({1: 0.01}, 0.001)
    for _ in range(50):
        costs.record_prefill(1, 0.01)
    assert costs.prefill_seconds(1) == 0.001
    for _ in range(50):
        costs.record_prefill(16, 0.032)
    assert costs.prefill_seconds(1) == pytest.approx(0.002, rel=0.01)
