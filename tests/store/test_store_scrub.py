"""Erasure in the store: the request in the log, and the bytes of ``data.mdb`` afterwards."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import numpy as np
import pytest
from store_testing import NS, make_output, rewrite, scan_ids

from suffixsvc.errors import StoreClosedError, StoreCorruptError, StoreError
from suffixsvc.selection import Selection
from suffixsvc.store import LmdbStore, MemoryStore
from suffixsvc.store.base import Store
from suffixsvc.store.files import page_walk, scrub
from suffixsvc.store.lmdb_log.environment import Environment
from suffixsvc.store.records import keys, table_records
from suffixsvc.types import NamespaceRecord


def text_of(seed: int) -> list[int]:
    """A text of its own, of 3 to 3,000 tokens: on a leaf page, or on one or several overflow pages."""
    return [0x01010000 + (seed << 16) + n for n in range(Random(seed).choice([3, 30, 400, 1000, 3000]))]


def seeds_in(folder: Path, seeds: Any) -> set[int]:
    """Whose first, middle or last two tokens are in the file."""
    raw = (folder / "data.mdb").read_bytes()
    found = set()
    for seed in seeds:
        packed, size = np.asarray(text_of(seed), "<i4").tobytes(), 4 * len(text_of(seed))
        if any(packed[at : at + 8] in raw for at in (0, size // 8 * 4 - 4, size - 8)):
            found.add(seed)
    return found


def fill(store: Store, seeds: Any) -> dict[int, int]:
    """Append a text per transaction; ids by seed."""
    return {
        seed: store.append([make_output(text_of(seed), labels={"seed": str(seed)})]).result()[0]
        for seed in seeds
    }


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = LmdbStore(tmp_path / "data") if request.param == "lmdb" else MemoryStore()
    opened.add_namespace(NamespaceRecord(NS))
    yield opened
    opened.check()
    opened.close()


def test_a_request_stays_until_it_is_finished(store: Store) -> None:
    ids = fill(store, range(4))
    assert store.erasure_due() == 0
    store.forget_many(NS, [ids[0]])
    assert store.erasure_due() == 0
    store.forget_many(NS, [ids[1]], erase=True)
    first = store.erasure_due()
    assert first == store.stats().last_lsn
    store.forget_many(NS, [ids[2]], erase=True)
    second = store.erasure_due()
    assert second > first
    store.scrub()
    store.finish_erasure(first)  # the deletion after it is still due
    assert store.erasure_due() == second
    store.forget_many(NS, [ids[2]], erase=True)  # of nothing
    assert store.erasure_due() == second
    store.finish_erasure(second)
    assert store.erasure_due() == 0
    store.request_erasure()
    assert store.erasure_due() > 0


def test_states_and_namespaces_are_requested_too(store: Store) -> None:
    store.put_state(NS, "learner", b"tables")
    assert store.drop_state(NS, "nothing") is False
    assert store.erasure_due() == 0
    assert store.drop_state(NS, "learner") is True
    assert store.get_state(NS, "learner") is None
    due = store.erasure_due()
    assert due > 0
    store.finish_erasure(due)
    store.append([make_output([1])]).result()
    store.delete_namespace(NS)
    assert store.erasure_due() > 0


def test_a_request_is_there_after_a_restart(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    store.add_namespace(NamespaceRecord(NS))
    ids = fill(store, range(3))
    store.forget_many(NS, [ids[1]], erase=True)
    due = store.erasure_due()
    store.close()
    store = LmdbStore(tmp_path)
    assert store.erasure_due() == due
    store.check()
    store.scrub()
    store.finish_erasure(due)
    store.close()
    store = LmdbStore(tmp_path)
    assert store.erasure_due() == 0
    assert seeds_in(tmp_path, range(3)) == {0, 2}
    store.close()


@pytest.mark.parametrize("seed", range(3))
def test_nothing_deleted_is_in_the_file_and_everything_else_is(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    store = LmdbStore(tmp_path, map_bytes_initial=256 << 10)
    store.add_namespace(NamespaceRecord(NS))
    ids: dict[int, int] = {}
    gone: set[int] = set()
    for step in range(4):
        ids |= fill(store, range(30 * step, 30 * step + 30))
        chosen = rng.sample(sorted(ids), rng.randrange(1, len(ids)))
        store.forget_many(NS, [ids.pop(each) for each in chosen], erase=True)
        gone |= set(chosen)
        store.scrub()
        assert seeds_in(tmp_path, range(120)) == set(ids)
        assert scan_ids(store) == sorted(ids.values())
        store.check()
    assert page_walk.is_sound(str(tmp_path / "data.mdb"))
    store.close()
    assert seeds_in(tmp_path, gone) == set()
    store = LmdbStore(tmp_path)
    assert {
        int(stored.output.labels["seed"]): stored.output.token_ids.tolist() for stored in store.scan()
    } == {each: text_of(each) for each in ids}
    store.check()
    store.close()


def test_a_second_pass_writes_nothing(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    store.add_namespace(NamespaceRecord(NS))
    ids = fill(store, range(60))
    store.forget_many(NS, list(ids.values())[::2])
    store.scrub()
    store.close()
    path = str(tmp_path / "data.mdb")
    before = os.stat(path).st_blocks
    scrub.scrub(path, lambda point: None)
    assert scrub.scrub(path, lambda point: None) == 0
    assert os.stat(path).st_blocks == before  # every block stays allocated


def test_what_an_aborted_transaction_wrote_beyond_the_last_page_is_cleared(tmp_path: Path) -> None:
    """LMDB writes the pages of a large transaction before its commit."""
    store = LmdbStore(tmp_path, map_bytes_initial=16 << 20)
    store.add_namespace(NamespaceRecord(NS))
    fill(store, [1])
    store.close()
    path = tmp_path / "data.mdb"
    with path.open("r+b") as file:
        file.seek(-8192, os.SEEK_END)
        file.write(np.asarray(text_of(77), "<i4").tobytes()[:4096])
    store = LmdbStore(tmp_path)
    assert seeds_in(tmp_path, [1, 77])
    store.scrub()
    assert seeds_in(tmp_path, [1, 77]) == {1}
    store.check()
    store.close()


def test_rows_are_read_and_written_meanwhile(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    store.add_namespace(NamespaceRecord(NS))
    ids = fill(store, range(100))
    ended = threading.Event()
    failures: list[BaseException] = []

    def use(number: int) -> None:
        try:
            while not ended.is_set():
                assert store.get(ids[number]).output.token_ids.tolist() == text_of(number)
                store.append([make_output([5, 6, 7])]).result()
                assert len(scan_ids(store)) > 50
        except BaseException as error:  # of the thread
            failures.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in (1, 3)]
    for thread in threads:
        thread.start()
    for number in range(0, 100, 10):
        store.forget_many(NS, [ids[number]], erase=True)
        store.scrub()
        assert seeds_in(tmp_path, [number]) == set()
    ended.set()
    for thread in threads:
        thread.join()
    assert not failures
    store.check()
    store.close()


def test_an_environment_that_cannot_be_renewed_is_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LmdbStore(tmp_path)
    store.add_namespace(NamespaceRecord(NS))
    ids = fill(store, range(10))
    store.forget_many(NS, [ids[0]], erase=True)

    def fails(*_: Any) -> lmdb.Environment:
        raise StoreError("no descriptor left")

    with monkeypatch.context() as patch:
        patch.setattr(Environment, "_open", fails)
        with pytest.raises(StoreError, match="no descriptor"):
            store.scrub()
        assert store.failure() is not None
    while store.failure() is not None:
        threading.Event().wait(0.01)
    assert scan_ids(store) == list(ids.values())[1:]
    store.scrub()
    assert seeds_in(tmp_path, range(10)) == set(range(1, 10))
    store.check()
    store.close()
    with pytest.raises(StoreClosedError):
        store.scrub()


def test_a_file_that_is_not_sound_is_left_as_it_is(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    store.add_namespace(NamespaceRecord(NS))
    fill(store, range(30))
    store.close()
    path = tmp_path / "data.mdb"
    raw = bytearray(path.read_bytes())
    at = raw.index(np.asarray(text_of(3), "<i4").tobytes()[:12])
    raw[at // 4096 * 4096 + 10] ^= 0xFF  # the flags of its page
    path.write_bytes(raw)
    with pytest.raises(StoreError, match="cannot be overwritten"):
        scrub.scrub(str(path), lambda point: None)
    assert path.read_bytes() == raw


def test_select(store: Store) -> None:
    ids = list(fill(store, range(5)).values())
    assert store.select(NS, Selection(labels={"seed": "3"})) == [ids[3]]
    assert store.select(NS, Selection(output_ids=[ids[4], 99, ids[1]])) == [ids[1], ids[4]]
    for age in (1e12, 1e18, 1e308):  # What happened: OverflowError for 1e308
        assert store.select(NS, Selection(older_than_seconds=age)) == []
    assert store.select(NS, Selection(older_than_seconds=0)) == ids
    assert store.select(NS, Selection(NS)) == ids


@pytest.mark.parametrize("lsn", [0, 7])
def test_damage_of_the_record_is_noticed(tmp_path: Path, lsn: int) -> None:
    LmdbStore(tmp_path).close()
    rewrite(
        tmp_path,
        lambda txn, db: txn.put(keys.ERASURE_KEY, table_records.encode_erasure(lsn)[::-1], db=db("meta")),
    )
    with pytest.raises(StoreCorruptError, match="erasure record"):
        LmdbStore(tmp_path)
