"""Following the log (schema 4): positions, changes after one, deletions that the log has forgotten."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_testing import (
    GOLDEN,
    NS,
    OTHER,
    UUID,
    golden_folder,
    make_output,
    node_id_of,
    rewrite,
    scan_ids,
    uuid_of,
)

from suffixsvc.errors import StoreCorruptError, StoreFullError, UnknownNamespaceError
from suffixsvc.log_types import Deletion, LogPosition
from suffixsvc.store import LmdbStore
from suffixsvc.store.base import Store
from suffixsvc.store.records import keys, table_records
from suffixsvc.store.transactions import changes, write_view
from suffixsvc.store.transactions.operations import SLICE_ROWS, AppendSlices
from suffixsvc.types import NamespaceRecord

HISTORY = table_records.History(41, ((17, 0x0123456789ABCDEF), (42, 2**64 - 1)))
DELETION = table_records.DeletionRow(42, 17, 7, UUID)
RECORDS: dict[str, tuple[bytes, Any, Any]] = {
    "schema": (
        table_records.encode_schema(4, 1_700_000_000_250_000),
        table_records.decode_schema,
        (4, 1_700_000_000_250_000, False),
    ),
    "deletion": (
        table_records.encode_deletion(DELETION),
        lambda raw: table_records.decode_deletion(raw, keys.log_key(42)),
        DELETION,
    ),
    "history": (table_records.encode_history(HISTORY), table_records.decode_history, HISTORY),
}


def ids_after(store: Store, after: LogPosition, *paths: str) -> tuple[list[int], list[int], LogPosition]:
    """Ids of the outputs and of the deleted outputs in all changes after a position, and the last one."""
    generations = [store.generation(path) for path in paths]
    outputs: list[int] = []
    deleted: list[int] = []
    while True:
        found = store.changes(after, generations)
        assert found is not None
        if found.position == after:
            return outputs, deleted, after
        outputs += [stored.output_id for _, stored in found.outputs]
        deleted += [deletion.output_id for deletion in found.deletions]
        after = found.position


# --- in both stores ------------------------------------------------------------------------------------


def test_outputs_and_deletions_share_one_sequence(store: Store) -> None:
    start = store.position()
    assert (start.node_id, start.lsn, start.run) == (node_id_of(store), 0, 0)
    assert store.append([make_output([n]) for n in range(3)]).result() == [1, 2, 3]
    store.forget_many(NS, [2])
    assert store.append([make_output([9])]).result() == [5]
    assert store.position().lsn == store.stats().last_lsn == 5
    found = store.changes(start, [store.generation(NS)])
    assert found is not None
    assert [(number, s.output_id) for number, s in found.outputs] == [
        (store.generation(NS), i) for i in (1, 3, 5)
    ]
    assert list(found.deletions) == [Deletion(store.generation(NS), 2, uuid_of(store, 2))]
    assert found.position == store.position()
    again = store.changes(found.position, [store.generation(NS)])
    assert again == replace(found, outputs=[], deletions=[])


def test_only_the_namespaces_asked_for_are_read(store: Store) -> None:
    store.add_namespace(NamespaceRecord(OTHER))
    start = store.position()
    store.append([make_output([n], namespace=path) for n in range(4) for path in (NS, OTHER)]).result()
    store.forget_many(OTHER, [2])
    store.forget_many(NS, [3])
    assert ids_after(store, start, NS) == ([1, 5, 7], [3], store.position())
    assert ids_after(store, start, OTHER) == ([4, 6, 8], [2], store.position())
    assert ids_after(store, start, NS, OTHER) == ([1, 4, 5, 6, 7, 8], [2, 3], store.position())
    assert ids_after(store, start) == ([], [], store.position())


def test_readers_of_many_namespaces_get_the_same(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they have more namespaces than there are rows, the log is read instead of every namespace."""
    monkeypatch.setattr(changes, "_ROWS", 5)
    rng = random.Random(3)
    store.add_namespace(NamespaceRecord(OTHER))
    start = store.position()
    for number in range(60):
        store.append([make_output([number + 1], namespace=rng.choice([NS, OTHER]))]).result()
        if number % 7 == 6:
            store.forget_many(NS, rng.sample(scan_ids(store, NS), 1))
    one = [store.generation(NS)]
    at = start
    while True:
        few, many = store.changes(at, one), store.changes(at, {*one, *range(1000, 2000)})
        assert few is not None
        assert many is not None
        assert [stored.output_id for _, stored in many.outputs] == [s.output_id for _, s in few.outputs]
        assert (many.deletions, many.position) == (few.deletions, few.position)
        if few.position == at:
            return
        at = few.position


