"""The contract of ``suffixsvc.store.base.Store``, one suite for every store."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from store_testing import NS, OTHER, Clock, make_output, plain, plain_stored, scan_ids

from suffixsvc.config import Limits
from suffixsvc.errors import (
    InvalidInputError,
    InvalidLabelsError,
    InvalidNamespaceError,
    InvalidTokensError,
    StoreClosedError,
    TokenizerMismatchError,
    UnknownNamespaceError,
    UnknownOutputError,
)
from suffixsvc.store.base import Store
from suffixsvc.types import NamespaceRecord

# --- namespaces ---------------------------------------------------------------------------------


def test_namespaces_are_listed_by_path_with_their_fingerprint(store: Store) -> None:
    assert store.add_namespace(NamespaceRecord("zeta", "xxh3:1")) == NamespaceRecord("zeta", "xxh3:1")
    assert store.add_namespace(NamespaceRecord("Ünï/ком")) == NamespaceRecord("Ünï/ком")
    assert [r.path for r in store.namespaces()] == sorted([NS, "zeta", "Ünï/ком"])
    assert store.namespaces()[[r.path for r in store.namespaces()].index("zeta")].tokenizer == "xxh3:1"


def test_an_empty_fingerprint_is_filled_in_once_and_then_binds(store: Store) -> None:
    assert store.add_namespace(NamespaceRecord(NS)).tokenizer == ""
    assert store.add_namespace(NamespaceRecord(NS, "xxh3:1")).tokenizer == "xxh3:1"
    assert store.add_namespace(NamespaceRecord(NS)).tokenizer == "xxh3:1"
    with pytest.raises(TokenizerMismatchError) as caught:
        store.add_namespace(NamespaceRecord(NS, "xxh3:2"))
    assert (caught.value.expected, caught.value.got) == ("xxh3:1", "xxh3:2")
    assert store.namespaces() == [NamespaceRecord(NS, "xxh3:1")]


@pytest.mark.parametrize("path", ["", "a//b", "x" * 201, "a b"])
def test_malformed_namespaces_are_refused(store: Store, path: str) -> None:
    with pytest.raises(InvalidNamespaceError):
        store.add_namespace(NamespaceRecord(path))
    assert store.namespaces() == [NamespaceRecord(NS)]


def test_the_longest_namespace_and_state_name_fit(store: Store) -> None:
    path = "n" * 200
    store.add_namespace(NamespaceRecord(path, "t" * 200))
    store.put_state(path, "s" * 200, b"x")
    assert store.get_state(path, "s" * 200) == b"x"
    assert store.append([make_output(namespace=path)]).result() == [1]


# --- append and get -----------------------------------------------------------------------------


def test_an_output_comes_back_as_it_went_in(store: Store, clock: Clock) -> None:
    output = make_output(
        [0, 5, 2**31 - 1],
        segments=(1, 2),
        tail=range(64),
        labels={"agent": "sql", "ñ": ""},
        incomplete=True,
        ttl_seconds=2**32 - 1,
        corpus=True,
    )
    (output_id,) = store.append([output]).result()
    stored = store.get(output_id)
    assert plain(stored.output) == plain(output)
    assert stored.output_id == output_id
    assert stored.written_at == pytest.approx(clock.now, abs=1e-6)
    assert stored.output.token_ids.dtype == np.int32
    assert stored.output.prompt_tail.dtype == np.int32


def test_ids_rise_from_one_in_order(store: Store) -> None:
    assert store.append([make_output([i]) for i in range(3)]).result() == [1, 2, 3]
    assert store.append([]).result() == []
    assert store.append([make_output([9])]).result() == [4]
    assert store.stats().last_lsn == 4


def test_the_store_keeps_its_own_copy(store: Store) -> None:
    """Neither a caller that reuses its buffer nor a reader can change stored data."""
    output = make_output([1, 2, 3], tail=[4])
    (output_id,) = store.append([output]).result()
    output.token_ids[0] = 99
    output.prompt_tail[0] = 99
    stored = store.get(output_id).output
    assert stored.token_ids.tolist() == [1, 2, 3]
    assert stored.prompt_tail.tolist() == [4]
    with pytest.raises(ValueError, match="read-only"):
        stored.token_ids[0] = 7


def test_empty_segments_are_dropped(store: Store) -> None:
    one, two = store.append([make_output([1, 2], segments=(0, 2, 0)), make_output([1, 2])]).result()
    assert store.get(one).output.segment_lens == store.get(two).output.segment_lens == (2,)
    assert store.stats().payloads == 1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"token_ids": np.empty(0, np.int32), "segment_lens": ()}, InvalidTokensError),
        ({"token_ids": np.asarray([1, -1, 1], np.int32)}, InvalidTokensError),
        ({"token_ids": np.asarray([1, 2, 3], np.int64)}, InvalidTokensError),
        ({"token_ids": np.asarray([[1, 2, 3]], np.int32)}, InvalidTokensError),
        ({"token_ids": [1, 2, 3]}, InvalidTokensError),
        ({"segment_lens": (2,)}, InvalidTokensError),
        ({"segment_lens": (4, -1)}, InvalidTokensError),
        ({"prompt_tail": np.zeros(65, np.int32)}, InvalidTokensError),
        ({"labels": {"": "x"}}, InvalidLabelsError),
        ({"labels": {"a": "\ud800"}}, InvalidLabelsError),
        ({"labels": {str(i): "x" for i in range(17)}}, InvalidLabelsError),
        ({"ttl_seconds": -1}, InvalidInputError),
        ({"ttl_seconds": 2**32}, InvalidInputError),
        ({"ttl_seconds": 1.5}, InvalidInputError),
        ({"namespace": ""}, InvalidNamespaceError),
        ({"namespace": OTHER}, UnknownNamespaceError),
    ],
)
def test_one_bad_output_keeps_the_whole_append_out(
    store: Store, change: dict[str, Any], error: type[Exception]
) -> None:
    good = make_output([1, 2, 3])
    before = store.stats()
    future = store.append([good, dataclasses.replace(good, **change), good])
    with pytest.raises(error):
        future.result()
    assert store.stats() == before
    assert scan_ids(store) == []
    assert store.append([good]).result() == [1]


@pytest.mark.parametrize("output_id", [0, -1, 2, 2**64, 2**70])
def test_an_unknown_output_is_an_error(store: Store, output_id: int) -> None:
    store.append([make_output()]).result()
    with pytest.raises(UnknownOutputError):
        store.get(output_id)
    assert store.forget_many(NS, [output_id]) == []
    assert scan_ids(store) == [1]


# --- payloads and their occurrences --------------------------------------------------------------


def test_equal_outputs_share_a_payload_and_keep_their_own_rows(store: Store) -> None:
    store.add_namespace(NamespaceRecord(OTHER))
    ids = store.append(
        [
            make_output([1, 2], labels={"principal": "ann"}, tail=[3]),
            make_output([1, 2], labels={"principal": "bob"}),
            make_output([1, 2], segments=(1, 1)),
            make_output([1, 2], namespace=OTHER),
        ]
    ).result()
    stats = store.stats()
    assert (stats.outputs, stats.payloads, stats.tokens) == (4, 3, 8)
    assert [store.get(i).output.labels.get("principal") for i in ids[:2]] == ["ann", "bob"]
    assert store.forget_many(NS, [ids[0]])[0].output.labels == {"principal": "ann"}
    assert store.stats().payloads == 3
    assert store.forget_many(NS, [ids[1]])[0].output.token_ids.tolist() == [1, 2]
    assert store.stats().payloads == 2
    assert store.get(ids[3]).output.token_ids.tolist() == [1, 2]


def test_forgetting_needs_the_right_namespace(store: Store) -> None:
    store.add_namespace(NamespaceRecord(OTHER))
    (output_id,) = store.append([make_output()]).result()
    assert store.forget_many(OTHER, [output_id]) == []
    with pytest.raises(UnknownNamespaceError):
        store.forget_many("acme/never-made", [output_id])
    assert scan_ids(store) == [output_id]


def test_forgetting_returns_what_it_was_and_works_once(store: Store) -> None:
    output = make_output([4, 5], labels={"a": "b"}, ttl_seconds=5)
    (output_id,) = store.append([output]).result()
    there = plain_stored(store.get(output_id))
    assert plain_stored(store.forget_many(NS, [output_id])[0]) == there
    assert store.forget_many(NS, [output_id]) == []
    stats = store.stats()
    assert (stats.outputs, stats.payloads, stats.tokens, stats.last_lsn) == (0, 0, 0, 2), (
        "the deletion has one, too"
    )


def test_ids_are_never_used_again(store: Store) -> None:
    assert store.append([make_output(), make_output()]).result() == [1, 2]
    store.forget_many(NS, [2])
    store.forget_many(NS, [1])
    assert store.append([make_output()]).result() == [5], "the deletions are 3 and 4"


# --- expiry -------------------------------------------------------------------------------------


def test_outputs_expire_when_their_time_is_up(store: Store, clock: Clock) -> None:
    start = clock.now
    store.append(
        [make_output([1], ttl_seconds=10), make_output([2]), make_output([3], ttl_seconds=5)]
    ).result()
    clock.now += 100
    store.append([make_output([4], ttl_seconds=1)]).result()
    assert store.expire(start + 4.999) == []
    assert [s.output_id for s in store.expire(start + 5)] == [3]
    assert [s.output_id for s in store.expire(start + 200)] == [1, 4]
    assert store.expire(start + 1e12) == []
    assert scan_ids(store) == [2]


def test_outputs_expire_a_transaction_at_a_time(store: Store, clock: Clock) -> None:
    store.append([make_output([i], ttl_seconds=1) for i in range(600)]).result()
    removed: list[int] = []
    while part := store.expire(clock.now + 10):
        assert len(part) <= 256
        removed += [s.output_id for s in part]
    assert sorted(removed) == list(range(1, 601))
    assert store.stats().outputs == 0


# --- state --------------------------------------------------------------------------------------


def test_states_are_kept_by_namespace_and_name(store: Store) -> None:
    store.add_namespace(NamespaceRecord(OTHER))
    assert store.get_state(NS, "mixer") is None
    store.put_state(NS, "mixer", b"one")
    store.put_state(OTHER, "mixer", b"")
    store.put_state(NS, "mixer", b"\x00" * 100_000)
    assert store.get_state(NS, "mixer") == b"\x00" * 100_000
    assert store.get_state(OTHER, "mixer") == b""
    assert store.get_state(NS, "mix") is None


def test_states_of_nowhere_or_without_a_name_are_refused(store: Store) -> None:
    with pytest.raises(UnknownNamespaceError):
        store.put_state(OTHER, "mixer", b"x")
    with pytest.raises(UnknownNamespaceError):
        store.get_state(OTHER, "mixer")
    for name in ("", "x" * 201):
        with pytest.raises(InvalidInputError):
            store.put_state(NS, name, b"x")


# --- life cycle ---------------------------------------------------------------------------------


def test_a_closed_store_refuses_every_call(store: Store) -> None:
    store.append([make_output([i]) for i in range(2)]).result()
    scan = store.scan()
    next(scan)
    store.close()
    store.close()
    closed: list[Any] = [
        store.namespaces,
        store.stats,
        store.check,
        store.scan,
        lambda: next(scan),
        lambda: store.get(1),
        lambda: store.forget_many(NS, [1]),
        lambda: store.expire(1.0),
        lambda: store.get_state(NS, "x"),
        lambda: store.put_state(NS, "x", b""),
        lambda: store.add_namespace(NamespaceRecord("x")),
        lambda: store.append([make_output()]).result(),
    ]
    for call in closed:
        with pytest.raises(StoreClosedError):
            call()


def test_many_threads_at_once(store: Store) -> None:
    """Ids are unique, ascending per thread, and nothing is lost."""
    results: list[list[int]] = [[] for _ in range(6)]

    def work(n: int) -> None:
        for i in range(40):
            ids = store.append([make_output([n, i]), make_output([1])]).result()
            results[n] += ids
            if i % 4 == 0:
                store.forget_many(NS, [ids[1]])
                results[n].remove(ids[1])
            assert store.get(ids[0]).output.token_ids.tolist() == [n, i]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = [output_id for ids in results for output_id in ids]
    assert len(set(stored)) == len(stored) == 6 * 70
    assert all(ids == sorted(ids) for ids in results)
    assert scan_ids(store) == sorted(stored)


def test_futures_do_not_need_to_be_waited_for_one_by_one(store: Store) -> None:
    futures: list[Future[list[int]]] = [store.append([make_output([i])]) for i in range(200)]
    assert [f.result() for f in futures] == [[i + 1] for i in range(200)]


def test_bytes_used_are_real_and_within_the_limit(store: Store) -> None:
    store.append([make_output(range(1000))]).result()
    stats = store.stats()
    assert 4000 <= stats.bytes_used <= Limits().max_store_bytes
