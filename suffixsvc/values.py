"""Callers' values checked at the door: tokens, costs, feedback.

The embedded engine and the wire use the same functions, so that a mistake gives the same typed error
wherever it is made.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import InvalidCostError, InvalidInputError, InvalidTokensError
from suffixsvc.types import DraftSource, NewOutput, TokenArray, TokenIds, Verified, VerifyCost

__all__ = [
    "MAX_TOKEN_ID",
    "CostMemo",
    "Few",
    "as_cost_curve",
    "as_outputs",
    "as_segment_lens",
    "as_token_array",
    "as_tree",
    "as_verified",
    "cost_key",
    "not_tokens",
]

K = TypeVar("K")
V = TypeVar("V")

#: the largest token id: tokens are int32 and negative ids mean nothing
MAX_TOKEN_ID = 2**31 - 1
_NOT_NUMBERS: Final = (bool, np.bool_, str, bytes)
#: what the first entry of a measured curve may be off by
_NOT_ONE: Final = 1e-3
#: up to so many numbers, Python checks a list faster than numpy does
_FEW = 32


def as_token_array(value: TokenIds, name: str = "token_ids", *, checked: bool = True) -> TokenArray:
    """A caller's tokens as contiguous int32[n].

    Args:
        checked: False leaves negative ids of an int32 array to the core, which refuses them sooner.

    Raises:
        InvalidTokensError: not 1-D, not integers, or an id outside 0 .. 2**31 - 1.
    """
    if type(value) is list and 0 < len(value) <= _FEW and {*map(type, value)} == {int}:
        # what a decode step appends
        low, high = min(value), max(value)
        if low < 0 or high > MAX_TOKEN_ID:
            raise _bad_tokens(name, f"ids in 0 .. {MAX_TOKEN_ID}", low if low < 0 else high)
        return np.array(value, np.int32)
    if isinstance(value, np.ndarray) and value.dtype == np.int32 and value.ndim == 1:
        if not checked:
            return np.ascontiguousarray(value)
        array: npt.NDArray[Any] = value
    elif isinstance(value, (str, bytes, bytearray)):
        raise _bad_tokens(name, "a 1-D integer array or a sequence of ints", type(value).__name__)
    else:
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise _bad_tokens(name, "a 1-D integer array or a sequence of ints", repr(error)[:80]) from None
    if array.ndim != 1:
        raise _bad_tokens(name, "one dimension", f"{array.ndim} dimensions")
    if array.size == 0:
        return np.empty(0, np.int32)
    if array.dtype.kind not in "iu":
        raise _bad_tokens(name, "an integer dtype", str(array.dtype))
    low = int(array.min())
    high = MAX_TOKEN_ID if array.dtype == np.int32 else int(array.max())
    if low < 0 or high > MAX_TOKEN_ID:
        raise _bad_tokens(name, f"ids in 0 .. {MAX_TOKEN_ID}", low if low < 0 else high)
    return np.ascontiguousarray(array, dtype=np.int32)


def as_cost_curve(cost: VerifyCost, max_draft_tokens: int) -> npt.NDArray[np.float64]:
    """A verify cost as float64[w]: entry i is the relative cost of a target step of i + 1 tokens.

    A float a becomes 1 + a * i up to ``max_draft_tokens`` drafted tokens. A curve c is c[1:], not made
    longer: past its end nothing is drafted. c[1] is 1. It need not be monotone.

    Raises:
        InvalidCostError: NaN, infinite, negative, an empty curve, one that is not relative, or not numbers.
    """
    curve = _numbers(cost)
    if curve.ndim == 0:
        per_token = float(curve)
        if not (np.isfinite(per_token) and per_token >= 0):
            raise InvalidCostError(
                "verify_cost is not a cost", expected="a finite number >= 0", got=per_token
            )
        with np.errstate(over="ignore"):
            line = 1.0 + per_token * np.arange(max_draft_tokens + 1, dtype=np.float64)
        return np.minimum(line, np.finfo(np.float64).max)
    if curve.ndim != 1 or curve.size < 2:
        raise InvalidCostError(
            "verify_cost is not a curve",
            expected="one dimension, two entries or more (entry 0 is unused)",
            got=f"shape {curve.shape}",
        )
    used = curve[1:]
    if not (used.min() >= 0 and used.max() < np.inf):  # NaN fails both
        right = np.isfinite(used) & (used >= 0)
        raise InvalidCostError(
            "verify_cost is not a curve", expected="finite numbers >= 0", got=float(used[~right][0])
        )
    if abs(used[0] - 1) > _NOT_ONE:
        raise InvalidCostError(
            "verify_cost is not a relative curve",
            expected="entry 1, a step of one token, is 1",
            got=float(used[0]),
            remedy="Divide the curve by its entry 1.",
        )
    return np.ascontiguousarray(used)


def _numbers(cost: VerifyCost) -> npt.NDArray[np.float64]:
    try:
        given = np.asarray(cost)
        mixed = given.dtype.kind == "O"
        if given.dtype.kind in "iuf" or (mixed and not any(isinstance(x, _NOT_NUMBERS) for x in given.flat)):
            return given.astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        pass
    raise InvalidCostError(
        "verify_cost is not a cost", expected="a number or a curve of numbers", got=repr(cost)[:80]
    )


def cost_key(cost: VerifyCost) -> object:
    """What tells a verify cost from another one, by value: an array may be written to between two steps.
    None where telling them apart takes as long as checking them."""
    if isinstance(cost, np.ndarray):
        return None if cost.dtype.hasobject else (cost.dtype.str, cost.shape, cost.tobytes())
    return float(cost) if isinstance(cost, float) else None


class Few(dict[K, V]):
    """What was worked out last, by what was asked: for callers that ask for the same few things in turns.
    Begins anew when it holds ``most``."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, key: K, value: V) -> V:
        if len(self) >= self._most:
            self.clear()
        self[key] = value
        return value


