"""Principals of outputs (schema 5): numbers and names, upgrade of older folders, damage."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from store_testing import GOLDEN as GOLDEN_FOLDERS
from store_testing import NS, UUID, Clock, golden_folder, make_output, plain_stored, rewrite

from suffixsvc.errors import InvalidInputError, LimitExceededError, StoreCorruptError, StoreFullError
from suffixsvc.store import LmdbStore, MemoryStore
from suffixsvc.store.base import Store
from suffixsvc.store.records import keys, log_records, table_records
from suffixsvc.store.transactions import write_view
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.types import NamespaceRecord

GOLDEN = GOLDEN_FOLDERS / "v5"
LOG = log_records.LogRecord(
    lsn=42,
    payload=keys.PayloadKey(7, bytes(range(16)), 0),
    token_count=5,
    written_us=1_700_000_000_250_000,
    ttl_seconds=0,
    incomplete=False,
    corpus=False,
    prompt_tail=np.asarray([11], np.int32),
    labels={"agent": "sql-writer"},
    uuid=UUID,
    node_id=0x0102030405060708,
    principal=2,
    session_id="mine",
)
#: name -> (encoded record, its decoder)
RECORDS: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "schema": (table_records.encode_schema(5, 1_700_000_000_250_000), table_records.decode_schema),
    "schema_access_controlled": (
        table_records.encode_schema(5, 1_700_000_000_250_000, access_controlled=True),
        table_records.decode_schema,
    ),
    "log": (log_records.encode_log(LOG), lambda raw: log_records.decode_log(raw, 42)),
    "erasure": (table_records.encode_erasure(42), table_records.decode_erasure),
    "principal": (
        table_records.encode_principal(2, "ci-bot@acme:eu"),
        lambda raw: table_records.decode_principal(raw, keys.principal_key(2)),
    ),
}


def principals(store: Store) -> list[str]:
    """The principals of all outputs, by output id."""
    return [stored.output.principal for stored in store.scan()]


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    opened: Store = LmdbStore(tmp_path / "data") if request.param == "lmdb" else MemoryStore()
    opened.add_namespace(NamespaceRecord(NS))
    yield opened
    opened.check()
    opened.close()


def test_every_output_has_its_principal(store: Store) -> None:
    wanted = ["ann", "", "bob", "ann", "a" * 128, "ci-bot@acme:eu.1_x"]
    store.append([make_output([n], principal=name) for n, name in enumerate(wanted)]).result()
    assert principals(store) == wanted
    assert [store.get(n + 1).output.principal for n in range(len(wanted))] == wanted
    deleted: list[Any] = []
    store.set_deletion_listener(deleted.extend)
    store.forget_many(NS, [3])
    store.barrier()
    assert [stored.output.principal for stored in deleted] == ["bob"]


def test_equal_texts_of_two_principals_share_a_payload_and_nothing_else(store: Store) -> None:
    store.append([make_output([1, 2], principal="ann"), make_output([1, 2], principal="bob")]).result()
    assert store.stats().payloads == 1
    store.forget_many(NS, [1])
    assert principals(store) == ["bob"]


def test_a_number_is_kept_after_its_last_output(store: Store) -> None:
    store.append([make_output([1], principal="ann")]).result()
    store.forget_many(NS, [1])
    store.append([make_output([2], principal="bob"), make_output([3], principal="ann")]).result()
    with store._log.read() as view:
        assert [view.log_record(lsn).principal for lsn in (3, 4)] == [2, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["a" * 129, "with space", "ünicode", "a/b", "a\n", 7, None])
def test_other_names_are_refused(store: Store, name: Any) -> None:
    with pytest.raises(InvalidInputError, match="principal must be"):
        store.append([make_output([1], principal=name)]).result()
    assert principals(store) == []


def test_an_append_that_fails_leaves_no_principal(store: Store) -> None:
    store.append([make_output([1], uuid=UUID)]).result()
    with pytest.raises(InvalidInputError, match="uuid"):
        store.append([make_output([2], principal="ann"), make_output([3], uuid=UUID)]).result()
    with store._log.read() as view:
        assert view.principals.names == ()


def test_there_are_at_most_so_many(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_view, "MAX_PRINCIPALS", 2)
    store.append([make_output([n], principal=f"p{n}") for n in (1, 2)]).result()
    with pytest.raises(LimitExceededError, match=r"at most 2.*'p3'"):
        store.append([make_output([3], principal="p3")]).result()
    store.append([make_output([3], principal="p1")]).result()
    assert principals(store) == ["p1", "p2", "p1"]


def test_they_are_there_after_a_restart(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    store.add_namespace(NamespaceRecord(NS))
    store.append([make_output([n], principal=name) for n, name in enumerate(["ann", "bob"])]).result()
    store.close()
    store = LmdbStore(tmp_path)
    store.append([make_output([3], principal="bob"), make_output([4], principal="eve")]).result()
    assert principals(store) == ["ann", "bob", "bob", "eve"]
    store.check()
    store.close()


# --- golden files and older folders ------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDS)
def test_bytes_are_those_of_the_golden_file(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())
    assert RECORDS[name][0].hex(" ", 8) == golden.hex(" ", 8)


def test_golden_files_read_back() -> None:
    read = {
        name: decode(bytes.fromhex((GOLDEN / f"{name}.hex").read_text()))
        for name, (_, decode) in RECORDS.items()
    }
    assert read["schema"] == (5, 1_700_000_000_250_000, False)
    assert read["schema_access_controlled"] == (5, 1_700_000_000_250_000, True)
    assert read["principal"] == (2, "ci-bot@acme:eu")
    assert read["erasure"] == 42
    assert replace(read["log"], prompt_tail=LOG.prompt_tail) == LOG


@pytest.mark.parametrize("name", ["principal", "erasure", "schema_access_controlled"])
def test_every_change_of_a_record_is_noticed(name: str) -> None:
    raw, decode = RECORDS[name]
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 0x81
        with pytest.raises(StoreCorruptError):
            decode(bytes(damaged))
        with pytest.raises(StoreCorruptError):
            decode(raw[:at])


@pytest.mark.parametrize("name", ["", "a b"])
def test_an_impossible_record_is_noticed(name: str) -> None:
    with pytest.raises(StoreCorruptError, match="name must"):
        RECORDS["principal"][1](table_records.encode_principal(2, name))
    with pytest.raises(StoreCorruptError, match="must not be zero"):
        table_records.decode_erasure(table_records.encode_erasure(0))


def write_golden_folder(folder: Path) -> list[Any]:
    store = LmdbStore(folder, clock=Clock(), map_bytes_initial=256 << 10)
    store.add_namespace(NamespaceRecord(NS, "xxh3:0123456789abcdef"))
    names = ["ann", "", "ci-bot@acme:eu", "ann"]
    store.append([make_output([n, n + 1], principal=name) for n, name in enumerate(names)]).result()
    rows: list[Any] = [(*plain_stored(stored), stored.output.principal) for stored in store.scan()]
    store.close()
    return rows


def test_a_folder_written_by_schema_5_opens(tmp_path: Path) -> None:
    expected = write_golden_folder(tmp_path / "now")
    store = LmdbStore(golden_folder("v5", tmp_path / "old"))
    assert [(*plain_stored(stored), stored.output.principal) for stored in store.scan()] == expected
    assert principals(store) == ["ann", "", "ci-bot@acme:eu", "ann"]
    store.check()
    store.close()


@pytest.mark.parametrize(("version", "path"), [("v1", "acme/a"), ("v2", NS), ("v3", NS), ("v4", "acme/a")])
def test_an_older_folder_learns_principals_when_it_is_opened(tmp_path: Path, version: str, path: str) -> None:
    folder = golden_folder(version, tmp_path / "old")
    store = LmdbStore(folder, migrate=True)
    before = principals(store)
    assert set(before) == {""}
    store.append([make_output([5], namespace=path, principal="ann")]).result()
    store.check()
    store.close()
    store = LmdbStore(folder)
    assert principals(store) == [*before, "ann"]
    store.check()
    store.close()
    with lmdb.open(str(folder), max_dbs=16, readonly=True, lib_version=0) as env, env.begin() as txn:
        raw = txn.get(keys.SCHEMA_KEY, db=env.open_db(b"meta", txn=txn, create=False))
        assert raw is not None
        assert table_records.decode_schema(raw)[0] == 5


def test_readers_of_a_folder_of_schema_4_read_on_after_its_upgrade(tmp_path: Path) -> None:
    store = LmdbStore(golden_folder("v4", tmp_path / "old"), migrate=True)
    with store._log.read() as view:
        assert view.history.floor == 0
        assert view.history.runs
    store.close()


def test_without_room_for_them_an_output_with_a_principal_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not be stored as another's."""

    def no_room(view: WriteView, *rest: Any) -> None:
        raise lmdb.MapFullError("no page left")

    folder = golden_folder("v4", tmp_path / "old")
    with monkeypatch.context() as patch:
        patch.setattr(WriteView, "put_schema", no_room)
        store = LmdbStore(folder, limit_bytes=8 << 20, migrate=True)
    count = len(principals(store))
    with pytest.raises(StoreFullError, match="'principals'"):
        store.append([make_output([1], namespace="acme/a", principal="ann")]).result()
    store.append([make_output([1], namespace="acme/a")]).result()
    assert principals(store) == [""] * (count + 1)
    store.check()
    store.close()


