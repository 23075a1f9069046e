"""Values checked at the door: what is remembered of them must never differ from checking again."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from suffixsvc import wire
from suffixsvc.errors import InvalidCostError, InvalidTokensError
from suffixsvc.values import MAX_TOKEN_ID, as_cost_curve, as_token_array

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
    plain = list(last) if isinstance(last, np.ndarray) and last.ndim else last  # a list is checked every time
    for cost, again in ((last, plain), *((c, c) for c in COSTS), (last, plain)):
        for width in (2, 5):
            assert as_cost_curve(cost, width).tolist() == as_cost_curve(again, width).tolist()


def test_costs_that_take_turns_are_worked_out_once() -> None:
    asked = [(0.02, 16), (0.02, 0), (CURVE, 2)]
    first = [as_cost_curve(cost, width) for cost, width in asked]
    for (cost, width), known in zip(asked, first, strict=True):
        assert as_cost_curve(cost, width) is known
        assert not known.flags.writeable


@pytest.mark.parametrize("freeze", [False, True])
def test_a_curve_that_was_written_to_is_another_one(freeze: bool) -> None:
    curve = CURVE.copy()
    behind = curve[:]
    curve.setflags(write=not freeze)
    before = wire.cost_to_proto(curve)
    assert as_cost_curve(curve, 2).tolist() == [1, 1.5, 2.5]
    behind[2] = 9
    assert as_cost_curve(curve, 2).tolist() == [1, 9, 2.5]
    assert wire.cost_to_proto(curve) != before
    behind[2] = -9
    with pytest.raises(InvalidCostError):
        as_cost_curve(curve, 2)
    with pytest.raises(InvalidCostError):
        wire.cost_to_proto(curve)


def test_a_cost_that_was_refused_is_refused_again() -> None:
    for _ in range(2):
        with pytest.raises(InvalidCostError):
            as_cost_curve(float("nan"), 4)
        with pytest.raises(InvalidCostError):
            wire.cost_to_proto(float("nan"))


@pytest.mark.parametrize("length", [1, 32, 33])
def test_short_and_long_lists_are_checked_alike(length: int) -> None:
    assert as_token_array([MAX_TOKEN_ID] * length).tolist() == [MAX_TOKEN_ID] * length
    assert as_token_array([0] * length).dtype == np.int32
    for wrong in (-1, MAX_TOKEN_ID + 1, 2**70, 1.5, "1", None):
        with pytest.raises(InvalidTokensError):
            as_token_array([0] * (length - 1) + [wrong])  # type: ignore[list-item]  # what callers may send
    with pytest.raises(InvalidTokensError):
        as_token_array([True] * length)


def test_long_cost_curves_of_clients_are_not_kept() -> None:
    """64 curves of 16 MiB would have been kept for the life of a service."""
    curve = np.ones(1 << 20)
    tracemalloc.start()
    for last in range(8):
        curve[-1] = last
        as_cost_curve(curve, 0)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 8 << 20


def test_a_masked_array_counts_as_its_data() -> None:
    masked = np.ma.array([1, 2, 3], mask=[0, 1, 0], dtype=np.int32)
    assert as_token_array(masked).tolist() == [1, 2, 3]


@pytest.mark.filterwarnings("error")
def test_a_signalling_nan_is_refused_without_a_warning() -> None:
    curve = np.frombuffer(np.array([0, 0x3F800000, 0x7FA00000], np.uint32).tobytes(), np.float32)
    with pytest.raises(InvalidCostError):
        as_cost_curve(curve, 4)
