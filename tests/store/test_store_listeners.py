"""Deletion listeners and ``on_committed`` callbacks of a store, one suite for every store."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
from store_testing import NS, Clock, make_output

from suffixsvc.errors import InvalidInputError, StoreClosedError, SuffixError
from suffixsvc.store.base import Store


def test_the_listener_is_called_before_the_deletion_returns(store: Store, clock: Clock) -> None:
    deleted: list[list[int]] = []
    store.set_deletion_listener(lambda rows: deleted.append([s.output_id for s in rows]))
    store.append([make_output([i], ttl_seconds=5) for i in range(6)]).result()
    assert deleted == []
    store.forget_many(NS, [2])
    assert deleted == [[2]]
    store.forget_many(NS, [1, 2, 3])
    assert deleted == [[2], [1, 3]]
    assert store.forget_many(NS, [1]) == []
    store.expire(clock.now + 10)
    assert deleted == [[2], [1, 3], [4, 5, 6]]
    store.barrier()


def test_an_append_is_decided_before_its_future_is_done_and_before_its_rows_can_go(store: Store) -> None:
    """Otherwise the listener could receive an output before its writer has its id."""
    seen: list[tuple[str, list[int] | None]] = []
    store.set_deletion_listener(lambda rows: seen.append(("deleted", [s.output_id for s in rows])))
    stop = threading.Event()

    def expire() -> None:
        while not stop.is_set():
            store.expire(4e9)

    thread = threading.Thread(target=expire)
    thread.start()
    try:
        ids = []
        for i in range(100):
            before = len(seen)
            future = store.append(
                [make_output([i], ttl_seconds=1)], on_committed=lambda ids: seen.append(("stored", ids))
            )
            ids += future.result()
            assert ("stored", ids[-1:]) in seen[before:]
    finally:
        stop.set()
        thread.join()
    store.expire(4e9)
    for i in ids:
        assert seen.index(("stored", [i])) < next(
            n for n, (what, rows) in enumerate(seen) if what == "deleted" and i in (rows or ())
        )


def test_an_append_that_fails_is_decided_with_nothing(store: Store) -> None:
    seen: list[object] = []
    for bad in (make_output([]), make_output([1], namespace="nowhere")):
        with pytest.raises(SuffixError):
            store.append([make_output([1]), bad], on_committed=seen.append).result()
    store.close()
    with pytest.raises(StoreClosedError):
        store.append([make_output([1])], on_committed=seen.append).result()
    assert seen == [None, None, None]


def test_an_exception_of_a_listener_has_no_effect(store: Store) -> None:
    def listener(_value: object) -> None:
        raise RuntimeError("a defect")

    store.set_deletion_listener(listener)
    assert store.append([make_output([1])], on_committed=listener).result() == [1]
    assert store.forget_many(NS, [1])[0].output_id == 1
    assert store.append([make_output([1])]).result() == [3]


@pytest.mark.parametrize("now", [math.nan, math.inf, -1.0, "soon", True])
def test_invalid_times_are_refused(store: Store, now: Any) -> None:
    store.append([make_output(ttl_seconds=1)]).result()
    with pytest.raises(InvalidInputError):
        store.expire(now)
    assert store.stats().outputs == 1
