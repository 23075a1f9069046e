"""What the engine's errors say: the field, the condition that it must meet, and what came instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from suffixsvc import Limits, SuffixCache
from suffixsvc.errors import InvalidConfigError, InvalidInputError, SuffixError, UnknownNamespaceError
from suffixsvc.service.handlers import Handlers
from suffixsvc.v1 import suffix_cache_pb2 as pb


def stats_of_service(cache: SuffixCache, path: str) -> None:
    Handlers(cache, Limits(), durable=False, version="").get_stats(pb.GetStatsRequest(namespace=path))


UNKNOWN: dict[str, Callable[[SuffixCache, str], object]] = {
    "delete": lambda cache, path: cache.delete_namespace(path),
    "seal": lambda cache, path: cache.seal(path),
    "read": lambda cache, path: cache.namespace("here").open_session([1], reads=[path]),
    "read by default": lambda cache, path: cache.read_by_default([path]),
    "store": lambda cache, path: cache._store.get_state(path, "any"),
    "service": stats_of_service,
}


@pytest.mark.parametrize("use", UNKNOWN.values(), ids=UNKNOWN)
@pytest.mark.parametrize("folder", [True, False], ids=["folder", "memory"])
def test_a_namespace_that_is_not_there_is_named_alike_everywhere(
    use: Callable[[SuffixCache, str], object], folder: bool, tmp_path: Any
) -> None:
    """Six places built this error, each in its own words; some said nothing of what to do."""
    with SuffixCache(tmp_path / "d" if folder else None, background=False) as cache:
        with pytest.raises(UnknownNamespaceError) as caught:
            use(cache, "acme/x")
        assert str(caught.value).startswith("namespace 'acme/x' must exist. Write to it first")


def open_with(name: str, value: Any) -> None:
    SuffixCache(**{name: value}).close()


def open_session_with(reads: Any) -> None:
    with SuffixCache() as cache:
        cache.namespace("a").open_session([1], reads=reads)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda: open_with("policies", {"a": 1}),
            InvalidConfigError,
            "policies must be a Policies instance or None; got dict",
        ),
        (
            lambda: open_with("path", 5),
            InvalidConfigError,
            "path must be the path of a data folder, or None for memory only; got 5",
        ),
        (
            lambda: open_session_with("a,b"),
            InvalidInputError,
            "reads must be a sequence of namespace paths; got 'a,b'",
        ),
    ],
    ids=["policies", "path", "reads"],
)
def test_a_wrong_argument_is_named_with_its_condition(
    call: Callable[[], None], kind: type[SuffixError], message: str
) -> None:
    """They said "policies are none" and "reads is no list of namespaces"."""
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == message
