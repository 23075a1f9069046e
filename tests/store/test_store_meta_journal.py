"""The rollback journal of the meta pages: what an open does with each state of it."""

from __future__ import annotations

import random
from pathlib import Path

import lmdb
import pytest
from store_testing import NS, make_output

from suffixsvc.errors import StoreCorruptError, StoreError
from suffixsvc.store import LmdbStore, datafile
from suffixsvc.store.meta_journal import JOURNAL_FILE, META_BYTES, MetaBefore, MetaJournal
from suffixsvc.types import NamespaceRecord

PAGE = 4096


def metas(folder: Path) -> list[bytes]:
    raw = (folder / "data.mdb").read_bytes()
    return [raw[at : at + META_BYTES] for at in (0, PAGE)]


def number_of(page: bytes) -> int:
    return int.from_bytes(page[-8:], "little")


def put(folder: Path, page: bytes) -> None:
    with (folder / "data.mdb").open("r+b") as file:
        file.seek(number_of(page) % 2 * PAGE)
        file.write(page)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a store with the outputs 1, 2 and 3, each of a transaction of its own."""
    store = LmdbStore(tmp_path / "data")
    store.add_namespace(NamespaceRecord(NS))
    for number in (1, 2, 3):
        store.append([make_output([number])]).result()
    store.close()
    return tmp_path / "data"


def journal(folder: Path, txn: int, raw: bytes, *, failed: bool) -> None:
    written = MetaJournal(str(folder))
    before = MetaBefore(txn, raw)
    (written.fail if failed else written.begin)(before)
    assert written.left() == MetaBefore(txn, raw, failed)
    written.close()
    assert (folder / JOURNAL_FILE).exists()


def ids(folder: Path) -> list[int]:
    store = LmdbStore(folder)
    store.check()
    found = [stored.output_id for stored in store.scan()]
    store.close()
    assert not (folder / JOURNAL_FILE).exists()
    return found


def half_restored(before: bytes, after: bytes) -> bytes:
    """As LMDB leaves a page that it could not write: the last page and the number of the old transaction."""
    return after[:-16] + before[-16:]


def next_commit(folder: Path) -> tuple[bytes, bytes]:
    """(The meta page that the next commit overwrites, what it writes there); the file is as it was after."""
    raw = (folder / "data.mdb").read_bytes()
    before = metas(folder)
    store = LmdbStore(folder)
    store.append([make_output([4])]).result()
    txn = store._environment.snapshot.counters.txn
    page = metas(folder)[txn % 2]
    store.close()
    with (folder / "data.mdb").open("r+b") as file:  # data pages of the commit stay, as they would
        file.write(raw[: 2 * PAGE])
    return before[txn % 2], page


def test_a_half_restored_page_is_put_back(folder: Path) -> None:
    before, after = next_commit(folder)
    put(folder, half_restored(before, after))
    damaged = (folder / "data.mdb").read_bytes()
    with pytest.raises(StoreCorruptError, match="not the one its data says"):
        LmdbStore(folder)
    assert (folder / "data.mdb").read_bytes() == damaged
    journal(folder, number_of(before) + 2, before, failed=False)
    assert ids(folder) == [1, 2, 3]


def test_a_page_that_was_damaged_later_is_still_noticed(folder: Path) -> None:
    """The same bytes without a journal that asks for them are damage, as before."""
    before, after = next_commit(folder)
    put(folder, after[:-8] + before[-8:])
    with pytest.raises(StoreCorruptError):
        LmdbStore(folder)


@pytest.mark.parametrize("failed", [False, True])
def test_a_commit_that_is_whole_stays_unless_it_failed(folder: Path, failed: bool) -> None:
    """A kill between a commit and its note in the journal takes nothing back; a failure, of which callers
    were told, does."""
    before, after = next_commit(folder)
    put(folder, after)
    journal(folder, number_of(after), before, failed=failed)
    assert ids(folder) == ([1, 2, 3] if failed else [1, 2, 3, 4])


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("distance", [-3, -2, 1, 2, 3])
def test_a_journal_of_another_state_changes_nothing(folder: Path, distance: int, failed: bool) -> None:
    older, newer = sorted(metas(folder), key=number_of)
    journal(folder, number_of(newer) + 1 + distance, older[::-1], failed=failed)
    data = (folder / "data.mdb").read_bytes()
    store = LmdbStore(folder)
    assert metas(folder) == [data[:META_BYTES], data[PAGE : PAGE + META_BYTES]]
    store.close()
    assert ids(folder) == [1, 2, 3]


def test_any_bytes_in_the_journals_place_keep_no_folder_from_opening(folder: Path) -> None:
    older, newer = sorted(metas(folder), key=number_of)
    journal(folder, number_of(newer), older, failed=True)
    good = (folder / JOURNAL_FILE).read_bytes()
    rng = random.Random(3)
    for raw in (b"", b"SX", good[:40], good[:-400], rng.randbytes(512), bytes(512)):
        (folder / JOURNAL_FILE).write_bytes(raw)
        assert ids(folder) == [1, 2, 3]
    for _ in range(30):
        raw = bytearray(good)
        raw[rng.randrange(16 + META_BYTES)] ^= 1 << rng.randrange(8)
        (folder / JOURNAL_FILE).write_bytes(raw)
        assert ids(folder) == [1, 2, 3]


def test_a_journal_without_a_data_file_is_dropped(tmp_path: Path) -> None:
    tmp_path.joinpath("data").mkdir()
    journal(tmp_path / "data", 7, bytes(META_BYTES), failed=True)
    assert ids(tmp_path / "data") == []


def test_a_commit_that_was_taken_back_is_settled_before_the_next_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit that is done again has the number of the one that failed: a journal that still said "failed"
    would take it back at the next open. Where that cannot be noted, nothing more is committed."""
    store = LmdbStore(folder)
    settle, commit = MetaJournal.settle, lmdb.Transaction.commit
    bad = [True]

    def fails(self: MetaJournal) -> None:
        raise StoreError("the file system refused writing meta.journal")

    class Failing:
        def __init__(self, txn: lmdb.Transaction[bytes]) -> None:
            self._txn = txn

        def __getattr__(self, name: str) -> object:
            return getattr(self._txn, name)

        def commit(self) -> None:
            commit(self._txn)
            error = lmdb.Error("Input/output error")
            error.__dict__["code"] = 5
            raise error

    environment = store._environment
    whole = type(environment).commit

    def commit_once(self: object, txn: lmdb.Transaction[bytes]) -> None:
        whole(environment, Failing(txn) if bad and bad.pop() else txn)  # type: ignore[arg-type]  # acts as one

    monkeypatch.setattr(type(environment), "commit", commit_once)
    monkeypatch.setattr(MetaJournal, "settle", fails)
    with pytest.raises(StoreError):
        store.append([make_output([4])]).result(60)
    assert store.failure() is not None
    monkeypatch.setattr(MetaJournal, "settle", settle)
    store.close()
    assert ids(folder) == [1, 2, 3]


def test_the_page_is_as_long_as_lmdbs() -> None:
    assert datafile._META.size == META_BYTES
