"""Outlines of the log: rows without tokens, as needed for eviction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from store_testing import NS, Clock, make_output

from suffixsvc.errors import StoreClosedError, StoreCorruptError, UnknownNamespaceError
from suffixsvc.store import base
from suffixsvc.store.base import Store
from suffixsvc.store.records import keys, log_records
from suffixsvc.types import NamespaceRecord, OutputOutline


def test_an_outline_is_what_was_stored_less_the_text(store: Store, clock: Clock) -> None:
    store.add_namespace(NamespaceRecord("other"))
    store.append([make_output([1, 2, 3], tail=range(5), ttl_seconds=9)]).result()
    store.append([make_output(namespace="other")]).result()
    clock.now += 1.5
    store.append([make_output([7], corpus=True), make_output([1, 2, 3])]).result()
    assert list(store.outline(NS)) == [
        OutputOutline(1, clock.now - 1.5, 3, 9, False, tail_tokens=5),
        OutputOutline(3, clock.now, 1, 0, True),
        OutputOutline(4, clock.now, 3, 0, False),
    ]
    assert [row.output_id for row in store.outline("other")] == [2]


def test_an_outline_names_the_principals(store: Store) -> None:
    outputs = [
        replace(make_output([n]), principal=name) for n, name in enumerate(["ann", "", "bob", "ann"], 1)
    ]
    store.append(outputs).result()
    assert [row.principal for row in store.outline(NS)] == ["ann", "", "bob", "ann"]


def test_an_outline_of_many_outputs_has_each_of_them_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read in chunks, with appends and deletions in between."""
    monkeypatch.setattr(base, "_OUTLINE_ROWS", 4)
    ids = store.append([make_output([n + 1]) for n in range(11)]).result()
    outline = store.outline(NS)
    seen = [next(outline).output_id for _ in range(5)]
    store.forget_many(NS, [ids[0]])
    [late] = store.append([make_output([99])]).result()
    seen += [row.output_id for row in outline]
    assert seen in (ids, [*ids, late])


def test_an_outline_needs_a_namespace_and_an_open_store(store: Store) -> None:
    assert list(store.outline(NS)) == []
    with pytest.raises(UnknownNamespaceError):
        list(store.outline("nowhere"))
    store.close()
    with pytest.raises(StoreClosedError):
        list(store.outline(NS))


def test_an_outline_of_a_damaged_record_is_refused_by_name() -> None:
    """Only the header is read, and it is validated."""
    tail = np.arange(3, dtype=np.int32)
    good = log_records.encode_log(
        log_records.LogRecord(42, keys.PayloadKey(7, bytes(16), 1), 5, 10**15, 60, True, True, tail, {})
    )
    assert log_records.outline_of(good, 42) == (5, 10**15, 60, True, 0, 3, 0)
    foreign, newer = b"XXXX" + good[4:], good[:4] + b"\3" + good[5:]
    for bad, lsn in ((good[:40], 42), (b"", 42), (foreign, 42), (good, 43), (newer, 42)):
        with pytest.raises(StoreCorruptError, match=f"log record {lsn}"):
            log_records.outline_of(bad, lsn)
