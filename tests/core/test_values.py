"""Values checked at the door: what is remembered of them must never differ from checking again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suffixsvc import wire
from suffixsvc.errors import InvalidCostError, InvalidTokensError
from suffixsvc.values import MAX_TOKEN_ID, CostCurveCache, as_cost_curve, as_token_array
from suffixsvc_client.protocol.costs import CostEncoder

CURVE = np.array([0, 1, 1.5, 2.5], np.float32)
FROZEN = CURVE.copy()
FROZEN.setflags(write=False)
COSTS: list[Any] = [
    *(0.1, np.float64(0.1), np.float32(0.1), 1, 0),
    *(CURVE, CURVE.astype(np.float64), FROZEN, CURVE[:3], [0, 1, 1.5], (0, 1, 1.5), np.array([0, 1, 2])),
    *(np.array(0.1), np.array([0, 1, 1.5], dtype=object)),
]


@pytest.mark.parametrize("last", COSTS, ids=repr)
def test_a_known_cost_is_what_checking_it_again_gives(last: Any) -> None:
    memo, encoder = CostCurveCache(), CostEncoder()
    for cost in (last, *(c for other in COSTS for c in (other, last))):
        for width in (2, 5):
            assert memo.curve(cost, width).tolist() == as_cost_curve(cost, width)[: width + 1].tolist()
        encoded = encoder.encode(cost)
        assert encoded.message == wire.cost_to_proto(cost)
        assert encoded.data == encoded.message.SerializeToString()


def test_costs_that_take_turns_are_worked_out_once() -> None:
    memo = CostCurveCache()
    asked = [(0.02, 16), (0.02, 0), (CURVE, 2)]
    first = [memo.curve(cost, width) for cost, width in asked]
    for (cost, width), known in zip(asked, first, strict=True):
        assert memo.curve(cost, width) is known
    for width in range(100):  # and it does not grow for ever
        memo.curve(0.02, width)
    assert len(memo._known) <= 4


@pytest.mark.parametrize("freeze", [False, True])
def test_a_curve_that_was_written_to_is_another_one(freeze: bool) -> None:
    memo, encoder = CostCurveCache(), CostEncoder()
    curve = CURVE.copy()
    behind = curve[:]
    curve.setflags(write=not freeze)
    before = encoder.encode(curve).data
    assert memo.curve(curve, 2).tolist() == [1, 1.5, 2.5]
    behind[2] = 9
    assert memo.curve(curve, 2).tolist() == [1, 9, 2.5]
    assert encoder.encode(curve).data != before
    behind[2] = -9
    with pytest.raises(InvalidCostError):
        memo.curve(curve, 2)
    with pytest.raises(InvalidCostError):
        encoder.encode(curve)


def test_a_cost_that_was_refused_is_refused_again() -> None:
    memo, encoder = CostCurveCache(), CostEncoder()
    for _ in range(2):
        with pytest.raises(InvalidCostError):
            memo.curve(float("nan"), 4)
        with pytest.raises(InvalidCostError):
            encoder.encode(float("nan"))


@pytest.mark.parametrize("length", [1, 32, 33])
def test_short_and_long_lists_are_checked_alike(length: int) -> None:
    assert as_token_array([MAX_TOKEN_ID] * length).tolist() == [MAX_TOKEN_ID] * length
    assert as_token_array([0] * length).dtype == np.int32
    for wrong in (-1, MAX_TOKEN_ID + 1, 2**70, 1.5, "1", None):
        with pytest.raises(InvalidTokensError):
            as_token_array([0] * (length - 1) + [wrong])  # type: ignore[list-item]  # what callers may send
    with pytest.raises(InvalidTokensError):
        as_token_array([True] * length)
