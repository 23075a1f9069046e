"""Invalid arguments of the embedded engine: rejected by name, and nothing is applied."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_testing import SQL, write

from suffixsvc import Limits, SuffixCache
from suffixsvc.errors import (
    InvalidConfigError,
    InvalidCostError,
    InvalidInputError,
    InvalidLabelsError,
    InvalidNamespaceError,
    InvalidTokensError,
    LimitExceededError,
)
from suffixsvc.types import NewOutput


@pytest.mark.parametrize(
    "bad",
    [
        [-1],
        [2**31],
        [1.5],
        ["a"],
        "abc",
        b"abcd",
        [[1, 2], [3, 4]],
        np.zeros((2, 2), np.int32),
        np.zeros(3, np.float32),
        [None],
        [2**70],
        np.array([1, -5], np.int64),
        np.array([1, -5], np.int32),
        5,
        {"a": 1},
    ],
    ids=repr,
)
def test_an_invalid_token_array_is_rejected_whole(cache: SuffixCache, bad: object) -> None:
    namespace = cache.namespace("acme/m")
    with pytest.raises(InvalidTokensError) as caught:
        namespace.open_session(bad)  # type: ignore[arg-type] # the point of the test
    assert caught.value.expected is not None
    assert caught.value.got is not None
    session = namespace.open_session([1])
    with pytest.raises(InvalidTokensError):
        session.step(bad)  # type: ignore[arg-type] # the point of the test
    with pytest.raises(InvalidTokensError):
        session.append_context(bad)  # type: ignore[arg-type] # the point of the test
    with pytest.raises(InvalidTokensError):
        namespace.add_output(bad)  # type: ignore[arg-type] # the point of the test
    assert session.length == 1
    assert cache.stats().sessions == 1


def test_edge_token_ids_and_dtypes_are_taken(cache: SuffixCache) -> None:
    for tokens in ([0, 2**31 - 1], np.array([0, 2**31 - 1], np.int64), np.array([1, 2], np.uint16), range(4)):
        session = cache.namespace("acme/m").open_session(tokens)  # type: ignore[arg-type] # a range is a sequence
        session.step(tokens)  # type: ignore[arg-type] # a range is a sequence
        assert session.close() is not None


@pytest.mark.parametrize(
    "cost",
    [
        *(float("nan"), float("inf"), -0.1, [], [1.0], [0, 1, float("nan")], "x", "0.02", 1j, True),
        *(["0", "1", "2"], [True, True], np.array([0, 1, True], object), np.datetime64(1, "s"), [0, [1, 2]]),
        *([0, 0, 0], [0, 29.5, 40.0], [0, 1e308, 1e308]),
    ],
    ids=repr,
)
def test_invalid_costs_are_rejected(cache: SuffixCache, cost: object) -> None:
    session = cache.namespace("acme/m").open_session([1])
    with pytest.raises(InvalidCostError):
        session.step([5], verify_cost=cost)  # type: ignore[arg-type] # the point of the test
    assert session.length == 1


def test_curves_may_be_short_and_need_not_be_monotone(cache: SuffixCache) -> None:
    for _ in range(3):
        write(cache, SQL)
    namespace = cache.namespace("acme/m")
    assert len(namespace.open_session([1]).step(SQL[:9], verify_cost=[0, 1, 1.01, 1.02])) <= 2
    # Widths 2 and 3 cost more than they gain; width 9 is nearly free: the search must go past them.
    steep = [0.0, 1.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 1.05]
    assert len(namespace.open_session([1]).step(SQL[:9], verify_cost=steep)) == 8
    assert len(namespace.open_session([1]).step(SQL[:9], verify_cost=[0.0, 1.0] + [50.0] * 20)) == 0


def test_other_invalid_arguments(cache: SuffixCache) -> None:
    namespace = cache.namespace("acme/m")
    session = namespace.open_session([1])
    for bad in (-1, 1.5, "3", True, None):
        with pytest.raises(InvalidInputError):
            session.step([5], max_draft_tokens=bad)  # type: ignore[arg-type] # the point of the test
    for reads in (5, "a", b"a"):
        with pytest.raises(InvalidInputError):
            namespace.open_session([1], reads=reads)  # type: ignore[arg-type] # the point of the test
    for tree in ("yes", 3, None, np.array([1, 2])):
        with pytest.raises(InvalidInputError):
            session.step([5], tree=tree)  # type: ignore[arg-type] # the point of the test
    for verified in ((0, 0, 0), (2, 2, 0), (2, 1, 99), "x", (1,), (float("inf"), 0, 0), (2.7, 0, 0)):
        with pytest.raises(InvalidInputError):
            session.step([5], verified=verified)  # type: ignore[arg-type] # the point of the test
    for at in (-1, 1.0, True):
        with pytest.raises(InvalidInputError):
            session.step([5], at=at)  # type: ignore[arg-type] # the point of the test
    for labels in ("x", {"a": 1}, {"": "x"}, {"a": "x" * 300}, dict.fromkeys(map(str, range(20)), "v")):
        with pytest.raises(InvalidLabelsError):
            namespace.open_session([1], labels=labels)  # type: ignore[arg-type] # the point of the test
    for path in ("", "/a", "a//b", "a/", "a b", "x" * 201, "a/../b", 3, "a\n"):
        with pytest.raises(InvalidNamespaceError):
            cache.namespace(path)  # type: ignore[arg-type] # the point of the test
    assert session.length == 1
    with pytest.raises(InvalidTokensError):
        namespace.add_output([])


def test_limits_are_refused_by_name() -> None:
    limits = Limits(max_sessions=2, max_session_tokens=10, max_draft_tokens=3, max_output_tokens=5)
    with SuffixCache(limits=limits) as cache:
        namespace = cache.namespace("m")
        first = namespace.open_session(list(range(9)))
        first.step([5])
        with pytest.raises(LimitExceededError, match="max_session_tokens"):
            first.step([6])
        with pytest.raises(LimitExceededError, match="max_session_tokens"):
            namespace.open_session(list(range(11)))
        second = namespace.open_session([1])
        with pytest.raises(LimitExceededError, match="max_sessions"):
            namespace.open_session([1])
        second.close()
        namespace.open_session([1])
        with pytest.raises(LimitExceededError, match="max_output_tokens"):
            namespace.add_output(list(range(6)))
        namespace.add_output([1, 2, 3, 4, 5])
        namespace.add_output([1, 2, 3, 4, 5])
        first.close()
        assert len(namespace.open_session([0]).step([1, 2], max_draft_tokens=10_000, verify_cost=0.0)) <= 3


def test_bulk_outputs_are_kept_all_or_none(cache: SuffixCache) -> None:
    """Regression: a malformed item after a valid one left the valid one in the index only."""
    namespace = cache.namespace("m")
    good = NewOutput("m", np.array(SQL, np.int32), (len(SQL),), np.empty(0, np.int32))
    for bad in (
        replace(good, token_ids=np.zeros((2, 2), np.int32)),
        replace(good, segment_lens=(1,)),
        replace(good, prompt_tail=np.zeros(65, np.int32)),
        replace(good, ttl_seconds=-1),
    ):
        with pytest.raises(InvalidInputError):
            namespace.add_outputs([good, bad])
        assert namespace.stats().tokens == 0
        assert namespace.stats().index_nodes == 1
    assert len(namespace.add_outputs([good, good])) == 2


@pytest.mark.parametrize("path", ["", 5, "a\0b", b"x"])
def test_an_invalid_path_is_rejected(path: object) -> None:
    with pytest.raises(InvalidConfigError):
        SuffixCache(path)  # type: ignore[arg-type] # the point of the test


def test_namespaces_are_bounded() -> None:
    with SuffixCache(limits=Limits(max_namespaces=2)) as cache:
        cache.namespace("a").add_output([1])
        cache.namespace("b").add_output([1])
        cache.namespace("a")
        with pytest.raises(LimitExceededError, match="max_namespaces"):
            cache.namespace("c")
