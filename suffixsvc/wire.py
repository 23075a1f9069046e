"""Conversion between protobuf messages and the types of :mod:`suffixsvc.types` and :mod:`suffixsvc.errors`.

Shared by the service, the client and the draft worker. Received messages are validated here: a malformed
message raises a typed error and never a bare ValueError, KeyError or struct.error.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NoReturn, cast

import numpy as np
import numpy.typing as npt

from suffixsvc import errors
from suffixsvc.errors import InvalidCostError, InvalidInputError, ProtocolError, SuffixError
from suffixsvc.selection import Selection
from suffixsvc.types import Draft, DraftSource, FloatArray, TokenArray, Verified, VerifyCost
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import types_pb2
from suffixsvc.values import MAX_TOKEN_ID, as_cost_curve, as_tree, as_verified, not_tokens

#: trailing metadata of a failed call: a serialised ErrorDetail
ERROR_METADATA_KEY: Final = "suffixsvc-error-bin"

_INT32: Final = np.dtype("<i4")
_FLOAT32: Final = np.dtype("<f4")
_LAST_SOURCE: Final = max(DraftSource)
#: up to this length, Python checks tokens faster than numpy does; 0 on big-endian machines
_SHORT: Final = 64 if sys.byteorder == "little" else 0
#: the bits of float 1.0: a float is in 0 .. 1 if its bits, as an unsigned number, are at most these
_ONE_BITS: Final = 0x3F80_0000
#: the parents of a chain; shared, so read-only
_CHAIN: Final = np.arange(-1, 1023, dtype=np.int32)
_CHAIN.setflags(write=False)
_TREE_MODES: Final[dict[bool | str, pb.TreeMode]] = {
    False: pb.TREE_MODE_CHAIN,
    True: pb.TREE_MODE_TREE,
    "auto": pb.TREE_MODE_AUTO,
}
_TREES: Final[dict[int, bool | str]] = {int(number): tree for tree, number in _TREE_MODES.items()}


# --------------------------------------------------------------------------------------------- tokens


def pack_tokens(tokens: TokenArray) -> bytes:
    """int32[n] -> 4 n bytes, little-endian."""
    return (tokens if tokens.dtype == _INT32 else tokens.astype(_INT32)).tobytes()


def unpack_tokens(data: bytes, name: str = "token_ids") -> TokenArray:
    """4 n bytes -> int32[n]; InvalidTokensError for a torn or negative id."""
    tokens = np.frombuffer(data, dtype=_INT32) if len(data) % 4 == 0 else None
    if tokens is None or (tokens.size and int(tokens.min()) < 0):
        raise not_tokens(data, name)
    return cast(TokenArray, tokens.astype(np.int32, copy=False))


# --------------------------------------------------------------------------------------------- drafts


def draft_to_proto(draft: Draft) -> types_pb2.Draft:
    """A draft for the wire; parents are omitted where the draft is a chain."""
    n = len(draft)
    if n == 0:
        return types_pb2.Draft()
    parents = pack_tokens(draft.parents)
    return types_pb2.Draft(
        token_ids=pack_tokens(draft.token_ids),
        parents=b"" if parents == pack_tokens(_chain_parents(n)) else parents,
        probs=draft.probs.astype(_FLOAT32, copy=False).tobytes(),
        sources=draft.sources.tobytes(),
        match_lens=pack_tokens(draft.match_lens),
    )


def draft_from_proto(message: types_pb2.Draft) -> Draft:
    """A draft from the wire; ProtocolError names the first invalid field.

    Latency-critical: a draft is a few dozen bytes, so the checks avoid calls into numpy.
    """
    tokens, parents, probs = message.token_ids, message.parents, message.probs
    sources, match_lens = message.sources, message.match_lens
    n = len(sources)
    if not (
        0 < n <= _SHORT
        and not parents
        and len(tokens) == len(probs) == len(match_lens) == 4 * n
        and max(memoryview(tokens).cast("I")) <= MAX_TOKEN_ID
        and max(memoryview(match_lens).cast("I")) <= MAX_TOKEN_ID
        and max(memoryview(probs).cast("I")) <= _ONE_BITS
        and max(sources) <= _LAST_SOURCE
    ):
        return _draft_from_proto(message)
    return Draft(
        np.frombuffer(tokens, np.int32),
        _CHAIN[:n],
        np.frombuffer(probs, np.float32),
        np.frombuffer(sources, np.uint8),
        np.frombuffer(match_lens, np.int32),
    )


def _draft_from_proto(message: types_pb2.Draft) -> Draft:
    """The general case: long drafts, trees, malformed drafts."""
    ids = _packed(message.token_ids, _INT32, "token_ids")
    n = len(ids)
    if n == 0:
        return Draft.empty()
    chain = not message.parents
    parents = _chain_parents(n) if chain else _packed(message.parents, _INT32, "parents")
    probs = _packed(message.probs, _FLOAT32, "probs")
    sources = np.frombuffer(message.sources, np.uint8)
    match_lens = _packed(message.match_lens, _INT32, "match_lens")
    if not len(parents) == len(probs) == len(sources) == len(match_lens) == n:
        lengths = [len(array) for array in (parents, probs, sources, match_lens)]
        _malformed(f"{n} parents, probs, sources and match_lens", lengths)
    if not (probs.min() >= 0 and probs.max() <= 1):  # NaN fails both
        _malformed("probabilities in 0 .. 1", probs)
    if (ids | match_lens).min() < 0:
        _malformed("token ids and match lengths >= 0", min(ids.min(), match_lens.min()))
    if max(message.sources) > _LAST_SOURCE:
        _malformed("known draft sources", max(message.sources))
    if not (chain or bool(((parents >= -1) & (parents < np.arange(n))).all())):
        _malformed("parents in -1 .. own index - 1", parents)
    return Draft(ids, parents, probs, sources, match_lens)


def _chain_parents(n: int) -> TokenArray:
    return _CHAIN[:n] if n <= len(_CHAIN) else np.arange(-1, n - 1, dtype=np.int32)


def _packed(data: bytes, dtype: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    if len(data) % dtype.itemsize:
        _malformed(f"{name} in units of {dtype.itemsize} bytes", f"{len(data)} bytes")
    array = np.frombuffer(data, dtype)
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="))


def _malformed(expected: str, got: object) -> NoReturn:
    raise ProtocolError("a draft must be well-formed", expected=expected, got=str(got)[:200])


# ---------------------------------------------------------------------------------- parameters of a step


def cost_to_proto(cost: VerifyCost) -> types_pb2.VerifyCost:
    """A verify cost for the wire. InvalidCostError: NaN, infinite, negative, empty or not numbers."""
    if type(cost) is float and 0 <= cost < math.inf:
        return _cost_per_token(cost)
    as_cost_curve(cost, 0)
    array = np.asarray(cost)
    if array.ndim == 0:
        return types_pb2.VerifyCost(per_token=float(array))
    return types_pb2.VerifyCost(curve=types_pb2.CostCurve(cost=array.astype(_FLOAT32).tobytes()))


@lru_cache(maxsize=64)  # callers repeat a few costs; nothing changes a message that was sent
def _cost_per_token(cost: float) -> types_pb2.VerifyCost:
    return types_pb2.VerifyCost(per_token=cost)


def cost_from_proto(message: types_pb2.VerifyCost) -> float | FloatArray | None:
    """A validated verify cost from the wire; None where the field is not set. Raises InvalidCostError."""
    cost: float | FloatArray
    match message.WhichOneof("kind"):
        case "per_token":
            cost = message.per_token
        case "curve":
            if len(message.curve.cost) % 4:
                raise InvalidCostError(
                    "verify_cost must be packed float32",
                    expected="a multiple of 4 bytes",
                    got=f"{len(message.curve.cost)} bytes",
                )
            cost = np.frombuffer(message.curve.cost, _FLOAT32).astype(np.float32, copy=False)
        case _:
            return None
    as_cost_curve(cost, 0)
    return cost


def tree_to_proto(tree: bool | str) -> pb.TreeMode:
    """A tree mode for the wire. InvalidInputError unless it is False, True or "auto"."""
    return _TREE_MODES[as_tree(tree)]


def tree_from_proto(mode: int) -> bool | str:
    """A tree mode from the wire. InvalidInputError for an unknown enum value."""
    tree = _TREES.get(mode)
    if tree is None:
        raise InvalidInputError("tree must be a tree mode", expected="a TreeMode", got=mode)
    return tree


def verified_to_proto(verified: Verified | tuple[int, int, int]) -> pb.Verified:
    """Feedback for the wire; InvalidInputError unless width >= 1, 0 <= accepted < width, a known source."""
    checked = as_verified(verified)
    # no service uses the source, and earlier ones refuse a number that they do not know
    known = checked.source if checked.source <= DraftSource.PROMPT_LOOKUP else DraftSource.NONE
    source = cast(types_pb2.DraftSource, int(known))
    return pb.Verified(width=checked.width, accepted=checked.accepted, source=source)


def verified_from_proto(message: pb.Verified) -> Verified:
    """Validated feedback from the wire. Raises InvalidInputError as :func:`verified_to_proto`."""
    return as_verified((message.width, message.accepted, int(message.source)))


# --------------------------------------------------------------------------------------------- errors


#: class -> (wire code, gRPC status name)
STATUS: Final[dict[type[errors.SuffixError], tuple[types_pb2.ErrorCode, str]]] = {
    errors.SuffixError: (types_pb2.ERROR_CODE_INTERNAL, "INTERNAL"),
    errors.InvalidInputError: (types_pb2.ERROR_CODE_INVALID_INPUT, "INVALID_ARGUMENT"),
    errors.InvalidTokensError: (types_pb2.ERROR_CODE_INVALID_TOKENS, "INVALID_ARGUMENT"),
    errors.InvalidCostError: (types_pb2.ERROR_CODE_INVALID_COST, "INVALID_ARGUMENT"),
    errors.InvalidNamespaceError: (types_pb2.ERROR_CODE_INVALID_NAMESPACE, "INVALID_ARGUMENT"),
    errors.InvalidLabelsError: (types_pb2.ERROR_CODE_INVALID_LABELS, "INVALID_ARGUMENT"),
    errors.InvalidConfigError: (types_pb2.ERROR_CODE_INVALID_CONFIG, "INVALID_ARGUMENT"),
    errors.GrammarError: (types_pb2.ERROR_CODE_INVALID_CONFIG, "INVALID_ARGUMENT"),
    errors.AppendError: (types_pb2.ERROR_CODE_INVALID_INPUT, "OUT_OF_RANGE"),
    errors.AppendConflict: (types_pb2.ERROR_CODE_APPEND_CONFLICT, "ABORTED"),
    errors.AppendGap: (types_pb2.ERROR_CODE_APPEND_GAP, "OUT_OF_RANGE"),
    errors.SessionError: (types_pb2.ERROR_CODE_UNKNOWN_SESSION, "NOT_FOUND"),
    errors.UnknownSessionError: (types_pb2.ERROR_CODE_UNKNOWN_SESSION, "NOT_FOUND"),
    errors.SessionClosedError: (types_pb2.ERROR_CODE_SESSION_CLOSED, "FAILED_PRECONDITION"),
    errors.StepSequenceError: (types_pb2.ERROR_CODE_STEP_SEQUENCE, "ABORTED"),
    errors.UnknownNamespaceError: (types_pb2.ERROR_CODE_UNKNOWN_NAMESPACE, "NOT_FOUND"),
    errors.NamespaceInUseError: (types_pb2.ERROR_CODE_NAMESPACE_IN_USE, "FAILED_PRECONDITION"),
    errors.UnknownOutputError: (types_pb2.ERROR_CODE_UNKNOWN_OUTPUT, "NOT_FOUND"),
    errors.NoStoreError: (types_pb2.ERROR_CODE_NO_STORE, "FAILED_PRECONDITION"),
    errors.UnknownSegmentError: (types_pb2.ERROR_CODE_UNKNOWN_SEGMENT, "NOT_FOUND"),
    errors.TokenizerMismatchError: (types_pb2.ERROR_CODE_TOKENIZER_MISMATCH, "FAILED_PRECONDITION"),
    errors.UnauthenticatedError: (types_pb2.ERROR_CODE_UNAUTHENTICATED, "UNAUTHENTICATED"),
    errors.AccessError: (types_pb2.ERROR_CODE_PERMISSION_DENIED, "PERMISSION_DENIED"),
    errors.PermissionDeniedError: (types_pb2.ERROR_CODE_PERMISSION_DENIED, "PERMISSION_DENIED"),
    errors.LimitExceededError: (types_pb2.ERROR_CODE_LIMIT_EXCEEDED, "RESOURCE_EXHAUSTED"),
    errors.StoreError: (types_pb2.ERROR_CODE_STORE, "INTERNAL"),
    errors.StoreLockedError: (types_pb2.ERROR_CODE_STORE_LOCKED, "FAILED_PRECONDITION"),
    errors.StoreFullError: (types_pb2.ERROR_CODE_STORE_FULL, "RESOURCE_EXHAUSTED"),
    errors.StoreCorruptError: (types_pb2.ERROR_CODE_STORE_CORRUPT, "DATA_LOSS"),
    errors.SegmentCorruptError: (types_pb2.ERROR_CODE_STORE_CORRUPT, "DATA_LOSS"),
    errors.SegmentCancelledError: (types_pb2.ERROR_CODE_STORE, "INTERNAL"),
    errors.ManifestError: (types_pb2.ERROR_CODE_STORE, "INTERNAL"),
    errors.StoreForeignError: (types_pb2.ERROR_CODE_STORE_FOREIGN, "FAILED_PRECONDITION"),
    errors.StoreClosedError: (types_pb2.ERROR_CODE_STORE_CLOSED, "UNAVAILABLE"),
    errors.IndexCorruptError: (types_pb2.ERROR_CODE_INDEX_CORRUPT, "DATA_LOSS"),
    errors.ServiceError: (types_pb2.ERROR_CODE_UNAVAILABLE, "UNAVAILABLE"),
    errors.ServiceUnavailableError: (types_pb2.ERROR_CODE_UNAVAILABLE, "UNAVAILABLE"),
    errors.ServiceTimeoutError: (types_pb2.ERROR_CODE_TIMEOUT, "DEADLINE_EXCEEDED"),
    errors.ProtocolError: (types_pb2.ERROR_CODE_PROTOCOL, "INVALID_ARGUMENT"),
    errors.UnsupportedVersionError: (types_pb2.ERROR_CODE_UNSUPPORTED_VERSION, "FAILED_PRECONDITION"),
    errors.ListenError: (types_pb2.ERROR_CODE_LISTEN, "FAILED_PRECONDITION"),
    errors.ModelError: (types_pb2.ERROR_CODE_MODEL, "FAILED_PRECONDITION"),
    errors.ModelNotFoundError: (types_pb2.ERROR_CODE_MODEL_NOT_FOUND, "NOT_FOUND"),
    errors.ModelCorruptError: (types_pb2.ERROR_CODE_MODEL_CORRUPT, "DATA_LOSS"),
    errors.VocabularyMismatchError: (types_pb2.ERROR_CODE_VOCABULARY_MISMATCH, "FAILED_PRECONDITION"),
    errors.MissingExtraError: (types_pb2.ERROR_CODE_MISSING_EXTRA, "UNIMPLEMENTED"),
}

#: wire code -> the class a client raises for it (the most specific one that has the code).
_CLASS_OF: Final[dict[int, type[SuffixError]]] = {
    **{code: cls for cls, (code, _) in reversed(STATUS.items())},
    types_pb2.ERROR_CODE_UNKNOWN_SESSION: errors.UnknownSessionError,
    types_pb2.ERROR_CODE_UNAVAILABLE: errors.ServiceUnavailableError,
    types_pb2.ERROR_CODE_PERMISSION_DENIED: errors.PermissionDeniedError,
}


def selection_to_proto(selection: Selection) -> pb.Selection:
    """A selection for the wire."""
    return pb.Selection(
        namespace=selection.namespace,
        output_ids=selection.output_ids,
        session_id=selection.session_id,
        labels=selection.labels,
        principal=selection.principal,
        older_than_seconds=selection.older_than_seconds,
    )


def selection_from_proto(message: pb.Selection) -> Selection:
    """A selection from the wire; InvalidInputError names the first malformed criterion."""
    return Selection(
        namespace=message.namespace,
        output_ids=tuple(message.output_ids) or None,
        session_id=message.session_id,
        labels=dict(message.labels),
        principal=message.principal if message.HasField("principal") else None,
        older_than_seconds=message.older_than_seconds if message.HasField("older_than_seconds") else None,
    )


def status_of(error: SuffixError) -> tuple[types_pb2.ErrorCode, str]:
    """Wire code and gRPC status name of an error: those of its nearest base class in the table."""
    return next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)


def detail_from_error(error: SuffixError) -> types_pb2.ErrorDetail:
    """An error for the wire, its texts truncated to 1000 characters."""
    return types_pb2.ErrorDetail(
        code=status_of(error)[0],
        message=_text(error.message),
        expected=_text(error.expected),
        got=_text(error.got),
        remedy=_text(error.remedy),
        retry_after_seconds=getattr(error, "retry_after_s", None) or 0.0,
    )


def error_metadata(error: SuffixError) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata of a call that an error ended."""
    return ((ERROR_METADATA_KEY, detail_from_error(error).SerializeToString()),)


