"""Helpers of the tests of the Arctic classes."""

from __future__ import annotations

from typing import Any

from suffixsvc.compat.arctic import SuffixDecodingCache

SQL = list(range(100, 160))

PROMPT = [1, 2, 3, 4, 5]


def wrote(
    cache: SuffixDecodingCache, req_id: Any, tokens: list[int], prompt: list[int] | None = None
) -> None:
    cache.start_request(req_id, prompt or PROMPT)
    cache.add_active_response(req_id, tokens)
    cache.stop_request(req_id)


def drafted(cache: SuffixDecodingCache, prompt: list[int], written: list[int], **how: Any) -> list[int]:
    """Draft tokens of a new request with this text, which is removed afterwards."""
    cache.start_request("probe", prompt)
    cache.add_active_response("probe", written)
    draft = cache.speculate("probe", [*prompt, *written], **how)
    if "probe" in cache.cached_requests:
        cache.evict_cached_response("probe")
    cache.stop_request("probe")
    return draft.token_ids
