"""Protobuf messages <-> the types of :mod:`suffixsvc.types` and :mod:`suffixsvc.errors`.

Shared by the service, the client and the draft worker. Everything that comes from the other side is
hostile until it went through here: what is malformed raises a typed error and never a bare
ValueError, KeyError or struct.error.
"""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import (
    STATUS,
    ErrorCode,
    InvalidCostError,
    InvalidInputError,
    InvalidTokensError,
    ProtocolError,
    SuffixError,
    error_from_wire,
)
from suffixsvc.types import Draft, DraftSource, FloatArray, TokenArray, TokenIds, Verified, VerifyCost
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import types_pb2

__all__ = [
    "ERROR_METADATA_KEY",
    "MAX_TOKEN_ID",
    "as_token_array",
    "cost_from_proto",
    "cost_to_proto",
    "detail_from_error",
    "draft_from_proto",
    "draft_to_proto",
    "error_from_detail",
    "pack_tokens",
    "status_of",
    "tree_from_proto",
    "tree_to_proto",
    "unpack_tokens",
    "verified_from_proto",
    "verified_to_proto",
]

#: trailing metadata of a failed call: a serialised ErrorDetail
ERROR_METADATA_KEY: Final = "suffixsvc-error-bin"
MAX_TOKEN_ID: Final = 2**31 - 1

_INT32: Final = np.dtype("<i4")
_FLOAT32: Final = np.dtype("<f4")
_TREE_MODES: Final[dict[bool | str, pb.TreeMode]] = {
    False: pb.TREE_MODE_CHAIN,
    True: pb.TREE_MODE_TREE,
    "auto": pb.TREE_MODE_AUTO,
}


# --------------------------------------------------------------------------------------------- tokens


def as_token_array(value: TokenIds, name: str = "token_ids") -> TokenArray:
    """A caller's tokens as int32[n]; InvalidTokensError unless 1-D, integral, 0 .. 2**31 - 1."""
    if isinstance(value, (str, bytes, bytearray)):
        raise _bad_tokens(name, "a 1-D integer array or a sequence of ints", type(value).__name__)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise _bad_tokens(name, "a 1-D integer array or a sequence of ints", repr(error)) from None
    if array.ndim != 1:
        raise _bad_tokens(name, "one dimension", f"{array.ndim} dimensions")
    if array.size == 0:
        return np.empty(0, np.int32)
    if array.dtype.kind not in "iu":
        raise _bad_tokens(name, "an integer dtype", str(array.dtype))
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > MAX_TOKEN_ID:
        raise _bad_tokens(name, f"ids in 0 .. {MAX_TOKEN_ID}", low if low < 0 else high)
    return np.ascontiguousarray(array, dtype=np.int32)


def pack_tokens(tokens: TokenArray) -> bytes:
    """int32[n] -> 4 n bytes, little-endian."""
    return tokens.astype(_INT32, copy=False).tobytes()


def unpack_tokens(data: bytes, name: str = "token_ids") -> TokenArray:
    """4 n bytes -> int32[n]; InvalidTokensError for a torn or negative id."""
    if len(data) % 4:
        raise _bad_tokens(name, "packed int32: a multiple of 4 bytes", f"{len(data)} bytes")
    tokens = np.frombuffer(data, dtype=_INT32)
    if tokens.size and int(tokens.min()) < 0:
        raise _bad_tokens(name, f"ids in 0 .. {MAX_TOKEN_ID}", int(tokens.min()))
    return cast(TokenArray, tokens.astype(np.int32, copy=False))


def _bad_tokens(name: str, expected: object, got: object) -> InvalidTokensError:
    return InvalidTokensError(f"{name} are not token ids", expected=expected, got=got)


# --------------------------------------------------------------------------------------------- drafts


