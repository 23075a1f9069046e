"""The rollback journal of meta pages: the effect of each of its states on an open."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import pytest
from store_testing import NS, make_output, until_it_works
from structlog.testing import capture_logs

from suffixsvc.errors import StoreCorruptError, StoreError, StoreForeignError
from suffixsvc.runtime.sync_points import with_sync_points
from suffixsvc.store import LmdbStore
from suffixsvc.store.files import datafile, page_walk
from suffixsvc.store.files.meta_journal import (
    JOURNAL_FILE,
    META_BYTES,
    MetaBeforeImage,
    MetaJournal,
    encode_before_image,
)
from suffixsvc.store.lmdb_log.environment import Environment
from suffixsvc.types import NamespaceRecord
from support.small_disk import small_disk
from support.store_parts import store_parts_of

PAGE = 4096
GOLDEN = Path(__file__).parents[1] / "golden" / "meta_journal" / "v2.hex"


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
    """The folder of a store with the outputs 1, 2 and 3, one transaction each."""
    return new_store(tmp_path / "data", 3)


def new_store(folder: Path, outputs: int, size: int = 1) -> Path:
    store = LmdbStore(folder)
    store.add_namespace(NamespaceRecord(NS))
    for number in range(1, outputs + 1):
        store.append([make_output([number] * size)]).result()
    store.close()
    return folder


def journal(folder: Path, txn: int, raw: bytes, *, failed: bool) -> None:
    digest = 0
    if (folder / "data.mdb").exists():
        fd = datafile.open_to_read(str(folder / "data.mdb"))
        digest = datafile.read_before_image(fd, str(folder), txn).tree_digest
        os.close(fd)
    before = MetaBeforeImage(txn, digest, raw, failed)
    written = MetaJournal(str(folder))
    written.write(before)
    written.close()
    again = MetaJournal(str(folder))
    assert again.pending == before
    again.close()
    assert (folder / JOURNAL_FILE).exists()


def ids(folder: Path) -> list[int]:
    store = LmdbStore(folder)
    store.check()
    found = [stored.output_id for stored in store.scan()]
    store.close()
    assert not (folder / JOURNAL_FILE).exists()
    return found


def half_restored(before: bytes, after: bytes) -> bytes:
    """Return a page as LMDB leaves it after a failed write: last page and number of the old transaction."""
    return after[:-16] + before[-16:]


def next_commit(folder: Path) -> tuple[bytes, bytes]:
    """Return (the meta page that the next commit overwrites, what it writes there); the file is restored."""
    raw = (folder / "data.mdb").read_bytes()
    before = metas(folder)
    store = LmdbStore(folder)
    store.append([make_output([4])]).result()
    txn = store_parts_of(store).environment.snapshot.counters.txn
    page = metas(folder)[txn % 2]
    store.close()
    with (folder / "data.mdb").open("r+b") as file:  # the data pages of the commit remain
        file.write(raw[: 2 * PAGE])
    return before[txn % 2], page


def test_a_half_restored_page_is_put_back(folder: Path) -> None:
    before, after = next_commit(folder)
    put(folder, half_restored(before, after))
    damaged = (folder / "data.mdb").read_bytes()
    with pytest.raises(StoreCorruptError, match="must have the transaction of its data"):
        LmdbStore(folder)
    assert (folder / "data.mdb").read_bytes() == damaged
    journal(folder, number_of(before) + 2, before, failed=False)
    assert ids(folder) == [1, 2, 3]


def test_a_page_that_was_damaged_later_is_still_noticed(folder: Path) -> None:
    """The same bytes without a journal are damage."""
    before, after = next_commit(folder)
    put(folder, after[:-8] + before[-8:])
    with pytest.raises(StoreCorruptError):
        LmdbStore(folder)


@pytest.mark.parametrize("failed", [False, True])
def test_a_commit_that_is_whole_stays_unless_it_failed(folder: Path, failed: bool) -> None:
    """A kill between a commit and its journal record rolls nothing back; a recorded failure does."""
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


def test_a_folder_with_a_damaged_journal_opens(folder: Path) -> None:
    older, newer = sorted(metas(folder), key=number_of)
    journal(folder, number_of(newer), older, failed=True)
    good = (folder / JOURNAL_FILE).read_bytes()
    rng = random.Random(3)
    for raw in (b"", bytes(3), good[:40], good[:-400], bytes(512), bytes(8) + good[8:]):
        (folder / JOURNAL_FILE).write_bytes(raw)
        assert ids(folder) == [1, 2, 3]
    for _ in range(30):
        raw = bytearray(good)
        raw[rng.randrange(6, 24 + META_BYTES)] ^= 1 << rng.randrange(8)
        (folder / JOURNAL_FILE).write_bytes(raw)
        assert ids(folder) == [1, 2, 3]


def test_a_journal_without_a_data_file_is_dropped(tmp_path: Path) -> None:
    tmp_path.joinpath("data").mkdir()
    journal(tmp_path / "data", 7, bytes(META_BYTES), failed=True)
    assert ids(tmp_path / "data") == []


def test_the_journal_is_cleared_after_a_rollback_before_the_next_commit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeated commit has the number of the failed one: a journal still in state "failed" would roll it
    back at the next open. If the journal cannot be cleared, nothing is committed."""
    store = LmdbStore(folder)

    def fails(self: MetaJournal) -> None:
        raise StoreError("the file system refused writing meta.journal")

    with one_commit_fails(monkeypatch), monkeypatch.context() as patch:
        patch.setattr(MetaJournal, "clear", fails)
        with pytest.raises(StoreError):
            store.append([make_output([4])]).result(60)
        assert store.failure() is not None
    store.close()
    assert ids(folder) == [1, 2, 3]


