"""Messages of the engine's errors: the field, the condition that it must meet, and the actual value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from suffixsvc import Limits, NewOutput, SuffixCache
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.errors import (
    InvalidConfigError,
    InvalidInputError,
    InvalidNamespaceError,
    SuffixError,
    UnknownNamespaceError,
)
from suffixsvc.service.handlers import Handlers
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client import AsyncSuffixClient, SuffixClient
from suffixsvc_client.testing import FakeTransport
from support.engine_parts import parts_of


def stats_of_service(cache: SuffixCache, path: str) -> None:
    Handlers(cache, Limits(), durable=False).get_stats(pb.GetStatsRequest(namespace=path), OPERATOR_CALLER)


UNKNOWN: dict[str, Callable[[SuffixCache, str], object]] = {
    "delete": lambda cache, path: cache.delete_namespace(path),
    "seal": lambda cache, path: cache.seal(path),
    "read": lambda cache, path: cache.namespace("here").open_session([1], reads=[path]),
    "read by default": lambda cache, path: cache.read_by_default([path]),
    "store": lambda cache, path: parts_of(cache).store.get_state(path, "any"),
    "service": stats_of_service,
}


@pytest.mark.parametrize("use", UNKNOWN.values(), ids=UNKNOWN)
@pytest.mark.parametrize("folder", [True, False], ids=["folder", "memory"])
def test_a_namespace_that_is_not_there_is_named_alike_everywhere(
    use: Callable[[SuffixCache, str], object], folder: bool, tmp_path: Any
) -> None:
    """Regression: six places built this error with different words, some without a remedy."""
    with SuffixCache(tmp_path / "d" if folder else None, background=False) as cache:
        with pytest.raises(UnknownNamespaceError) as caught:
            use(cache, "acme/x")
        assert str(caught.value).startswith("namespace 'acme/x' must exist. Write to it first")
        assert "suffixsvc namespaces list" in str(caught.value)


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
            "reads must be a list of paths; got 'a,b'. For one path write ['a,b'].",
        ),
    ],
    ids=["policies", "path", "reads"],
)
def test_a_wrong_argument_is_named_with_its_condition(
    call: Callable[[], None], kind: type[SuffixError], message: str
) -> None:
    """The message is `<field> must be <condition>`."""
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == message


NO_TOKENS = np.empty(0, np.int32)
ONE_TOKEN = np.array([1], np.int32)
REMEDY = (
    "Build it with suffixsvc.NewOutput(namespace, token_ids, segment_lens, prompt_tail), or pass plain "
    "tokens to add_output."
)


@pytest.mark.parametrize("remote", [False, True], ids=["embedded", "client"])
@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([[1, 2, 3]], f"outputs[0] must be a NewOutput; got list. {REMEDY}"),
        (np.array([[1, 2]]), f"outputs[0] must be a NewOutput; got ndarray. {REMEDY}"),
        (
            [NewOutput("a", ONE_TOKEN, (1,), NO_TOKENS), 5],
            f"outputs[1] must be a NewOutput; got int. {REMEDY}",
        ),
        (5, f"outputs must be a list of NewOutput; got int. {REMEDY}"),
        (
            [NewOutput("a", ONE_TOKEN, 1, NO_TOKENS)],  # type: ignore[arg-type]
            "segment_lens must be a sequence of ints; got 1",
        ),
    ],
    ids=["tokens", "array", "second", "number", "segment_lens"],
)
def test_what_is_no_output_is_refused_by_name(outputs: Any, message: str, remote: bool) -> None:
    """Regression: plain tokens passed to add_outputs raised an AttributeError of 'list', and NewOutput was
    in no public module."""
    with SuffixCache() as cache, SuffixClient(transport=FakeTransport(cache)) as client:
        namespace = client.namespace("a") if remote else cache.namespace("a")
        with pytest.raises(InvalidInputError) as caught:
            namespace.add_outputs(outputs)
        assert str(caught.value) == message
        assert cache.namespace("a").stats().outputs == 0


@pytest.mark.parametrize("client", [SuffixClient, AsyncSuffixClient])
@pytest.mark.parametrize(
    ("address", "got"),
    [(5, "5"), (None, "None"), ("nowhere", "'nowhere'"), ("http://127.0.0.1:1", "'http://127.0.0.1:1'")],
)
def test_an_address_of_a_client_has_one_of_two_forms(client: Any, address: Any, got: str) -> None:
    """Regression: a number raised an AttributeError; a URL was accepted, and every call failed later."""
    with pytest.raises(InvalidConfigError) as caught:
        client(address)
    text = f"the address of the service must be unix:PATH or HOST:PORT; got {got}"
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("remote", [False, True], ids=["embedded", "client"])
@pytest.mark.parametrize(
    ("reads", "message"),
    [
        ("a/b", "reads must be a list of paths; got 'a/b'. For one path write ['a/b']."),
        (5, "reads must be a list of paths; got 5"),
        ({"a": 1}, "reads must be a list of paths; got {'a': 1}"),
    ],
    ids=["string", "number", "mapping"],
)
def test_reads_that_are_no_list_are_refused(reads: Any, message: str, remote: bool) -> None:
    """Regression: the client read a string letter by letter: namespace 'n' was unknown."""
    with SuffixCache() as cache, SuffixClient(transport=FakeTransport(cache)) as client:
        with pytest.raises(InvalidInputError) as caught:
            (client if remote else cache).namespace("a").open_session([1], reads=reads)
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("path", "condition", "got"),
    [
        ("a b", "without spaces", "'a b'. Write '-' or '_' instead."),
        ("a\tb", "without spaces", "'a\\tb'. Write '-' or '_' instead."),
        ("a//b", "without empty components", "'a//b'. Join names by single slashes."),
        ("/a", "without empty components", "'/a'. Join names by single slashes."),
        ("a/../b", "without the components '.' and '..'", "'a/../b'"),
        ("a\x07", "of printable characters", "'a\\x07'"),
        ("", "1 to 200 bytes long", "0 bytes"),
        (5, "a string", "int"),
    ],
)
def test_a_malformed_path_is_refused_for_what_is_wrong_with_it(path: Any, condition: str, got: str) -> None:
    """Regression: a path with a space was reported as "an empty or unprintable segment"."""
    with SuffixCache() as cache, pytest.raises(InvalidNamespaceError) as caught:
        cache.namespace(path)
    form = "components joined by '/', as in acme/qwen2.5-coder/sql-agent"
    assert str(caught.value) == f"namespace path must be {condition}; expected {form}; got {got}"
