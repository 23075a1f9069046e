"""Arguments of a session's calls in the form that the core takes, and the errors of calls that it rejects."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from suffixsvc import core
from suffixsvc.errors import (
    AppendConflict,
    AppendGap,
    LimitExceededError,
    SessionClosedError,
    SuffixError,
)
from suffixsvc.types import TokenArray, Verified, VerifyCost
from suffixsvc.values import as_cost_curve, as_int, as_tree, as_verified, not_tokens

#: longest curve that is cached
_CACHED: Final = 1 << 12
#: positions are clamped to this: beyond every text, and an int64
MAX_POSITION: Final = 1 << 62


class DraftParams:
    """Converts the parameters of a session's drafts: length, cost and shape. Thread-safe.

    Args:
        limit: largest length of a draft.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        #: the cost that the session was last asked with; replaced whole
        self._known: tuple[VerifyCost | None, core.Curve | None] = None, None

    def of(self, max_draft_tokens: int, cost: VerifyCost, tree: bool | str) -> tuple[int, core.Curve, bool]:
        """Return the length of the draft, at most the limit, its native cost, and whether it is a tree.

        Raises:
            InvalidCostError, InvalidInputError.
        """
        width = min(as_int("max_draft_tokens", max_draft_tokens, 0), self._limit)
        curve, mode = self._native(cost), as_tree(tree)
        return width, curve, mode if type(mode) is bool else curve.trees_pay(width)

    def _native(self, cost: VerifyCost) -> core.Curve:
        """:func:`native_curve`; an array that cannot be written to and is no view is converted once.

        Such an array may still have a view that was made while it could be written to; nothing tells.
        """
        if type(cost) is not np.ndarray or cost.flags.writeable or cost.base is not None:
            return native_curve(cost, self._limit)
        known, curve = self._known
        if cost is not known or curve is None:
            curve = native_curve(cost, self._limit)
            self._known = cost, curve
        return curve


def native_curve(cost: VerifyCost, max_draft_tokens: int) -> core.Curve:
    """A verify cost in native form, for drafts of at most ``max_draft_tokens``. Raises InvalidCostError."""
    if isinstance(cost, float):
        return _known(cost, "", max_draft_tokens)
    if type(cost) is np.ndarray and cost.ndim == 1 and cost.dtype.kind == "f" and cost.nbytes <= _CACHED:
        # by value: the array can be written to meanwhile
        return _known(cost.tobytes(), cost.dtype.str, max_draft_tokens)
    return _converted(cost, max_draft_tokens)


@lru_cache(maxsize=64)  # sessions alternate between a few costs; a curve is immutable
def _known(cost: float | bytes, dtype: str, max_draft_tokens: int) -> core.Curve:
    return _converted(np.frombuffer(cost, dtype) if isinstance(cost, bytes) else cost, max_draft_tokens)


def _converted(cost: VerifyCost, max_draft_tokens: int) -> core.Curve:
    return core.Curve(as_cost_curve(cost, max_draft_tokens)[: max_draft_tokens + 1])


def as_feedback(verified: Verified | tuple[int, int, int]) -> tuple[int, int]:
    """(width, accepted) of what was sent to the target. Raises InvalidInputError."""
    checked = as_verified(verified)
    return checked.width, checked.accepted


def as_position(at: int) -> int:
    """An absolute position, at most MAX_POSITION. InvalidInputError unless it is an int >= 0."""
    return min(as_int("at", at, 0), MAX_POSITION)


def overlap(text: TokenArray, context: TokenArray) -> int:
    """Length of the longest suffix of ``text`` that is a prefix of ``context``.

    Considers the last 64 occurrences of the text's last token in the context only.
    """
    if not len(text):
        return 0
    ends = np.flatnonzero(context[: len(text)] == text[-1])[::-1][:64] + 1
    return next((int(n) for n in ends if np.array_equal(text[-n:], context[:n])), 0)


def refusal_error(refusal: core.Refusal, at: int | None, token_bytes: bytes, max_tokens: int) -> SuffixError:
    """The error for a step that the core rejected.

    Args:
        refusal: why the core rejected it.
        at: the position that the step was sent with.
        token_bytes: its tokens, packed little-endian int32.
        max_tokens: limit of a session's length.

    Raises:
        RuntimeError: the core failed.
    """
    match refusal.status:
        case core.StepStatus.INVALID_TOKENS:
            return not_tokens(token_bytes, "new_token_ids")
        case core.StepStatus.CLOSED:
            return closed_error()
        case core.StepStatus.GAP:
            return AppendGap(expected=refusal.length, got=-1 if at is None else int(at))
        case core.StepStatus.CONFLICT:
            return AppendConflict(
                refusal.position, expected=f"token {refusal.have}", got=f"token {refusal.got}"
            )
        case core.StepStatus.FULL:
            return too_long_error(refusal.length, max_tokens)
        case core.StepStatus.PROBING:
            return _probing_error(refusal)
    raise RuntimeError(f"the core failed: {refusal.reason}")


def _probing_error(refusal: core.Refusal) -> LimitExceededError:
    error = LimitExceededError(
        "sessions of a principal must append what their model wrote after drafts, which must match about as "
        "often as the drafts predict",
        expected=f"at most {refusal.limit:g} unmatched tokens (max_unmatched_tokens of its policy)",
        got=f"{refusal.excess:.1f}",
        remedy=f"Send the step again in {refusal.retry_after:.3f} s, or let an operator raise the limit.",
    )
    error.retry_after_s = refusal.retry_after
    return error


def closed_error() -> SessionClosedError:
    """The error for a call of a closed session."""
    return SessionClosedError("the session is closed", remedy="Open a new session.")


def too_long_error(tokens: int, max_tokens: int) -> LimitExceededError:
    """The error for a session that would hold ``tokens`` tokens."""
    return LimitExceededError(
        f"a session must hold at most {max_tokens} tokens (Limits.max_session_tokens)",
        got=tokens,
        remedy="Open it with a shorter prompt, or raise the limit.",
    )