@contextlib.contextmanager
def one_commit_fails(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let one commit write its meta page and fail."""

    class Failing:
        def __init__(self, txn: lmdb.Transaction[bytes]) -> None:
            self._txn = txn

        def __getattr__(self, name: str) -> object:
            return getattr(self._txn, name)

        def commit(self) -> None:
            self._txn.commit()
            error = lmdb.Error("Input/output error")
            error.__dict__["code"] = 5
            raise error

    bad = [True]
    whole = Environment.commit

    def commit_once(self: Environment, txn: Any) -> None:
        whole(self, Failing(txn) if bad and bad.pop() else txn)  # type: ignore[arg-type]  # a stand-in

    with monkeypatch.context() as patch:
        patch.setattr(Environment, "commit", commit_once)
        yield


@dataclass
class Left:
    """State that a kill would leave of a store whose commit of output 4 failed."""

    begun: bytes  # the journal during the commit
    failed: bytes  # the journal after the failure
    folder: Path  # the folder after that, with the restored page


def fail_a_commit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Left:
    left = Left(b"", b"", folder.parent / "left")

    def sync_point(point: str) -> None:
        if point == "commit-failed":
            left.begun = (folder / JOURNAL_FILE).read_bytes()
        if point == "reopen-restored":
            left.failed = (folder / JOURNAL_FILE).read_bytes()
            shutil.copytree(folder, left.folder)

    store = with_sync_points(LmdbStore, sync_point)(folder)
    with one_commit_fails(monkeypatch):
        assert store.append([make_output([4])]).result(60) == [4]
    store.close()
    assert b"SXMJ" == left.begun[:4] == left.failed[:4]
    return left


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("outputs", [3, 4])
@pytest.mark.parametrize("size", [1, 3000])
def test_a_journal_of_another_file_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, outputs: int, failed: bool
) -> None:
    """Regression: a data file was replaced and the journal of the old one left. Only transaction numbers were
    compared, which are equal in new stores: the page was written into the other file, which lost an
    acknowledged commit or was damaged.

    The journal has a digest of the records that the transaction before committed. Meta pages are not
    sufficient: they are equal in stores with the same history of sizes.
    """
    left = fail_a_commit(new_store(tmp_path / "other", 3), monkeypatch)
    folder = new_store(tmp_path / "data", 3, size)
    newer = [max(metas(each), key=number_of) for each in (folder, left.folder)]
    assert (newer[0] == newer[1]) == (size == 1)
    if outputs == 4:
        store = LmdbStore(folder)
        store.append([make_output([4])]).result()
        shutil.copytree(folder, tmp_path / "killed")  # a close commits again
        store.close()
        folder = tmp_path / "killed"
    (folder / JOURNAL_FILE).write_bytes(left.failed if failed else left.begun)
    assert ids(folder) == [1, 2, 3, 4][:outputs]


def test_a_journal_that_is_there_and_cannot_be_opened_keeps_the_folder_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: if the journal could not be opened (no descriptor left), the folder opened and the journal
    remained in state "failed". The next commit had its number, was acknowledged, and was rolled back by a
    later open. The folder must not open."""
    left = fail_a_commit(folder, monkeypatch)
    with monkeypatch.context() as patch:
        refuse_journal(patch, errno.EMFILE)
        with pytest.raises(StoreError, match=JOURNAL_FILE):
            LmdbStore(left.folder)
    assert (left.folder / JOURNAL_FILE).read_bytes() == left.failed
    assert ids(left.folder) == [1, 2, 3]


def test_a_folder_opens_if_its_journal_cannot_be_created(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        refuse_journal(patch, errno.ENOSPC, os.O_CREAT)
        store = LmdbStore(folder)
        with one_commit_fails(monkeypatch):
            assert store.append([make_output([4])]).result(60) == [4]
        store.close()
    assert ids(folder) == [1, 2, 3, 4]


def refuse_journal(patch: pytest.MonkeyPatch, code: int, only: int = 0) -> None:
    opens = os.open

    def refusing(path: Any, flags: int, *more: Any, **others: Any) -> int:
        if str(path).endswith(JOURNAL_FILE) and flags & only == only:
            raise OSError(code, os.strerror(code))
        return opens(path, flags, *more, **others)

    patch.setattr(os, "open", refusing)


def test_one_failed_commit_on_a_full_disk_leaves_a_store_that_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: on a disk without a block for the journal, one commit failed and was rolled back from
    memory. As the journal could not be cleared, later commits were refused, even deletions, although the disk
    held no record. And every commit logged two lines.
    """
    with small_disk(tmp_path / "disk", 8 << 20) as disk:
        folder = new_store(disk / "data", 3)
        with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(4096))
        with capture_logs() as logs, contextlib.closing(LmdbStore(folder)) as store:
            with one_commit_fails(monkeypatch):  # tried again with fewer rows
                assert [row.output_id for row in store.forget_many(NS, [1])] == [1]
            until_it_works(store)
            for number in (4, 5, 6):
                assert store.append([make_output([number])]).result(60) == [number + 1]
            assert store.failure() is None
        assert [line["event"] for line in logs].count("meta journal not written") == 1
        (disk / "ballast").unlink()
        assert ids(folder) == [2, 3, 5, 6, 7]


FOREIGN = {
    "text": b"rollback journal of another program\n",
    "short": b"SX",
    "long": bytes(513),
    "other-version": b"SXMJ\x03\0" + bytes(506),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_journal_of_another_program_or_version_is_refused_and_left(folder: Path, kind: str) -> None:
    """Regression: a foreign file of that name was overwritten by the first commit and deleted at close, and a
    record of a later version was ignored, so that its page was not restored."""
    (folder / JOURNAL_FILE).write_bytes(FOREIGN[kind])
    data = (folder / "data.mdb").read_bytes()
    with pytest.raises(StoreForeignError, match=JOURNAL_FILE):
        LmdbStore(folder)
    assert (folder / JOURNAL_FILE).read_bytes() == FOREIGN[kind]
    assert (folder / "data.mdb").read_bytes() == data
    (folder / JOURNAL_FILE).unlink()
    assert ids(folder) == [1, 2, 3]


def test_a_folder_of_another_program_keeps_its_journal(tmp_path: Path) -> None:
    """Regression: a refused open deleted the other program's file."""
    (tmp_path / "data.mdb").write_bytes(b"theirs" * 2000)
    (tmp_path / JOURNAL_FILE).write_bytes(b"theirs too")
    with pytest.raises(StoreForeignError):
        LmdbStore(tmp_path)
    assert (tmp_path / JOURNAL_FILE).read_bytes() == b"theirs too"
    assert (tmp_path / "data.mdb").read_bytes() == b"theirs" * 2000


def test_bytes_are_those_of_the_golden_file(tmp_path: Path) -> None:
    golden = bytes.fromhex(GOLDEN.read_text())
    before = MetaBeforeImage(11, 0x0123456789ABCDEF, bytes(range(META_BYTES)), failed=True)
    assert encode_before_image(before).hex(" ", 8) == golden.hex(" ", 8)
    (tmp_path / JOURNAL_FILE).write_bytes(golden.ljust(512, b"\0"))
    journal = MetaJournal(str(tmp_path))
    assert journal.pending == before
    journal.write(before)
    journal.close()
    assert (tmp_path / JOURNAL_FILE).read_bytes() == golden.ljust(512, b"\0")


def test_the_page_is_as_long_as_lmdbs() -> None:
    assert page_walk.META.size == META_BYTES
