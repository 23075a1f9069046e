"""Helpers of the tests of the engine."""

from __future__ import annotations

from suffixsvc import SuffixCache

SQL = list(range(100, 160))


def write(
    cache: SuffixCache, tokens: list[int], path: str = "acme/m", prompt: list[int] | None = None
) -> int:
    """Write an output by a session; returns its id."""
    session = cache.namespace(path).open_session(prompt or [1, 2, 3])
    session.step(tokens, max_draft_tokens=0)
    output_id = session.close()
    assert output_id is not None
    return output_id
