"""Errors of sessions: steps that the core rejected, closed sessions, sessions that are too long."""

from __future__ import annotations

from suffixsvc import core
from suffixsvc.errors import AppendConflict, AppendGap, LimitExceededError, SessionClosedError, SuffixError
from suffixsvc.values import not_tokens

__all__ = ["closed_error", "refusal_error", "too_long_error"]


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
    raise RuntimeError(f"the core failed: {refusal.reason}")


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