def test_a_deleted_namespace_has_one_deletion_and_its_path_a_greater_generation(store: Store) -> None:
    store.append([make_output([n]) for n in range(3)]).result()
    start, old = store.position(), store.generation(NS)
    store.delete_namespace(NS)
    with pytest.raises(UnknownNamespaceError):
        store.generation(NS)
    assert store.position().lsn == 4
    store.append([make_output([7])], [NamespaceRecord(NS)]).result()
    new = store.generation(NS)
    assert new > old
    found = store.changes(start, [old, new])
    assert found is not None
    assert [(number, s.output_id) for number, s in found.outputs] == [(new, 5)]
    assert list(found.deletions) == [Deletion(old, 0, bytes(16))]


def test_large_changes_come_in_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_ROWS", 4)
    monkeypatch.setattr(changes, "_TOKENS", 100)
    store.add_namespace(NamespaceRecord(OTHER))
    start = store.position()
    rng = random.Random(seed := random.randrange(1 << 30))
    print("seed", seed)
    sizes = [rng.choice((1, 30, 200)) for _ in range(40)]
    written = store.append([make_output(range(n), namespace=rng.choice((NS, OTHER))) for n in sizes]).result()
    gone = rng.sample(written, 15)
    for each in gone:
        store.forget_many(store.get(each).output.namespace, [each])
    outputs, deleted, end = ids_after(store, start, NS, OTHER)
    assert outputs == scan_ids(store)
    assert deleted == gone
    assert end == store.position()
    first = store.changes(start, [store.generation(NS), store.generation(OTHER)])
    assert first is not None
    assert 0 < len(first.outputs) <= 4
    assert sum(len(s.output.token_ids) for _, s in first.outputs[:-1]) < 100