def draft_to_proto(draft: Draft) -> types_pb2.Draft:
    """A draft for the wire; parents are left out where the draft is a chain."""
    n = len(draft)
    if n == 0:
        return types_pb2.Draft()
    chain = bool(np.array_equal(draft.parents, np.arange(-1, n - 1, dtype=np.int32)))
    return types_pb2.Draft(
        token_ids=pack_tokens(draft.token_ids),
        parents=b"" if chain else pack_tokens(draft.parents),
        probs=draft.probs.astype(_FLOAT32, copy=False).tobytes(),
        sources=draft.sources.tobytes(),
        match_lens=pack_tokens(draft.match_lens),
    )


def draft_from_proto(message: types_pb2.Draft) -> Draft:
    """A draft from the wire; ProtocolError names the first thing that no draft can be."""
    ids = _packed(message.token_ids, _INT32, "token_ids")
    n = len(ids)
    if n == 0:
        return Draft.empty()
    parents = _packed(message.parents, _INT32, "parents")
    if not len(parents):
        parents = np.arange(-1, n - 1, dtype=np.int32)
    probs = _packed(message.probs, _FLOAT32, "probs")
    sources = np.frombuffer(message.sources, np.uint8)
    match_lens = _packed(message.match_lens, _INT32, "match_lens")
    for name, array in (
        ("parents", parents),
        ("probs", probs),
        ("sources", sources),
        ("match_lens", match_lens),
    ):
        _require(len(array) == n, f"{n} {name}", len(array))
    _require(int(ids.min()) >= 0, "token ids >= 0", int(ids.min()))
    _require(
        bool(np.all((parents >= -1) & (parents < np.arange(n)))), "parents in -1 .. own index - 1", parents
    )
    _require(bool(np.all((probs >= 0) & (probs <= 1))), "probabilities in 0 .. 1", probs)
    _require(int(sources.max()) <= max(DraftSource), "known draft sources", int(sources.max()))
    _require(int(match_lens.min()) >= 0, "match lengths >= 0", int(match_lens.min()))
    return Draft(ids, parents, probs, sources, match_lens)


