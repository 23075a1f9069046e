"""Scans of a store, one suite for every store."""

from __future__ import annotations

import pytest
from store_testing import NS, OTHER, make_output, plain, scan_ids

from suffixsvc.errors import UnknownNamespaceError
from suffixsvc.store.base import Store
from suffixsvc.types import NamespaceRecord


def test_scan_is_in_id_order_by_namespace_and_from_an_id(store: Store) -> None:
    store.add_namespace(NamespaceRecord(OTHER))
    store.append([make_output([i], namespace=OTHER if i % 3 == 0 else NS) for i in range(12)]).result()
    assert scan_ids(store) == list(range(1, 13))
    assert scan_ids(store, OTHER) == [1, 4, 7, 10]
    assert scan_ids(store, OTHER, 5) == [7, 10]
    assert scan_ids(store, None, 11) == [11, 12]
    assert scan_ids(store, NS, 2**64) == []
    assert scan_ids(store, NS, -3) == [2, 3, 5, 6, 8, 9, 11, 12]
    with pytest.raises(UnknownNamespaceError):
        store.scan("acme/never-made")


def test_a_scan_is_a_snapshot_of_its_first_step(store: Store) -> None:
    """Rows forgotten, expired or added during a slow scan neither vanish nor appear."""
    store.append([make_output([i], ttl_seconds=1) for i in range(700)]).result()
    not_yet = store.scan(NS)
    scan = store.scan(NS, from_lsn=2)
    drawn = [next(scan).output_id]
    store.append([make_output([7000])]).result()
    for output_id in (1, 2, 3, 400, 700):
        store.forget_many(NS, [output_id])
    drawn += [next(scan).output_id for _ in range(300)]
    while store.expire(4e9):
        pass
    drawn += [stored.output_id for stored in scan]
    assert drawn == list(range(2, 701))
    assert [stored.output_id for stored in not_yet] == [701]


def test_a_scan_yields_complete_rows_after_their_deletion(store: Store) -> None:
    outputs = [make_output([i, i + 1], labels={"n": str(i)}) for i in range(300)]
    store.append(outputs).result()
    scan = store.scan()
    first = next(scan)
    for output_id in range(1, 301):
        store.forget_many(NS, [output_id])
    assert [plain(s.output) for s in (first, *scan)] == [plain(o) for o in outputs]


def test_an_abandoned_scan_is_removed(store: Store) -> None:
    store.append([make_output([i]) for i in range(10)]).result()
    for _ in range(50):
        next(store.scan())
    store.forget_many(NS, [1])
    assert scan_ids(store) == list(range(2, 11))
