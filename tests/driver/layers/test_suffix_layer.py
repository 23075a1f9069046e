"""A private suffix layer: it drafts from the namespace, and gives it nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import LimitExceededError
from suffixsvc.types import TokenIds
from suffixsvc_driver.drafts.events import QueryLayer
from suffixsvc_driver.layers.suffix import SuffixLayer

PROMPT = [1, 2, 3]
TEXT = list(range(100, 140))
QUERY = QueryLayer("suffix", 8)


@pytest.fixture
def cache() -> Iterator[SuffixCache]:
    with SuffixCache() as cache:
        yield cache


def drafted(layer: SuffixLayer, new: list[int]) -> list[int]:
    tokens: list[int] = layer.draft(new, QUERY).token_ids.tolist()
    return tokens


def test_a_private_layer_reads_the_namespace_and_writes_nothing_to_it(cache: SuffixCache) -> None:
    namespace = cache.namespace("n")
    layers = []
    for private in (True, True, False, True):
        layer = SuffixLayer(namespace.open_session(PROMPT), private=private)
        layer.begin(PROMPT, 0.02)
        found = [drafted(layer, TEXT[at : at + 4]) for at in range(0, 32, 4)]
        layers.append((layer, found))
    *before, after = [found for _, found in layers]
    assert not any(map(any, before)), "no session drafts from the private ones before it"
    assert after[3] == TEXT[16:24], "it drafts from the one that is not private"
    for layer, _ in layers:
        layer.end(TEXT[32:], None)
        assert layer.session.token_ids().tolist() == [*PROMPT, *TEXT]  # type: ignore[attr-defined]
        layer.session.close()
    assert namespace.stats().outputs == 1


def test_tokens_that_could_not_be_appended_are_appended_with_the_next_ones(
    cache: SuffixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = cache.namespace("n").open_session(PROMPT)
    layer = SuffixLayer(session, private=True)
    layer.begin(PROMPT, 0.02)

    def refuse(_token_ids: TokenIds) -> None:
        raise LimitExceededError("full")

    with monkeypatch.context() as patched:
        patched.setattr(session, "append_context", refuse)
        with pytest.raises(LimitExceededError):
            layer.draft(TEXT[:3], QUERY)
    layer.draft(TEXT[3:5], QUERY)
    assert session.token_ids().tolist() == [*PROMPT, *TEXT[:5]]
