"""Errors of the limits: what did not fit, where, and which setting makes room for it."""

from __future__ import annotations

from suffixsvc.engine.prices import PREDICTED_BYTES_PER_OUTPUT, PREDICTED_BYTES_PER_POSITION, SESSIONS_SHARE
from suffixsvc.errors import LimitExceededError

__all__ = ["cache_full", "namespace_full", "no_room_for_session", "outputs_too_large"]


def outputs_too_large(path: str, outputs: int, coming: int, most: int) -> LimitExceededError:
    what = "an output is" if outputs == 1 else f"{outputs} outputs are together"
    return LimitExceededError(
        f"{what} larger than namespace {path} may ever hold",
        expected=f"at most {most} bytes",
        got=f"{coming} bytes: {PREDICTED_BYTES_PER_OUTPUT} and {PREDICTED_BYTES_PER_POSITION} a token",
        remedy="Add fewer or shorter outputs at a time, or raise max_bytes in the namespace's policy"
        " (Limits.max_cache_bytes for the whole cache).",
    )


def namespace_full(path: str, coming: int, limit: int, staying: int) -> LimitExceededError:
    return LimitExceededError(
        f"namespace {path} is full of what is pinned",
        expected=f"at most {limit} bytes",
        got=f"{staying} bytes that stay and {coming} more",
        remedy="Forget outputs, unpin the namespace, or raise max_bytes in its policy; nothing was evicted.",
    )


def cache_full(path: str, coming: int, whole: int, held: int, own: int) -> LimitExceededError:
    return LimitExceededError(
        f"the cache is full and namespace {path} has too little of its own to evict",
        expected=f"at most {whole} bytes of all namespaces, 1/{SESSIONS_SHARE} of them for live sessions "
        "(Limits.max_cache_bytes)",
        got=f"{held} bytes, {max(0, own)} of them its own and evictable, and {coming} more",
        remedy="Lower the limits of other namespaces or raise this one; nothing was evicted.",
    )


def no_room_for_session(
    path: str, tokens: int, coming: int, whole: int, held: int, own: int
) -> LimitExceededError:
    return LimitExceededError(
        f"{tokens} tokens of a session in namespace {path} do not fit in memory",
        expected=f"at most {whole} bytes of outputs and live sessions (Limits.max_cache_bytes)",
        got=f"{held} bytes of outputs, {own} of them this namespace's and evictable, and {coming} more",
        remedy="Close sessions, open with a shorter prompt, or raise the limit; live sessions go on.",
    )