class CostMemo:
    """:func:`as_cost_curve` for callers that mostly get the same few costs: each worked out once."""

    def __init__(self) -> None:
        self._known: Few[tuple[object, int], npt.NDArray[np.float64]] = Few(4)

    def curve(self, cost: VerifyCost, max_draft_tokens: int) -> npt.NDArray[np.float64]:
        """float64[w], w <= max_draft_tokens + 1: costs of a target step of 1 .. w tokens. The same array for
        the same cost, as long as it is known."""
        key = (cost_key(cost), max_draft_tokens)
        if key[0] is None:
            return as_cost_curve(cost, max_draft_tokens)[: max_draft_tokens + 1]
        known = self._known.get(key)
        if known is None:
            known = self._known.put(key, as_cost_curve(cost, max_draft_tokens)[: max_draft_tokens + 1])
        return known


def as_tree(tree: bool | str) -> bool | str:
    """False, True or "auto"; InvalidInputError otherwise."""
    if isinstance(tree, (bool, np.bool_)):
        return bool(tree)
    if isinstance(tree, str) and tree == "auto":
        return tree
    raise InvalidInputError("tree is no tree mode", expected='False, True or "auto"', got=repr(tree)[:80])


def as_verified(verified: Verified | tuple[int, int, int]) -> Verified:
    """Feedback with width >= 1, 0 <= accepted < width and a known source; InvalidInputError otherwise."""
    if type(verified) is Verified and type(verified.source) is DraftSource:  # of every driver step
        width, accepted = verified.width, verified.accepted
        if type(width) is int and type(accepted) is int and 0 <= accepted < width <= MAX_TOKEN_ID:
            return verified
    try:
        width, accepted, source = (
            (verified.width, verified.accepted, verified.source)
            if isinstance(verified, Verified)
            else verified
        )
        checked = Verified(operator.index(width), operator.index(accepted), DraftSource(int(source)))
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(
            "verified is malformed", expected="(width, accepted, source)", got=repr(verified)[:80]
        ) from None
    if not (1 <= checked.width <= MAX_TOKEN_ID and 0 <= checked.accepted < checked.width):
        raise InvalidInputError(
            "verified is malformed",
            expected="width >= 1 and 0 <= accepted < width",
            got=f"width {checked.width}, accepted {checked.accepted}",
        )
    return checked


def as_outputs(outputs: Iterable[NewOutput]) -> list[NewOutput]:
    """A caller's outputs; InvalidInputError names the first that is of another type."""
    try:
        checked = list(outputs)
    except TypeError:
        raise _not_output("outputs must be a list of NewOutput", outputs) from None
    for place, output in enumerate(checked):
        if not isinstance(output, NewOutput):
            raise _not_output(f"outputs[{place}] must be a NewOutput", output)
    return checked


def _not_output(message: str, got: object) -> InvalidInputError:
    return InvalidInputError(
        message,
        got=type(got).__name__,
        remedy="Build it with suffixsvc.NewOutput(namespace, token_ids, segment_lens, prompt_tail), or pass "
        "plain tokens to add_output.",
    )


def as_segment_lens(lens: Iterable[int]) -> tuple[int, ...]:
    """The lengths of an output's segments; InvalidInputError where they are no ints."""
    try:
        return tuple(map(operator.index, lens))
    except TypeError:
        raise InvalidInputError("segment_lens must be a sequence of ints", got=repr(lens)[:80]) from None


def not_tokens(data: bytes, name: str = "token_ids") -> InvalidTokensError:
    """What is wrong with bytes that are no packed token ids."""
    if len(data) % 4:
        expected, got = "packed int32: a multiple of 4 bytes", f"{len(data)} bytes"
    else:
        expected, got = f"ids in 0 .. {MAX_TOKEN_ID}", str(np.frombuffer(data, "<i4").min())
    return InvalidTokensError(f"{name} must be token ids", expected=expected, got=got)


def _bad_tokens(name: str, expected: object, got: object) -> InvalidTokensError:
    return InvalidTokensError(
        f"{name} must be token ids",
        expected=expected,
        got=got,
        remedy="Pass a list of ints or a 1-D numpy integer array.",
    )
