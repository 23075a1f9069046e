"""Folders of older schemas: upgrade at open, without room, and with kills at every point."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from store_testing import NS, UUID, find, golden_folder, make_output, node_id_of, plain_stored, uuid_of

from suffixsvc.store import LmdbStore
from suffixsvc.store.records import keys, table_records
from suffixsvc.store.transactions.operations import SLICE_ROWS
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.types import NamespaceRecord, repeated_in
from support.forking import ForkServer

# --- folders of older schemas ------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "path"), [("v1", "acme/a"), ("v2", NS)])
def test_an_older_folder_is_upgraded_when_it_is_opened(tmp_path: Path, version: str, path: str) -> None:
    """In one transaction: rows are unchanged, and have the uuids that would be generated for them."""
    folder = golden_folder(version, tmp_path / "old")
    store = LmdbStore(folder, migrate=True)
    node = node_id_of(store)
    assert node > 0
    rows = list(store.scan())
    assert rows
    assert [stored.output.uuid for stored in rows] == [uuid_of(store, s.output_id) for s in rows]
    assert [find(store, s.output.namespace, s.output.uuid) for s in rows] == [s.output_id for s in rows]
    assert {stored.output.session_id for stored in rows} == {""}
    (new,) = store.append([make_output([5], namespace=path, uuid=UUID, session_id="s")]).result()
    store.forget_many(rows[0].output.namespace, [rows[0].output_id])
    store.check()
    store.close()
    store = LmdbStore(folder)
    assert node_id_of(store) == node
    assert find(store, path, UUID) == new
    store.check()
    store.close()
    with lmdb.open(str(folder), max_dbs=16, readonly=True, lib_version=0) as env, env.begin() as txn:
        raw = txn.get(keys.SCHEMA_KEY, db=env.open_db(b"meta", txn=txn, create=False))
        assert raw is not None
        assert table_records.decode_schema(raw)[0] == table_records.SCHEMA_VERSION  # older releases refuse it


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_folder_without_room_for_the_new_schema_is_served_as_it_is(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk rows are read, written and forgotten as before."""

    def no_room(view: WriteView, *rest: Any) -> None:
        raise lmdb.MapFullError("no page left")

    before = LmdbStore(golden_folder(version, tmp_path / "reference"), migrate=True)
    expected = [plain_stored(stored) for stored in before.scan()]
    path = before.namespaces()[0].path
    before.close()
    folder = golden_folder(version, tmp_path / "old")
    with monkeypatch.context() as patch:
        patch.setattr(WriteView, "put_schema", no_room)
        store = LmdbStore(folder, migrate=True, limit_bytes=8 << 20)
    assert not list(folder.glob("backup-*")), "the backup of a migration that did not happen must be removed"
    assert [plain_stored(stored) for stored in store.scan()] == expected
    assert node_id_of(store) == 0
    assert find(store, path, UUID) is None
    ids = store.append([make_output([n], namespace=path, uuid=UUID, session_id="s") for n in (1, 2)]).result()
    assert repeated_in(ids) == []
    assert [store.get(n).output.uuid for n in ids] == [b"", b""]
    assert store.incomplete("s") == []
    store.forget_many(path, [ids[0]])
    store.append([make_output([n], namespace=path) for n in range(3 * SLICE_ROWS)]).result()
    store.delete_namespace(path)
    store.check()
    store.close()
    store = LmdbStore(folder, migrate=True)  # with room for it
    assert node_id_of(store) > 0
    store.check()
    store.close()


def test_a_folder_without_room_for_deletions_is_served_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(view: WriteView, *rest: Any) -> None:
        raise lmdb.MapFullError("no page left")

    folder = golden_folder("v3", tmp_path / "old")
    with monkeypatch.context() as patch:
        patch.setattr(WriteView, "put_schema", no_room)
        store = LmdbStore(folder, migrate=True, limit_bytes=8 << 20)
    assert not list(folder.glob("backup-*")), "the backup of a migration that did not happen must be removed"
    node, last, path = node_id_of(store), store.stats().last_lsn, store.namespaces()[0].path
    position = store.position()
    store.append([make_output([n], namespace=path) for n in range(3)]).result()
    store.forget_many(path, [last + 1])
    assert store.stats().last_lsn == last + 3
    assert store.changes(position, [store.generation(path)]) is None
    store.check()
    store.close()
    store = LmdbStore(folder, migrate=True)  # with room for it
    assert node_id_of(store) == node
    store.forget_many(path, [last + 2])
    assert store.stats().last_lsn == last + 4
    store.check()
    store.close()


# --- kills -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    house = ForkServer(Path(__file__).with_name("identity_child.py"))
    yield house
    house.close()


@pytest.mark.crash
@pytest.mark.parametrize("version", ["v1", "v2", "v3", "v4"])
@pytest.mark.parametrize(
    "point",
    [
        "backup-copied",
        "backup-written",
        "grow-extended",
        "grown",
        "begun",
        "written",
        "committed",
        "acknowledged",
    ],
)
def test_a_kill_in_the_middle_of_an_upgrade(
    fork_server: ForkServer, tmp_path: Path, version: str, point: str
) -> None:
    """After a kill at any point of the upgrade the folder is complete, in the old schema or the new one, and
    the backup is the folder as it was."""
    original = (golden_folder(version, tmp_path / "original") / "data.mdb").read_bytes()
    before = LmdbStore(golden_folder(version, tmp_path / "reference"), migrate=True)
    expected = [plain_stored(stored) for stored in before.scan()]
    before.close()
    for hits in (1, 2, 3):
        folder = golden_folder(version, tmp_path / str(hits))
        order = {"folder": str(folder), "what": "open", "point": point, "hits": hits}
        status = fork_server.run(order, lambda line: None, None)
        for _ in range(2):
            store = LmdbStore(folder, migrate=True)
            assert [plain_stored(stored) for stored in store.scan()] == expected
            assert node_id_of(store) > 0
            store.check()
            store.close()
        (backup,) = folder.glob("backup-schema-*")
        assert [each.name for each in backup.iterdir()] == ["data.mdb"]
        assert (backup / "data.mdb").read_bytes().rstrip(b"\0") == original.rstrip(b"\0")
        if status != -signal.SIGKILL:
            break
        assert hits < 3
    assert status != -signal.SIGKILL or hits > 1


@pytest.mark.crash
@pytest.mark.parametrize("point", ["begun", "written", "committed", "acknowledged"])
def test_a_kill_in_the_middle_of_a_bulk_load_leaves_all_or_nothing(
    fork_server: ForkServer, tmp_path: Path, point: str
) -> None:
    """The load takes several transactions; after a kill the next open undoes it."""
    outcomes = set()
    for hits in range(1, 6):
        folder = tmp_path / str(hits)
        store = LmdbStore(folder)
        store.add_namespace(NamespaceRecord(NS))
        store.append([make_output([7], uuid=UUID)]).result()
        store.close()
        order = {"folder": str(folder), "what": "bulk", "point": point, "hits": hits}
        fork_server.run(order, lambda line: None, None)
        store = LmdbStore(folder)
        store.check()
        ids = [stored.output_id for stored in store.scan()]
        assert ids[0] == 1, "an output from before must stay, also if the load repeats it"
        outcomes.add(len(ids) - 1)
        assert store.append([make_output([1])]).result()[0] > max(ids)
        store.close()
    assert outcomes == {0, 3 * SLICE_ROWS + 10}
