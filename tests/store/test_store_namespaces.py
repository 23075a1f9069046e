"""Deletion of namespaces and creation by the first output: both stores, and kills between transactions."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from removal_child import OUTPUTS, OWN, fill_namespaces
from store_testing import NS, make_output, plain_stored

from suffixsvc.errors import (
    InvalidInputError,
    StoreError,
    StoreFullError,
    TokenizerMismatchError,
    UnknownNamespaceError,
)
from suffixsvc.store import LmdbStore, MemoryStore
from suffixsvc.store.base import Store
from suffixsvc.store.lmdb_store import MIN_LIMIT_BYTES
from suffixsvc.store.records import table_records
from suffixsvc.store.transactions import removal
from suffixsvc.types import NamespaceRecord
from support.forking import ForkServer

OTHER = "acme/other"


def filled(store: Store) -> list[Any]:
    """Fill two namespaces with every kind of record; return what must remain of the second."""
    fill_namespaces(store, NS, OTHER)
    return [plain_stored(stored) for stored in store.scan(OTHER)]


def test_a_namespace_goes_with_everything_it_has(store: Store) -> None:
    """``delete_namespace`` deletes the row, outputs, states and segments of a namespace."""
    remaining = filled(store)
    before = store.stats()
    assert store.delete_namespace(NS) == OUTPUTS - 2
    store.check()
    assert store.namespaces() == [NamespaceRecord(OTHER, "xxh3:1")]
    assert [plain_stored(stored) for stored in store.scan()] == remaining
    for call in (
        lambda: store.scan(NS),
        lambda: store.segments(NS),
        lambda: store.tombstones(NS),
        lambda: store.get_state(NS, "mixer"),
        lambda: store.append([make_output()]).result(),
        lambda: store.delete_namespace(NS),
    ):
        with pytest.raises(UnknownNamespaceError):
            call()
    assert store.stats().last_lsn == before.last_lsn + 1
    assert store.tombstones(OTHER)
    assert store.get_state(OTHER, "mixer") == b"theirs"


def test_a_namespace_of_the_same_path_starts_empty(store: Store) -> None:
    remaining = filled(store)
    store.delete_namespace(NS)
    assert store.add_namespace(NamespaceRecord(NS, "xxh3:2")).tokenizer == "xxh3:2"
    assert list(store.scan(NS)) == []
    assert store.segments(NS) == []
    assert store.tombstones(NS) == {}
    assert store.get_state(NS, "mixer") is None
    last = store.stats().last_lsn
    assert store.append([make_output([1, 2])]).result() == [last + 1]
    assert [plain_stored(stored) for stored in store.scan(OTHER)] == remaining
    store.check()


def test_a_scan_that_began_before_sees_what_was_deleted(store: Store) -> None:
    filled(store)
    expected = [stored.output_id for stored in store.scan(NS)]
    scan = store.scan(NS)
    drawn = [next(scan).output_id]
    store.delete_namespace(NS)
    assert drawn + [stored.output_id for stored in scan] == expected


def test_an_append_can_make_its_namespace(store: Store) -> None:
    """The transaction of the first output creates its namespace."""
    record = NamespaceRecord(OTHER, "xxh3:1")
    assert store.append([make_output([1], namespace=OTHER)], [record]).result() == [1]
    assert store.namespaces() == [record, NamespaceRecord(NS)]
    assert store.append([make_output([2], namespace=OTHER)], [NamespaceRecord(OTHER)]).result() == [2]
    with pytest.raises(TokenizerMismatchError):
        store.append([make_output([2], namespace=OTHER)], [NamespaceRecord(OTHER, "xxh3:2")]).result()
    # an unknown tokenizer is filled in with the output
    store.append([make_output([1])], [NamespaceRecord(NS, "xxh3:3")]).result()
    assert store.namespaces()[1].tokenizer == "xxh3:3"


def test_a_refused_append_leaves_no_namespace(store: Store) -> None:
    """For every reason. Regression: the memory store created the namespace if a uuid named two outputs."""
    missing = make_output([1], namespace="acme/never")
    future = store.append([make_output([1], namespace=OTHER), missing], [NamespaceRecord(OTHER, "t")])
    with pytest.raises(UnknownNamespaceError):
        future.result()
    two = [make_output([n], namespace=OTHER, uuid=bytes(range(16))) for n in (1, 2)]
    with pytest.raises(InvalidInputError, match="uuid"):
        store.append(two, [NamespaceRecord(OTHER, "t")]).result()
    assert store.namespaces() == [NamespaceRecord(NS)]
    assert store.stats().outputs == 0


def test_a_full_store_can_delete_a_namespace(tmp_path: Path) -> None:
    """Deletions need pages before they free pages: they use slices, and a reserve."""
    store = LmdbStore(tmp_path, limit_bytes=MIN_LIMIT_BYTES, sync=False)
    store.add_namespace(NamespaceRecord(NS))
    count = 0
    while store.append([make_output([count]), make_output(range(count, count + 2000))]).exception() is None:
        count += 2
    assert count > 50
    assert store.delete_namespace(NS) == count
    assert store.namespaces() == []
    store.check()
    store.add_namespace(NamespaceRecord(NS))
    store.append([make_output(range(2000))]).result()
    store.close()


def test_while_it_goes_a_namespace_cannot_be_made_again(tmp_path: Path, monkeypatch: Any) -> None:
    """A partly deleted namespace accepts nothing; the next call or open continues the deletion."""
    store = LmdbStore(tmp_path)
    remaining = filled(store)

    def full(*_: object) -> Any:
        raise StoreFullError("no room")

    monkeypatch.setattr(removal, "delete_slice", full)
    with pytest.raises(StoreFullError):
        store.delete_namespace(NS)
    with pytest.raises(UnknownNamespaceError):
        store.append([make_output()]).result()
    for call in (
        lambda: store.add_namespace(NamespaceRecord(NS)),
        lambda: store.append([make_output()], [NamespaceRecord(NS)]).result(),
    ):
        with pytest.raises(StoreError, match="being deleted"):
            call()
    assert store.namespaces() == [NamespaceRecord(OTHER, "xxh3:1")]
    store.check()
    monkeypatch.undo()
    assert store.delete_namespace(NS) == OUTPUTS - 2
    store.check()
    store.add_namespace(NamespaceRecord(NS))
    assert [plain_stored(stored) for stored in store.scan()] == remaining
    store.close()


def test_memory_is_free_again(store: Store) -> None:
    if not isinstance(store, MemoryStore):
        return
    filled(store)
    store.delete_namespace(OTHER)
    store.delete_namespace(NS)
    with store._log.read() as view:
        deletions = view.tables.entries("deletions")
    assert store.stats().bytes_used == deletions * (8 + 56), "of the deletions, which stay"


def test_the_row_says_that_its_namespace_is_being_deleted() -> None:
    row = table_records.NamespaceRow(7, "a", "t", deleting=True)
    raw = table_records.encode_namespace(row)
    assert raw[6] == 1
    assert table_records.decode_namespace(raw, b"a") == row


# --- kills -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    house = ForkServer(Path(__file__).with_name("removal_child.py"))
    yield house
    house.close()


@pytest.mark.crash
@pytest.mark.parametrize("point", ["begun", "written", "committed", "acknowledged"])
def test_an_open_finishes_a_deletion_that_a_kill_interrupted(
    fork_server: ForkServer, tmp_path: Path, point: str
) -> None:
    """After a kill in any transaction of a deletion, the next open finds the whole namespace or nothing of
    it, and the other namespace unchanged."""
    untouched = deleted = 0
    for hits in range(1, 100):
        folder = tmp_path / str(hits)
        store = LmdbStore(folder, map_bytes_initial=1)
        remaining = filled(store)
        ours = [plain_stored(stored) for stored in store.scan(NS)]
        store.close()
        status = fork_server.run(
            {"folder": str(folder), "point": point, "hits": hits}, lambda line: None, None
        )
        store = LmdbStore(folder)
        store.check()
        left = {record.path for record in store.namespaces()}
        assert left in ({OTHER}, {NS, OTHER})
        assert [plain_stored(stored) for stored in store.scan(OTHER)] == remaining
        if NS in left:
            untouched += 1
            assert [plain_stored(stored) for stored in store.scan(NS)] == ours
        else:
            deleted += 1
            store.add_namespace(NamespaceRecord(NS))
            assert list(store.scan(NS)) == []
            assert store.tombstones(NS) == {}
            store.check()
        store.close()
        if status != -signal.SIGKILL:
            break
    assert deleted > OUTPUTS // 256, "the deletion was not killed in the middle"
    assert untouched == (1 if point in ("begun", "written") else 0)
    assert OWN == NS