def _packed(data: bytes, dtype: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    _require(
        len(data) % dtype.itemsize == 0, f"{name} in units of {dtype.itemsize} bytes", f"{len(data)} bytes"
    )
    return np.frombuffer(data, dtype).astype(dtype.newbyteorder("="), copy=False)


def _require(holds: bool, expected: str, got: object) -> None:
    if not holds:
        raise ProtocolError("a draft is malformed", expected=expected, got=str(got)[:200])


# ---------------------------------------------------------------------------------- parameters of a step


def cost_to_proto(cost: VerifyCost) -> types_pb2.VerifyCost:
    """A checked verify cost for the wire. InvalidCostError: NaN, infinite, negative, empty or not numbers."""
    if isinstance(cost, (int, float)) and not isinstance(cost, bool):
        if not (np.isfinite(cost) and cost >= 0):
            raise InvalidCostError("verify_cost is not a cost", expected="a finite number >= 0", got=cost)
        return types_pb2.VerifyCost(per_token=float(cost))
    try:
        curve = np.asarray(cost, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        raise InvalidCostError(
            "verify_cost is not a cost", expected="a number or a curve of numbers", got=repr(cost)[:80]
        ) from None
    if curve.ndim == 0 and not isinstance(cost, (str, bytes, bool)):
        return cost_to_proto(float(curve))
    check_curve(curve)
    return types_pb2.VerifyCost(curve=types_pb2.CostCurve(cost=curve.astype(_FLOAT32).tobytes()))


def cost_from_proto(message: types_pb2.VerifyCost) -> float | FloatArray | None:
    """A verify cost from the wire; None where none was sent."""
    match message.WhichOneof("kind"):
        case "per_token":
            if not (np.isfinite(message.per_token) and message.per_token >= 0):
                raise InvalidCostError(
                    "verify_cost is not a cost", expected="a finite number >= 0", got=message.per_token
                )
            return float(message.per_token)
        case "curve":
            if len(message.curve.cost) % 4:
                raise InvalidCostError(
                    "verify_cost is not a curve",
                    expected="packed float32: a multiple of 4 bytes",
                    got=f"{len(message.curve.cost)} bytes",
                )
            curve = np.frombuffer(message.curve.cost, _FLOAT32).astype(np.float32, copy=False)
            check_curve(curve)
            return curve
    return None


def check_curve(curve: npt.NDArray[Any]) -> None:
    """A cost curve is 1-D, has entries for widths 0 and 1, and is finite and >= 0 from width 1 on."""
    if curve.ndim != 1 or curve.size < 2:
        raise InvalidCostError(
            "verify_cost is not a curve",
            expected="one dimension, two entries or more",
            got=f"shape {curve.shape}",
        )
    used = curve[1:]
    if not bool(np.all(np.isfinite(used) & (used >= 0))):
        bad = used[~(np.isfinite(used) & (used >= 0))][0]
        raise InvalidCostError("verify_cost is not a curve", expected="finite numbers >= 0", got=bad)


def tree_to_proto(tree: bool | str) -> pb.TreeMode:
    if not isinstance(tree, (bool, str)) or tree not in _TREE_MODES:
        raise InvalidInputError("tree is no tree mode", expected='False, True or "auto"', got=repr(tree)[:80])
    return _TREE_MODES[tree]


def tree_from_proto(mode: int) -> bool | str:
    for tree, number in _TREE_MODES.items():
        if number == mode:
            return tree
    raise InvalidInputError("tree is no tree mode", expected="a TreeMode", got=mode)


def verified_to_proto(verified: Verified | tuple[int, int, int]) -> pb.Verified:
    """Checked feedback for the wire: width >= 1, 0 <= accepted < width, a known source."""
    try:
        width, accepted, source = (
            (verified.width, verified.accepted, verified.source)
            if isinstance(verified, Verified)
            else verified
        )
        width, accepted, source = int(width), int(accepted), DraftSource(int(source))
    except (TypeError, ValueError):
        raise InvalidInputError(
            "verified is malformed", expected="(width, accepted, source)", got=repr(verified)[:80]
        ) from None
    _check_verified(width, accepted)
    return pb.Verified(width=width, accepted=accepted, source=cast(types_pb2.DraftSource, int(source)))


def verified_from_proto(message: pb.Verified) -> Verified:
    if int(message.source) not in {int(source) for source in DraftSource}:
        raise InvalidInputError("verified is malformed", expected="a known source", got=message.source)
    _check_verified(message.width, message.accepted)
    return Verified(message.width, message.accepted, DraftSource(message.source))


def _check_verified(width: int, accepted: int) -> None:
    if not (1 <= width <= MAX_TOKEN_ID and 0 <= accepted < width):
        raise InvalidInputError(
            "verified is malformed",
            expected="width >= 1 and 0 <= accepted < width",
            got=f"width {width}, accepted {accepted}",
        )


# --------------------------------------------------------------------------------------------- errors


def status_of(error: SuffixError) -> tuple[ErrorCode, str]:
    """Wire code and gRPC status name of an error: those of its nearest class in the table."""
    for cls in type(error).__mro__:
        if cls in STATUS:
            return STATUS[cls]
    raise AssertionError("SuffixError itself is in the table")  # pragma: no cover - the table has the root


def detail_from_error(error: SuffixError) -> types_pb2.ErrorDetail:
    code, _ = status_of(error)
    return types_pb2.ErrorDetail(
        code=cast(types_pb2.ErrorCode, int(code)),
        message=_text(error.message),
        expected=_text(error.expected),
        got=_text(error.got),
        remedy=_text(error.remedy),
    )


def _text(value: object) -> str:
    """Valid UTF-8 of bounded length: details travel in trailing metadata, which holds 8 KiB in all."""
    text = "" if value is None else str(value)
    return text.encode("utf-8", "backslashreplace").decode()[:1000]


def error_from_detail(detail: types_pb2.ErrorDetail) -> SuffixError:
    return error_from_wire(
        detail.code, detail.message, expected=detail.expected, got=detail.got, remedy=detail.remedy
    )
