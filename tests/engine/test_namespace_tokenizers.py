"""Tokenizers of namespaces: bound once, and stored in the order of the writes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from namespace_testing import TEXT

from suffixsvc import Limits, Policies, Policy, SuffixCache
from suffixsvc.engine.namespace import Namespace
from suffixsvc.errors import (
    InvalidTokensError,
    LimitExceededError,
    StoreError,
    TokenizerMismatchError,
    UnknownNamespaceError,
)
from support.engine_parts import parts_of


@pytest.fixture
def cache(place: Path | None) -> Iterator[SuffixCache]:
    policies = Policies({"small": Policy(max_bytes=100_000)})
    with SuffixCache(place, policies=policies, limits=Limits(seal_tokens=60), background=False) as opened:
        yield opened
        opened.check()


def stored_tokenizers(cache: SuffixCache) -> dict[str, str]:
    return {record.path: record.tokenizer for record in parts_of(cache).store.namespaces()}


@pytest.mark.parametrize("kept", [True, False])
def test_a_tokenizer_that_is_bound_while_the_first_write_is_in_flight_is_stored(
    place: Path | None, cache: SuffixCache, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """Regression: the write was submitted without a tokenizer, and the store did not have the namespace
    yet: the tokenizer was bound in memory only, and after a restart another one could be bound."""
    append = parts_of(cache).store.append
    begun, go_on, bound = threading.Event(), threading.Event(), threading.Event()

    def late(*args: Any, **more: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        if not kept:
            raise StoreError("injected")
        return append(*args, **more)

    def write() -> None:
        with contextlib.suppress(StoreError):
            cache.namespace("a").add_output(TEXT)

    def bind() -> None:
        held.append(cache.namespace("a", "a-tokenizer"))
        bound.set()

    held: list[Namespace] = []
    monkeypatch.setattr(parts_of(cache).store, "append", late)
    threads = [threading.Thread(target=write), threading.Thread(target=bind)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    early = bound.wait(0.2)
    go_on.set()
    for thread in threads:
        thread.join()
    assert not early, "bound before it was known whether the namespace is stored"
    assert held[0].tokenizer == "a-tokenizer"
    assert stored_tokenizers(cache) == ({"a": "a-tokenizer"} if kept else {})
    monkeypatch.undo()
    held[0].add_output(TEXT)
    assert stored_tokenizers(cache) == {"a": "a-tokenizer"}


def test_a_tokenizer_that_could_not_be_stored_is_stored_later(
    place: Path | None, cache: SuffixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the store failed to store the tokenizer of a namespace without one. Memory had it from then
    on, so no later call stored it, until a restart lost it."""

    def fails(*_: object) -> None:
        raise StoreError("injected")

    cache.namespace("a").add_output(TEXT)
    for _ in range(2):
        with monkeypatch.context() as broken:
            broken.setattr(parts_of(cache).store, "add_namespace", fails)
            with pytest.raises(StoreError, match="injected"):
                cache.namespace("a", "a-tokenizer")
    assert stored_tokenizers(cache) == {"a": ""}
    cache.namespace("a", "a-tokenizer")
    assert stored_tokenizers(cache) == {"a": "a-tokenizer"}
    with monkeypatch.context() as broken:
        broken.setattr(parts_of(cache).store, "add_namespace", fails)
        cache.namespace("a", "a-tokenizer")  # a stored tokenizer is not stored again


def test_the_next_write_stores_a_tokenizer_that_could_not_be_stored(
    place: Path | None, cache: SuffixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the write's transaction, for a caller that does not bind it again."""

    def fails(*_: object) -> None:
        raise StoreError("injected")

    namespace = cache.namespace("a")
    namespace.add_output(TEXT)
    with monkeypatch.context() as broken:
        broken.setattr(parts_of(cache).store, "add_namespace", fails)
        with pytest.raises(StoreError, match="injected"):
            cache.namespace("a", "a-tokenizer")
    namespace.add_output(TEXT)
    assert stored_tokenizers(cache) == {"a": "a-tokenizer"}


def test_a_tokenizer_that_came_with_the_first_write_is_not_stored_twice(
    cache: SuffixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise StoreError("injected")

    cache.namespace("a", "a-tokenizer").add_output(TEXT)
    monkeypatch.setattr(parts_of(cache).store, "add_namespace", fails)
    cache.namespace("a", "a-tokenizer").add_output(TEXT)
    assert stored_tokenizers(cache) == {"a": "a-tokenizer"}


def test_what_is_refused_binds_no_tokenizer(cache: SuffixCache) -> None:
    """An open or a write with a tokenizer binds it if it is accepted, as the service's do."""
    cache.namespace("a").add_output(TEXT)
    wrong = cache.namespace("a", "wrong", bind=False)
    with pytest.raises(UnknownNamespaceError):
        wrong.open_session(TEXT, reads=["nowhere"])
    with pytest.raises(LimitExceededError):
        wrong.open_session(range((1 << 20) + 1))
    with pytest.raises(InvalidTokensError):
        wrong.add_output([])
    assert cache.namespace("a").tokenizer == ""
    cache.namespace("a", "right", bind=False).open_session(TEXT).close()
    assert stored_tokenizers(cache) == {"a": "right"}
    for refused in (lambda: wrong.open_session(TEXT), lambda: wrong.add_output(TEXT)):
        with pytest.raises(TokenizerMismatchError):
            refused()
    assert cache.stats().sessions == 0


def test_an_accepted_write_stores_its_tokenizer(cache: SuffixCache) -> None:
    for path in ("a", "b"):
        cache.namespace(path).add_output(TEXT)
    cache.namespace("a", "a-tokenizer", bind=False).add_output(TEXT)
    cache.namespace("b", "b-tokenizer", bind=False)
    cache.namespace("c", "c-tokenizer", bind=False).add_output(TEXT)
    assert stored_tokenizers(cache) == {"a": "a-tokenizer", "b": "", "c": "c-tokenizer"}