def error_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> SuffixError | None:
    """The error in the trailing metadata of a call; None if it has none.

    Raises:
        DecodeError: it cannot be parsed.
    """
    for key, value in metadata:
        if key == ERROR_METADATA_KEY:
            data = value.encode() if isinstance(value, str) else value
            return error_from_detail(types_pb2.ErrorDetail.FromString(data))
    return None


def _text(value: object) -> str:
    """Valid UTF-8 of bounded length: details are sent in trailing metadata, which is limited to 8 KiB."""
    text = "" if value is None else str(value)
    return text.encode("utf-8", "backslashreplace").decode()[:1000]


def error_from_detail(detail: types_pb2.ErrorDetail) -> SuffixError:
    """The typed error that a message from the wire describes; a plain SuffixError for an unknown code."""
    cls = _CLASS_OF.get(detail.code, SuffixError)
    error = cls.__new__(cls)
    SuffixError.__init__(
        error,
        detail.message,
        expected=detail.expected or None,
        got=detail.got or None,
        remedy=detail.remedy or None,
    )
    if isinstance(error, errors.LimitExceededError) and 0 < detail.retry_after_seconds < math.inf:
        error.retry_after_s = detail.retry_after_seconds
    if isinstance(error, errors.AppendConflict):
        error.position = _last_int(detail.message)
    if isinstance(error, errors.AppendGap):
        error.expected_position, error.got_position = _last_int(detail.expected), _last_int(detail.got)
    return error


def _last_int(text: str) -> int:
    words = text.replace(":", " ").split()
    digits = [word for word in words if word.lstrip("-").isdecimal() and len(word) <= 19]
    return int(digits[-1]) if digits else -1
