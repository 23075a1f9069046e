"""Temporary I/O errors: acknowledgements and errors stay true, and the store recovers automatically."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from ioerror_child import FOR_EVER
from store_testing import NS, make_output, until_it_works

from suffixsvc.errors import StoreClosedError, StoreError, StoreFullError
from suffixsvc.store import LmdbStore, MemoryStore
from suffixsvc.store.base import Store
from suffixsvc.store.lmdb_log import environment
from suffixsvc.store.lmdb_log.environment import Environment
from suffixsvc.store.lmdb_log.operation_queue import OperationQueue
from suffixsvc.store.transactions import write_view
from suffixsvc.store.transactions.operations import SLICE_ROWS
from suffixsvc.types import NamespaceRecord
from support.forking import ForkServer
from support.long_form import rounds
from support.small_disk import small_disk
from support.store_parts import store_parts_of

HERE = Path(__file__).parent
KINDS = {"data": 1, "sync": 2, "meta": 4, "meta-written": 8, "all": 7, "all-written": 11}
#: of failure, each followed by recovery
PERIODS = rounds(2, full=4)
TROUBLE = [(kind, count) for kind in KINDS for count in (1, FOR_EVER)]
TROUBLE += [("meta-written", 2), ("all", 3), ("all-written", 5)]


# --- a disk that fails, through a preloaded library -----------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Parent of processes whose disk can fail."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler and LD_PRELOAD")
    built = tmp_path_factory.mktemp("shim") / "ioerror.so"
    source = HERE / "ioerror.c"
    subprocess.run(
        [compiler, "-O1", "-fPIC", "-shared", "-o", str(built), str(source), "-ldl", "-lpthread"], check=True
    )
    server = ForkServer(HERE / "ioerror_child.py", environ={**os.environ, "LD_PRELOAD": str(built)})
    yield server
    server.close()


@pytest.mark.crash
@pytest.mark.parametrize(("kind", "count"), TROUBLE)
def test_a_store_comes_back_after_io_errors(
    server: ForkServer, tmp_path: Path, kind: str, count: int
) -> None:
    """Regression: after one EIO of a commit the store refused every write until a restart, which refused the
    folder as damaged if the write of the meta page had failed.

    Acknowledged outputs are there and refused ones are not, before and after a restart; reads continue; and
    the store accepts writes again once the disk does.
    """
    folder, lines = tmp_path / "data", list[str]()
    order = {"folder": str(folder), "kinds": KINDS[kind], "count": count, "periods": PERIODS}
    server.run(order, lines.append, None)
    assert lines
    assert not lines[0].startswith("?"), lines
    report = json.loads(lines[0])
    assert report["defects"] == 0
    assert report["reopened"] >= PERIODS
    if count == 1:
        assert report["refused"] == [], "a commit that fails once is repeated"
    if count == FOR_EVER:
        assert len(report["refused"]) == 5 * PERIODS
        assert all("othing of" in message for message in report["failures"])
    store = LmdbStore(folder)
    store.check()
    found = {str(s.output.token_ids[0]): s.output_id for s in store.scan()}
    assert found == report["acknowledged"]
    store.close()


# --- points in the life of a store --------------------------------------------------------------------


def io_error(code: int = errno.EIO) -> lmdb.Error:
    error = lmdb.Error("mdb_txn_commit: Input/output error")
    error.__dict__["code"] = code
    return error


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    opened = LmdbStore(tmp_path / "data")
    opened.add_namespace(NamespaceRecord(NS))
    yield opened
    opened.close()
    reopened = LmdbStore(tmp_path / "data")
    reopened.check()
    reopened.close()


def test_an_io_error_of_one_commit_is_retried(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is rolled back, the file reopened and the batch repeated."""
    finish = write_view.WriteView.finish
    bad = [True]

    def failing(view: write_view.WriteView, *rest: Any) -> None:
        if bad and bad.pop():
            raise io_error()
        finish(view, *rest)

    monkeypatch.setattr(write_view.WriteView, "finish", failing)
    assert store.append([make_output()]).result() == [1]
    assert store.failure() is None
    assert store.stats().reopened == 1


