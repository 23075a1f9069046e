"""Errors of admission: which text does not fit, into which limit, and which setting raises it."""

from __future__ import annotations

from suffixsvc.engine.limits.size_estimates import (
    PREDICTED_BYTES_PER_OUTPUT,
    PREDICTED_BYTES_PER_POSITION,
    SESSIONS_SHARE,
)
from suffixsvc.errors import LimitExceededError

__all__ = ["cache_full", "namespace_full", "outputs_too_large", "session_too_large"]


def outputs_too_large(path: str, outputs: int, size: int, limit: int) -> LimitExceededError:
    """The outputs of one call exceed a limit even without all other outputs."""
    what = "an output" if outputs == 1 else f"{outputs} outputs together"
    return LimitExceededError(
        f"{what} must be smaller than the limit of namespace {path}",
        expected=f"at most {limit} bytes",
        got=f"{size} bytes: {PREDICTED_BYTES_PER_OUTPUT} and {PREDICTED_BYTES_PER_POSITION} per token",
        remedy="Add fewer or shorter outputs at a time, or raise max_bytes in the namespace's policy"
        " (Limits.max_cache_bytes for the whole cache).",
    )


def namespace_full(path: str, size: int, limit: int, pinned: int) -> LimitExceededError:
    """The outputs do not fit besides the pinned outputs of their namespace."""
    return LimitExceededError(
        f"namespace {path} is full of pinned outputs",
        expected=f"at most {limit} bytes",
        got=f"{pinned} pinned bytes and {size} more",
        remedy="Forget outputs, unpin the namespace, or raise max_bytes in its policy; nothing was evicted.",
    )


def cache_full(path: str, size: int, limit: int, used: int, evictable: int) -> LimitExceededError:
    """The cache is full, and the namespace has too few outputs to evict for a write."""
    return LimitExceededError(
        f"the cache is full and namespace {path} has too few outputs to evict",
        expected=f"at most {limit} bytes of all namespaces, 1/{SESSIONS_SHARE} of them for live sessions "
        "(Limits.max_cache_bytes)",
        got=f"{used} bytes, {max(0, evictable)} of them evictable in this namespace, and {size} more",
        remedy="Lower the limits of other namespaces or raise this one; nothing was evicted.",
    )


def session_too_large(
    path: str, tokens: int, size: int, limit: int, used: int, evictable: int
) -> LimitExceededError:
    """The cache is full, and the namespace has too few outputs to evict for a session's tokens."""
    return LimitExceededError(
        f"{tokens} tokens of a session in namespace {path} do not fit in memory",
        expected=f"at most {limit} bytes of outputs and live sessions (Limits.max_cache_bytes)",
        got=f"{used} bytes of outputs, {evictable} of them evictable in this namespace, and {size} more",
        remedy="Close sessions, open with a shorter prompt, or raise the limit; live sessions go on.",
    )