# --- damage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "why", "at_open"),
    [
        (lambda txn, db: txn.delete(keys.principal_key(2), db=db("principals")), "unknown principal", False),
        (lambda txn, db: txn.delete(keys.principal_key(1), db=db("principals")), "next number", True),
        (
            lambda txn, db: txn.put(
                keys.principal_key(3), table_records.encode_principal(3, "ann"), db=db("principals")
            ),
            "name of its own",
            True,
        ),
        (
            lambda txn, db: txn.put(
                keys.principal_key(3), table_records.encode_principal(4, "eve"), db=db("principals")
            ),
            "number must be the one in its key",
            True,
        ),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Any, why: str, at_open: bool) -> None:
    write_golden_folder(tmp_path)
    rewrite(tmp_path, damage)
    if at_open:
        with pytest.raises(StoreCorruptError, match=why):
            LmdbStore(tmp_path)
        return
    store = LmdbStore(tmp_path)
    with pytest.raises(StoreCorruptError, match=why):
        store.check()
    with pytest.raises(StoreCorruptError, match="missing principal"):
        list(store.scan())
    store.close()


if __name__ == "__main__":  # writes the golden files of a new record or schema version
    import tempfile

    GOLDEN.mkdir(parents=True, exist_ok=True)
    for record_name, (record_bytes, _) in RECORDS.items():
        rows_of_16 = [record_bytes[at : at + 16].hex(" ", 4) for at in range(0, len(record_bytes), 16)]
        (GOLDEN / f"{record_name}.hex").write_text("\n".join(rows_of_16) + "\n")
    with tempfile.TemporaryDirectory() as scratch:
        write_golden_folder(Path(scratch) / "golden")
        with gzip.GzipFile(GOLDEN / "data.mdb.gz", "wb", mtime=0) as out:
            out.write((Path(scratch) / "golden" / "data.mdb").read_bytes())
