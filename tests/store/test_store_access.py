"""The mark of a log that was served with access control, in the store: durable, in every schema, checked."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import lmdb
import pytest
from store_testing import NS, golden_folder, make_output, rewrite

from suffixsvc.errors import StoreClosedError, StoreCorruptError
from suffixsvc.store import LmdbStore, MemoryStore
from suffixsvc.store.base import Store
from suffixsvc.store.records import keys, table_records
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.types import NamespaceRecord


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    opened: Store = LmdbStore(tmp_path / "data") if request.param == "lmdb" else MemoryStore()
    yield opened
    opened.check()
    opened.close()
    with pytest.raises(StoreClosedError):
        _ = opened.access_controlled


def test_it_is_set_and_removed_and_nothing_else_changes(store: Store) -> None:
    store.add_namespace(NamespaceRecord(NS))
    [lsn] = store.append([make_output([1, 2])]).result()
    assert not store.access_controlled
    for value in (True, True, False, False, True):
        store.set_access_controlled(value)
        assert store.access_controlled == value
        store.check()
    assert store.last_lsn == lsn
    assert [stored.output_id for stored in store.scan()] == [lsn]


def test_a_value_that_is_there_is_not_written(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    store.set_access_controlled(True)
    txn = store._log.snapshot.counters.txn
    store.set_access_controlled(True)
    assert store._log.snapshot.counters.txn == txn
    store.close()


def test_it_is_there_after_a_restart_and_beside_other_writes(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    store.add_namespace(NamespaceRecord(NS))
    writers = [
        threading.Thread(target=lambda n=n: store.append([make_output([n])]).result()) for n in range(8)
    ]
    for writer in writers:
        writer.start()
    store.set_access_controlled(True)
    for writer in writers:
        writer.join()
    store.close()
    store = LmdbStore(tmp_path)
    assert store.access_controlled
    assert store.stats().outputs == 8
    store.check()
    store.close()


def test_a_check_compares_it_with_the_file(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    store.set_access_controlled(True)

    def forget(view: WriteView) -> None:
        schema, created_us, _ = table_records.decode_schema(view.tables.get("meta", keys.SCHEMA_KEY) or b"")
        view.put("meta", keys.SCHEMA_KEY, table_records.encode_schema(schema, created_us))

    store._call(forget)
    with pytest.raises(StoreCorruptError, match="mark of access control"):
        store.check()
    store.close()


@pytest.mark.parametrize("flags", [2, 3, 0x8000])
def test_other_flags_are_damage(tmp_path: Path, flags: int) -> None:
    LmdbStore(tmp_path).close()
    raw = table_records._SCHEMA.encode(table_records.SCHEMA_VERSION, 0, flags=flags)
    rewrite(tmp_path, lambda txn, db: txn.put(keys.SCHEMA_KEY, raw, db=db("meta")))
    with pytest.raises(StoreCorruptError, match="schema record: reserved bits"):
        LmdbStore(tmp_path)


@pytest.mark.parametrize("version", ["v1", "v2", "v3", "v4", "v5"])
def test_a_folder_of_an_earlier_build_has_none(tmp_path: Path, version: str) -> None:
    folder = golden_folder(version, tmp_path / "old")
    store = LmdbStore(folder, migrate=True)
    assert not store.access_controlled
    store.set_access_controlled(True)
    store.close()
    store = LmdbStore(folder)
    assert store.access_controlled
    store.check()
    store.close()


def test_a_folder_without_room_for_its_migration_can_have_it_and_keeps_it(tmp_path: Path) -> None:
    def no_room(view: WriteView, *rest: Any) -> None:
        raise lmdb.MapFullError("no page left")

    folder = golden_folder("v4", tmp_path / "old")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WriteView, "put_schema", no_room)
        store = LmdbStore(folder, migrate=True, limit_bytes=8 << 20)  # it grows up to its limit
    assert store.schema == 4
    store.set_access_controlled(True)
    store.check()
    store.close()
    store = LmdbStore(folder, migrate=True)
    assert store.schema == table_records.SCHEMA_VERSION
    assert store.access_controlled
    store.check()
    store.close()
