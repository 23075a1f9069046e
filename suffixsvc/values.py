"""Validation of arguments: tokens, verify costs, feedback, outputs.

The embedded engine, the client and the wire use the same functions, so that an invalid argument raises the
same typed error in all of them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import InvalidCostError, InvalidInputError, InvalidTokensError
from suffixsvc.types import DraftSource, NewOutput, TokenArray, TokenIds, Verified, VerifyCost

#: the largest token id: tokens are int32 >= 0
MAX_TOKEN_ID = 2**31 - 1
_NOT_NUMBERS: Final = (bool, np.bool_, str, bytes)
#: tolerance of a curve's entry 1, which must be 1
_UNIT_TOLERANCE: Final = 1e-3
#: up to this length, Python checks a list faster than numpy does
_SHORT_LIST = 32


def as_token_array(value: TokenIds, name: str = "token_ids", *, checked: bool = True) -> TokenArray:
    """A caller's tokens as contiguous int32[n].

    Args:
        checked: False leaves the check for negative ids of an int32 array to the core, which is faster.

    Raises:
        InvalidTokensError: not 1-D, not integers, or an id outside 0 .. 2**31 - 1.
    """
    if type(value) is list and 0 < len(value) <= _SHORT_LIST:  # the tokens of a decode step
        wrong = [token for token in value if type(token) is not int or not 0 <= token <= MAX_TOKEN_ID]
        if not wrong:
            return np.array(value, np.int32)
        if type(wrong[0]) is int:
            raise _bad_tokens(name, f"ids in 0 .. {MAX_TOKEN_ID}", wrong[0])
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
    # reductions of numpy take a microsecond each, for which every step waits
    short = array.size <= _SHORT_LIST and type(array) is np.ndarray
    numbers = array.tolist() if short else (array.min(), array.max())
    low, high = int(min(numbers)), int(max(numbers))
    if low < 0 or high > MAX_TOKEN_ID:
        raise _bad_tokens(name, f"ids in 0 .. {MAX_TOKEN_ID}", low if low < 0 else high)
    return np.ascontiguousarray(array, dtype=np.int32)


#: longest curve that is cached: clients choose the curves, and those of engines have a few hundred entries
_CACHED_BYTES: Final = 1 << 15


def as_cost_curve(cost: VerifyCost, max_draft_tokens: int) -> npt.NDArray[np.float64]:
    """A verify cost as float64[w]: entry i is the relative cost of a target step of i + 1 tokens.

    A float a becomes 1 + a * i up to ``max_draft_tokens`` drafted tokens. A curve c becomes c[1:] and is not
    extended: drafts end at its last width. c[1] is 1. The curve need not be monotone. The result is
    read-only: callers that repeat a few costs get the same array.

    Raises:
        InvalidCostError: NaN, infinite, negative, an empty curve, one that is not relative, or not numbers.
    """
    if isinstance(cost, float):
        return _known_curve(cost, "", (), max_draft_tokens)
    # by value: it can be written to meanwhile
    if isinstance(cost, np.ndarray) and not cost.dtype.hasobject and cost.nbytes <= _CACHED_BYTES:
        return _known_curve(cost.tobytes(), cost.dtype.str, cost.shape, max_draft_tokens)
    return _curve(cost, max_draft_tokens)


@lru_cache(maxsize=64)
def _known_curve(
    cost: float | bytes, dtype: str, shape: tuple[int, ...], max_draft_tokens: int
) -> npt.NDArray[np.float64]:
    given = np.ndarray(shape, dtype, cost) if isinstance(cost, bytes) else cost
    return _curve(given, max_draft_tokens)


def _curve(cost: VerifyCost, max_draft_tokens: int) -> npt.NDArray[np.float64]:
    curve = _numbers(cost)
    if curve.ndim == 0:
        per_token = float(curve)
        if not (np.isfinite(per_token) and per_token >= 0):
            raise _bad_cost("a finite number >= 0", per_token)
        with np.errstate(over="ignore"):
            line = 1.0 + per_token * np.arange(max_draft_tokens + 1, dtype=np.float64)
        return _read_only(np.minimum(line, np.finfo(np.float64).max))
    if curve.ndim != 1 or curve.size < 2:
        raise _bad_cost(
            "a curve of one dimension, 2 entries or more (entry 0 is unused)", f"shape {curve.shape}"
        )
    used = curve[1:]
    if not (used.min() >= 0 and used.max() < np.inf):  # NaN fails both
        valid = np.isfinite(used) & (used >= 0)
        raise _bad_cost("a curve of finite numbers >= 0", float(used[~valid][0]))
    if abs(used[0] - 1) > _UNIT_TOLERANCE:
        raise InvalidCostError(
            "verify_cost must be relative to a step of one token",
            expected="1 at entry 1",
            got=float(used[0]),
            remedy="Divide the curve by its entry 1.",
        )
    return _read_only(np.ascontiguousarray(used))


def _read_only(curve: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    curve.setflags(write=False)
    return curve


def _numbers(cost: VerifyCost) -> npt.NDArray[np.float64]:
    try:
        given = np.asarray(cost)
        mixed = given.dtype.kind == "O"
        if given.dtype.kind in "iuf" or (mixed and not any(isinstance(x, _NOT_NUMBERS) for x in given.flat)):
            with np.errstate(invalid="ignore"):  # a signalling NaN, which is refused as any NaN
                return given.astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        pass
    raise _bad_cost("a number or a curve of numbers", repr(cost)[:80])


def _bad_cost(expected: str, got: object) -> InvalidCostError:
    return InvalidCostError("verify_cost must be a cost or a cost curve", expected=expected, got=got)


def as_int(
    name: str,
    value: Any,
    low: int,
    high: int | None = None,
    error: type[InvalidInputError] = InvalidInputError,
) -> int:
    """An integer in ``low`` .. ``high``, also of numpy, as an int; ``error`` names the argument otherwise."""
    if type(value) is int:
        number = value
    else:
        try:
            number = low - 1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = low - 1
    if number < low or (high is not None and number > high):
        condition = f">= {low}" if high is None else f"in {low} .. {high}"
        raise error(f"{name} must be an int {condition}", got=repr(value)[:80])
    return number


def as_tree(tree: bool | str) -> bool | str:
    """False, True or "auto"; InvalidInputError otherwise."""
    if tree is True or tree is False:
        return tree
    if isinstance(tree, np.bool_):
        return bool(tree)
    if isinstance(tree, str) and tree == "auto":
        return tree
    raise InvalidInputError("tree must be a tree mode", expected='False, True or "auto"', got=repr(tree)[:80])


def as_verified(verified: Verified | tuple[int, int, int]) -> Verified:
    """Feedback with width >= 1, 0 <= accepted < width and a known source; InvalidInputError otherwise."""
    if type(verified) is Verified and type(verified.source) is DraftSource:  # fast path of the driver
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
            "verified must be a Verified or a tuple",
            expected="(width, accepted, source)",
            got=repr(verified)[:80],
        ) from None
    if not (1 <= checked.width <= MAX_TOKEN_ID and 0 <= checked.accepted < checked.width):
        raise InvalidInputError(
            "verified must be consistent",
            expected="width >= 1 and 0 <= accepted < width",
            got=f"width {checked.width}, accepted {checked.accepted}",
        )
    return checked


def as_outputs(outputs: Iterable[NewOutput]) -> list[NewOutput]:
    """A caller's outputs as a list; InvalidInputError names the first element of another type."""
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
    """The lengths of an output's runs; InvalidInputError unless all are ints."""
    try:
        return tuple(map(operator.index, lens))
    except TypeError:
        raise InvalidInputError("segment_lens must be a sequence of ints", got=repr(lens)[:80]) from None


def not_tokens(data: bytes, name: str = "token_ids") -> InvalidTokensError:
    """The error for bytes that are not packed token ids."""
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