def test_while_it_cannot_be_opened_reads_go_on_and_writes_say_why(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old environment serves reads until the file is verified; writes meanwhile fail at once with the
    reason, and store nothing."""
    store.append([make_output()]).result()
    broken = threading.Event()
    broken.set()
    commit, verify = Environment.commit, environment.datafile.verify_pages

    def failing(self: Environment, txn: Any) -> None:
        if broken.is_set():
            raise io_error()
        commit(self, txn)

    def unreadable(path: str) -> None:
        if broken.is_set():
            raise StoreError("the file system refused reading", got="Input/output error")
        verify(path)

    monkeypatch.setattr(Environment, "commit", failing)
    monkeypatch.setattr(environment.datafile, "verify_pages", unreadable)
    for _ in range(3):
        with pytest.raises(StoreError):
            store.append([make_output([9])]).result()
        failure = store.failure()
        assert failure is not None
        assert not isinstance(failure, StoreFullError)
        assert store.get(1).output.token_ids.tolist() == [1, 2, 3]
        assert [s.output_id for s in store.scan()] == [1]
    with pytest.raises(StoreError):
        store.forget_many(NS, [1])
    broken.clear()
    until_it_works(store)
    assert store.append([make_output([8])]).result() == [2]
    assert [s.output.token_ids[0] for s in store.scan()] == [1, 8]


def test_a_store_that_could_not_be_opened_again_says_so_and_comes_back(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old environment is closed and the new one does not open (no descriptors left): reads fail with the
    reason until it opens."""
    store.append([make_output()]).result()
    opens, commit = lmdb.open, Environment.commit
    broken = threading.Event()
    broken.set()

    def no_descriptors(*args: Any, **more: Any) -> Any:
        if broken.is_set():
            raise OSError(errno.EMFILE, "Too many open files")
        return opens(*args, **more)

    def failing(self: Environment, txn: Any) -> None:
        if broken.is_set():
            raise io_error()
        commit(self, txn)

    monkeypatch.setattr(environment.lmdb, "open", no_descriptors)
    monkeypatch.setattr(Environment, "commit", failing)
    with pytest.raises(StoreError, match="committing"):
        store.append([make_output()]).result()
    with pytest.raises(StoreError, match="retried"):
        store.get(1)
    broken.clear()
    until_it_works(store)
    assert store.get(1).output.token_ids.tolist() == [1, 2, 3]
    store.check()


def test_closing_a_broken_store_lets_go_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LmdbStore(tmp_path)
    store.add_namespace(NamespaceRecord(NS))

    def failing(self: Environment, txn: Any) -> None:
        raise io_error()

    def never(self: Environment) -> None:
        raise StoreError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(Environment, "commit", failing)
        patch.setattr(Environment, "reopen", never)
        with pytest.raises(StoreError):
            store.append([make_output()]).result()
        store.close()
    assert isinstance(store.failure(), StoreClosedError)
    again = LmdbStore(tmp_path)
    again.check()
    assert again.stats().outputs == 0
    again.close()


def test_no_exception_ends_the_stores_thread(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected OSError while the map grows reaches the caller. An error outside a commit must not
    end the thread: every later call would wait forever."""

    def out_of_descriptors(path: str, size: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(environment.datafile, "extend", out_of_descriptors)
        with pytest.raises(StoreError, match="Too many open files"):
            store.append([make_output(range(2_000_000))]).result()
    assert store.failure() is None
    take_batch = OperationQueue.take_batch
    bad = [MemoryError(), RuntimeError("unexpected")]

    def failing(queue: OperationQueue, timeout: Callable[[], float | None]) -> Any:
        if bad:
            raise bad.pop()
        return take_batch(queue, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(OperationQueue, "take_batch", failing)
        assert store.append([make_output()]).result(60) == [1]  # wakes the thread
        assert store.append([make_output()]).result(60) == [2]
    assert not bad
    assert store.stats().defects == 2

    def defect(view: write_view.WriteView, *_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(write_view.WriteView, "finish", defect)
        with pytest.raises(ZeroDivisionError):
            store.append([make_output()]).result(60)
    assert store.append([make_output()]).result(60) == [3]


# --- no room -------------------------------------------------------------------------------------------


def test_a_full_store_says_so_until_there_is_room(small: Store) -> None:
    """Regression: health reported SERVING while every append failed."""
    assert small.failure() is None
    count = 0
    while small.append([make_output(range(count, count + 2000))]).exception() is None:
        count += 1
    while small.append([make_output([count])]).exception() is None:
        count += 1
    assert isinstance(small.failure(), StoreFullError)
    ids = small.output_ids(NS, 0, 2**63)
    small.forget_many(NS, ids[: len(ids) // 2])
    until_it_works(small)
    small.append([make_output(range(2000))]).result()
    assert small.failure() is None


def test_one_output_that_is_too_large_makes_no_store_full(small: Store) -> None:
    assert isinstance(small.append([make_output(range(400_000))]).exception(), StoreFullError)
    assert small.failure() is None


def test_a_disk_without_room_does_not_make_the_file_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: each append for which the map had room but the disk had not doubled the data file and its
    map, and so used up the disk."""
    finish = write_view.WriteView.finish

    def failing(view: write_view.WriteView, *_: object) -> None:
        raise io_error(errno.ENOSPC)

    store = LmdbStore(tmp_path, map_bytes_initial=1, limit_bytes=16 << 20)
    store.add_namespace(NamespaceRecord(NS))
    before = store_parts_of(store).environment.map_bytes
    monkeypatch.setattr(write_view.WriteView, "finish", failing)
    for _ in range(5):
        assert isinstance(store.append([make_output()]).exception(), StoreFullError)
    monkeypatch.setattr(write_view.WriteView, "finish", finish)
    assert store.append([make_output()]).result() == [1]
    assert store_parts_of(store).environment.map_bytes == before
    store.check()
    store.close()


def test_a_closed_store_says_so(small: Store) -> None:
    other = MemoryStore()
    other.close()
    assert isinstance(other.failure(), StoreClosedError)


def test_a_full_disk_is_noticed_to_have_room_again(tmp_path: Path) -> None:
    """The store detects it without further writes."""
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        store = LmdbStore(disk / "data", map_bytes_initial=1)
        store.add_namespace(NamespaceRecord(NS))
        ballast = disk / "ballast"
        free = os.statvfs(disk)
        ballast.write_bytes(bytes(free.f_bavail * free.f_frsize - (64 << 10)))
        count = 0
        while store.append([make_output(range(count, count + 2000))]).exception() is None:
            count += 1
        assert isinstance(store.failure(), StoreFullError)
        ballast.unlink()
        until_it_works(store)
        store.append([make_output(range(2000))]).result()
        store.check()
        assert store.stats().outputs == count + 1
        store.close()


def growing_limit_child(folder: str) -> None:
    """Child process: the file size is limited to one MiB, and the limit is raised later."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    store = LmdbStore(folder, map_bytes_initial=1)
    store.add_namespace(NamespaceRecord(NS))
    count = 0
    while store.append([make_output(range(count, count + 2000))]).exception() is None:
        count += 1
    assert isinstance(store.failure(), StoreFullError)
    bulk = store.append([make_output([n] * 100) for n in range(2 * SLICE_ROWS)])
    assert isinstance(bulk.exception(), StoreFullError)
    assert store.stats().outputs == count
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    until_it_works(store)
    store.append([make_output([n] * 100) for n in range(2 * SLICE_ROWS)]).result()
    assert store.stats().outputs == count + 2 * SLICE_ROWS
    store.check()
    store.close()


def test_a_file_size_limit_that_is_raised_is_noticed(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; "
        "import test_store_ioerrors as t; t.growing_limit_child(sys.argv[1])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data")], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    store = LmdbStore(tmp_path / "data")
    store.check()
    store.close()