def test_old_deletions_are_forgotten(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader behind them begins again; one that is not goes on."""
    monkeypatch.setattr(write_view, "MAX_DELETIONS", 3)
    store.append([make_output([n]) for n in range(9)]).result()
    positions = [store.position()]
    for output_id in range(1, 6):
        store.forget_many(NS, [output_id])
        positions.append(store.position())
    generation = store.generation(NS)
    found = [store.changes(position, [generation]) for position in positions]
    assert [None if each is None else [d.output_id for d in each.deletions] for each in found] == [
        None,
        None,
        [3, 4, 5],
        [4, 5],
        [5],
        [],
    ]
    store.check()


def test_a_log_does_not_lead_on_from_another_one(store: Store) -> None:
    store.append([make_output([1])]).result()
    here, generation = store.position(), store.generation(NS)
    assert store.changes(here, [generation]) is not None
    for position in (
        replace(here, lsn=here.lsn + 1),
        replace(here, node_id=here.node_id ^ 1),
        replace(here, run=here.run ^ 1),
        replace(here, lsn=2**64),
        replace(here, lsn=-1),
    ):
        assert store.changes(position, [generation]) is None, position


def test_a_deletion_of_an_unknown_generation_is_none_of_the_reader(store: Store) -> None:
    store.append([make_output([1])]).result()
    start = store.position()
    store.forget_many(NS, [1])
    found = store.changes(start, [store.generation(NS) + 1, 0, -1])
    assert found is not None
    assert (list(found.outputs), list(found.deletions)) == ([], [])


def test_every_commit_is_announced(store: Store) -> None:
    seen: list[int] = []
    store.set_commit_listener(seen.append)
    store.append([make_output([1])]).result()
    store.append([make_output([2])]).result()
    store.forget_many(NS, [1])
    store.barrier()
    assert seen[0] == 1
    assert seen == sorted(seen)
    assert seen[-1] == 3


# --- in a folder ---------------------------------------------------------------------------------------


def test_a_position_outlives_the_process(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "data")
    store.append([make_output([n]) for n in range(3)], [NamespaceRecord(NS)]).result()
    store.forget_many(NS, [1])
    start = store.position()
    store.close()
    store = LmdbStore(tmp_path / "data")
    assert store.position() == start
    store.forget_many(NS, [2])
    assert ids_after(store, start, NS) == ([], [2], store.position())
    store.close()


def test_a_restored_backup_is_noticed(tmp_path: Path) -> None:
    """It assigns the same LSNs again, to other outputs."""
    store = LmdbStore(tmp_path / "data")
    store.append([make_output([1])], [NamespaceRecord(NS)]).result()
    early = store.position()
    store.close()
    shutil.copy(tmp_path / "data" / "data.mdb", tmp_path / "backup")
    store = LmdbStore(tmp_path / "data")
    store.append([make_output([2])]).result()
    late = store.position()
    store.close()
    shutil.copy(tmp_path / "backup", tmp_path / "data" / "data.mdb")
    store = LmdbStore(tmp_path / "data")
    generation = store.generation(NS)
    assert store.changes(late, [generation]) is None
    store.append([make_output([3])]).result()
    assert store.position().lsn == late.lsn
    assert store.changes(late, [generation]) is None
    assert ids_after(store, early, NS) == ([2], [], store.position())
    store.close()


def test_the_rows_of_an_append_that_failed_are_deleted_for_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers may have them: parts of a large append can be read before its end."""
    store = LmdbStore(tmp_path / "data")
    store.append([make_output([1])], [NamespaceRecord(NS)]).result()
    start = store.position()
    apply = AppendSlices.apply

    def fail_the_second(self: AppendSlices, view: write_view.WriteView) -> Any:
        if self.ids:
            raise StoreFullError("no room")
        return apply(self, view)

    monkeypatch.setattr(AppendSlices, "apply", fail_the_second)
    with pytest.raises(StoreFullError):
        store.append([make_output([n]) for n in range(2 * SLICE_ROWS)]).result()
    outputs, deleted, end = ids_after(store, start, NS)
    assert outputs == []
    assert sorted(deleted) == list(range(2, SLICE_ROWS + 2))
    assert end == store.position()
    store.check()
    store.close()


def test_readers_of_an_older_folder_begin_again_after_its_upgrade(tmp_path: Path) -> None:
    store = LmdbStore(golden_folder("v3", tmp_path / "old"), migrate=True)
    last = store.stats().last_lsn
    with store._log.read() as view:
        assert view.history.floor == last > 0
        earlier = changes.position_at(view, last - 1)
    path = store.namespaces()[0].path
    assert store.changes(earlier, [store.generation(path)]) is None
    assert store.changes(store.position(), [store.generation(path)]) is not None
    store.close()


def test_a_folder_written_by_schema_4_opens(tmp_path: Path) -> None:
    store = LmdbStore(golden_folder("v4", tmp_path / "old"), migrate=True)
    start = LogPosition(node_id_of(store), 0, 0)
    assert scan_ids(store) == [2, 3]
    assert ids_after(store, start, "acme/a") == ([2, 3], [1], store.position())
    assert store.position().lsn == 5
    store.check()
    store.close()


def write_golden_folder(folder: Path) -> None:
    """Outputs 1 to 3 of one namespace and the deletion of the first one, and a deleted namespace."""
    store = LmdbStore(folder, map_bytes_initial=256 << 10)
    store.append(
        [make_output([n], namespace="acme/a") for n in (1, 2, 3)], [NamespaceRecord("acme/a")]
    ).result()
    store.forget_many("acme/a", [1])
    store.add_namespace(NamespaceRecord("acme/b"))
    store.delete_namespace("acme/b")
    store.close()


# --- records and damage --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDS)
def test_bytes_are_those_of_the_golden_file(name: str) -> None:
    record, decode, value = RECORDS[name]
    golden = bytes.fromhex((GOLDEN / "v4" / f"{name}.hex").read_text())
    assert record.hex(" ", 8) == golden.hex(" ", 8)
    assert decode(golden) == value


@pytest.mark.parametrize("name", ["deletion", "history"])
def test_every_change_of_a_record_is_noticed(name: str) -> None:
    record, decode, _ = RECORDS[name]
    for at in range(len(record)):
        damaged = bytearray(record)
        damaged[at] ^= 0x81
        with pytest.raises(StoreCorruptError):
            decode(bytes(damaged))
        with pytest.raises(StoreCorruptError):
            decode(record[:at])


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (replace(DELETION, output_id=42), "earlier"),
        (replace(DELETION, output_id=0), "without a uuid"),
        (replace(DELETION, lsn=43), "LSN"),
    ],
)
def test_an_impossible_deletion_is_noticed(row: table_records.DeletionRow, why: str) -> None:
    with pytest.raises(StoreCorruptError, match=why):
        table_records.decode_deletion(table_records.encode_deletion(row), keys.log_key(42))


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (table_records.DeletionRow(9, 1, 1, bytes(16)), "out of range"),
        (table_records.DeletionRow(3, 2, 1, bytes(16)), "in the log"),
        (table_records.DeletionRow(2, 1, 1, bytes(16)), "in the log"),
    ],
)
def test_check_compares_deletions_with_the_log(
    tmp_path: Path, row: table_records.DeletionRow, why: str
) -> None:
    store = LmdbStore(tmp_path / "data")
    store.append([make_output([1]), make_output([2])], [NamespaceRecord(NS)]).result()
    store.forget_many(NS, [1])
    store.close()

    def add(txn: Any, db: Any) -> None:
        txn.put(keys.log_key(row.lsn), table_records.encode_deletion(row), db=db("deletions"))

    rewrite(tmp_path / "data", add)
    store = LmdbStore(tmp_path / "data")
    with pytest.raises(StoreCorruptError, match=why):
        store.check()
    store.close()
