"""The store's thread: group commit, failing operations, hash collisions, growth of the map, bulk loads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import pytest
from store_testing import NS, make_output, plain

from suffixsvc.errors import StoreClosedError, StoreError, StoreFullError, UnknownNamespaceError
from suffixsvc.runtime.sync_points import with_sync_points
from suffixsvc.store import LmdbStore
from suffixsvc.store.records import validation
from suffixsvc.store.transactions.operations import SLICE_BYTES, SLICE_ROWS, Operation
from suffixsvc.store.transactions.snapshot import Snapshot
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.types import NamespaceRecord, StoredOutput
from support.store_parts import store_parts_of


class Points:
    """A sync point that counts, and that can hold the store's thread at a point."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.hold_at = ""
        self.held, self.go = threading.Event(), threading.Event()

    def __call__(self, point: str) -> None:
        self.seen.append(point)
        if point == self.hold_at:
            self.held.set()
            assert self.go.wait(300)


@pytest.fixture
def points() -> Points:
    return Points()


@pytest.fixture
def store(tmp_path: Path, points: Points) -> Iterator[LmdbStore]:
    opened = with_sync_points(LmdbStore, points)(tmp_path / "data")
    opened.add_namespace(NamespaceRecord(NS))
    yield opened
    opened.close()
    reopened = LmdbStore(tmp_path / "data")
    reopened.check()
    reopened.close()


def hold_thread(store: LmdbStore, points: Points) -> Future[list[int]]:
    """Hold the store's thread in one append, so that later operations queue."""
    points.hold_at = "begun"
    first = store.append([make_output([1])])
    assert points.held.wait(300)
    points.hold_at = ""
    points.seen.clear()
    return first


def test_what_waits_shares_one_commit(store: LmdbStore, points: Points) -> None:
    first = hold_thread(store, points)
    rest = [store.append([make_output([i])]) for i in range(50)]
    points.go.set()
    assert first.result() == [1]
    assert [f.result() for f in rest] == [[i + 2] for i in range(50)]
    assert points.seen.count("begun") == 1  # fifty appends, one transaction


def test_a_refused_append_in_a_shared_commit_fails_alone(store: LmdbStore, points: Points) -> None:
    hold_thread(store, points)
    futures = [store.append([make_output([i], namespace="nowhere" if i == 1 else NS)]) for i in range(3)]
    points.go.set()
    assert futures[0].result() == [2]
    with pytest.raises(UnknownNamespaceError):
        futures[1].result()
    assert futures[2].result() == [3]


def test_a_failure_half_way_takes_nothing_else_with_it(
    store: LmdbStore, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operation that fails after its first write is undone; others of the batch are not."""
    append = WriteView.append

    def failing(self: WriteView, outputs: Any, *rest: Any) -> Any:
        result = append(self, outputs, *rest)
        if any(output.token_ids[0] == 666 for output in outputs):
            raise RuntimeError("half way")
        return result

    monkeypatch.setattr(WriteView, "append", failing)
    hold_thread(store, points)
    futures = [store.append([make_output([7]), make_output([i])]) for i in (1, 666, 2)]
    points.go.set()
    assert futures[0].result() == [2, 3]
    with pytest.raises(RuntimeError, match="half way"):
        futures[1].result()
    assert futures[2].result() == [4, 5]
    assert [s.output_id for s in store.scan()] == [1, 2, 3, 4, 5]
    store.check()


def test_a_cancelled_append_is_not_written(store: LmdbStore, points: Points) -> None:
    hold_thread(store, points)
    unwanted, wanted = store.append([make_output([8])]), store.append([make_output([9])])
    assert unwanted.cancel()
    points.go.set()
    assert wanted.result() == [2]
    with pytest.raises(CancelledError):
        unwanted.result()
    assert [s.output.token_ids.tolist() for s in store.scan()] == [[1], [9]]


def test_close_finishes_what_was_queued(tmp_path: Path, points: Points) -> None:
    store = with_sync_points(LmdbStore, points)(tmp_path)
    store.add_namespace(NamespaceRecord(NS))
    hold_thread(store, points)
    futures = [store.append([make_output([i])]) for i in range(5)]
    threading.Timer(0.05, points.go.set).start()
    store.close()
    assert [f.result() for f in futures] == [[i + 2] for i in range(5)]
    with pytest.raises(StoreClosedError):
        store.append([make_output()]).result()


def test_waiting_inside_a_callback_is_refused_instead_of_hanging(store: LmdbStore, points: Points) -> None:
    errors: list[BaseException] = []

    def callback(future: Future[list[int]]) -> None:
        for call in (lambda: store.forget_many(NS, [future.result()[0]]), store.close):
            try:
                call()
            except StoreError as e:
                errors.append(e)

    future = hold_thread(store, points)
    future.add_done_callback(callback)
    points.go.set()
    store.append([make_output()]).result()
    assert len(errors) == 2
    assert store.stats().outputs == 2


def test_a_reader_between_a_commit_and_its_snapshot_waits(
    store: LmdbStore, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB shows a commit before the store has the namespaces that it added; a reader at that moment would
    report a valid row as damaged."""
    held, go = threading.Semaphore(0), threading.Semaphore(0)

    take_snapshot = WriteView.snapshot

    def slow(view: WriteView) -> Snapshot:
        held.release()
        assert go.acquire(timeout=300)
        return take_snapshot(view)

    hold_thread(store, points)
    record = NamespaceRecord("new")
    store_parts_of(store).thread.submit(Operation(lambda view: view.add_namespace(record)))
    added = store.append([make_output([2], namespace="new")])
    monkeypatch.setattr(WriteView, "snapshot", slow)
    points.go.set()
    assert held.acquire(timeout=300)  # the commit of the first append
    go.release()
    assert held.acquire(timeout=300)  # the one of the new namespace and its output
    found: list[StoredOutput] = []
    reader = threading.Thread(target=lambda: found.append(store.get(2)))
    reader.start()
    reader.join(0.1)
    go.release()
    reader.join(300)
    assert added.result() == [2]
    assert [stored.output.namespace for stored in found] == ["new"]


def test_colliding_hashes_keep_their_contents_apart(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Different contents with equal hashes must remain separate."""
    monkeypatch.setattr(validation, "content_hash", lambda content: b"same" * 4)
    outputs = [make_output([i]) for i in (1, 2, 3)]
    assert store.append(outputs).result() == [1, 2, 3]
    store.forget_many(NS, [1])  # leaves a free slot before the others
    assert store.append([outputs[2], outputs[1], make_output([4]), make_output([5])]).result() == [5, 6, 7, 8]
    assert [s.output.token_ids.tolist() for s in store.scan()] == [[2], [3], [3], [2], [4], [5]]
    assert store.stats().payloads == 4
    for output_id in (2, 3, 5, 6, 7, 8):
        store.forget_many(NS, [output_id])
    assert store.stats().payloads == 0


def test_the_map_grows_under_readers_and_writers(tmp_path: Path) -> None:
    """Remapping while other threads read: all reads are correct and complete."""
    store = LmdbStore(tmp_path, map_bytes_initial=1, sync=False)
    store.add_namespace(NamespaceRecord(NS))
    store.append([make_output([1] * 100)]).result()
    stop = threading.Event()
    errors: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                assert store.get(1).output.token_ids.tolist() == [1] * 100
                for stored in store.scan():
                    assert len(stored.output.token_ids) in (100, 20_000)
        except BaseException as e:  # raised in the main thread
            errors.append(e)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    first = (tmp_path / "data.mdb").stat().st_size
    for i in range(60):
        store.append([make_output([i] * 20_000)]).result()
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert (tmp_path / "data.mdb").stat().st_size >= 8 * first
    store.check()
    store.close()


def test_a_suspended_scan_does_not_stop_the_map_from_growing(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_bytes_initial=1, sync=False)
    store.add_namespace(NamespaceRecord(NS))
    store.append([make_output([i]) for i in range(600)]).result()
    scan = store.scan()
    next(scan)
    for i in range(20):
        store.append([make_output([i] * 20_000)]).result(timeout=300)
    assert len(list(scan)) == 599
    store.close()


def test_an_output_larger_than_the_map_fits_after_growth(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_bytes_initial=1)
    store.add_namespace(NamespaceRecord(NS))
    big = make_output(range(1 << 20))
    (output_id,) = store.append([big]).result()
    store.close()
    store = LmdbStore(tmp_path)
    assert plain(store.get(output_id).output) == plain(big)
    store.check()
    store.close()


# --- bulk loads -------------------------------------------------------------------------------------------


def test_a_close_waits_for_one_bounded_bulk_transaction(store: LmdbStore, points: Points) -> None:
    """A bulk load of 100,000 outputs in one transaction took 8.6 s, and every close waited for it. It is
    split, and its slices alternate with other operations."""
    hold_thread(store, points)
    bulk = store.append([make_output([i]) for i in range(10 * SLICE_ROWS)])
    another = store.append([make_output([i]) for i in range(10 * SLICE_ROWS)])
    closes = [store.append([make_output([7])]) for _ in range(3)]
    committed: list[int] = []
    closes[-1].add_done_callback(lambda _: committed.append(points.seen.count("committed")))
    points.go.set()
    assert [len(future.result()) for future in closes] == [1, 1, 1]
    # the held append, at most one slice of the bulk load, the closes
    assert committed[0] <= 3
    assert not bulk.done()
    ids = bulk.result()
    assert len(ids) == 10 * SLICE_ROWS == len(set(ids))
    assert ids == sorted(ids)
    assert len(another.result()) == 10 * SLICE_ROWS
    assert points.seen.count("committed") >= 20
    assert [store.get(i).output.token_ids[0] for i in ids[:: SLICE_ROWS // 2]] == list(
        range(0, 10 * SLICE_ROWS, SLICE_ROWS // 2)
    )


def test_bulk_transactions_are_bounded_in_bytes(store: LmdbStore, points: Points) -> None:
    tokens = SLICE_BYTES // 4 // 3
    before = points.seen.count("committed")
    store.append([make_output(range(i, i + tokens)) for i in range(9)]).result()
    assert points.seen.count("committed") - before >= 4


def test_a_bulk_load_that_fails_half_way_leaves_nothing(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All or none, also over several transactions: the rows of the first ones are deleted."""
    append = WriteView.append
    calls = []

    def failing(self: WriteView, outputs: Any, *rest: Any) -> Any:
        calls.append(len(outputs))
        if len(calls) == 3:
            raise RuntimeError("half way")
        return append(self, outputs, *rest)

    monkeypatch.setattr(WriteView, "append", failing)
    with pytest.raises(RuntimeError, match="half way"):
        store.append([make_output([i]) for i in range(5 * SLICE_ROWS)]).result()
    assert len(calls) == 3
    monkeypatch.undo()
    assert list(store.scan()) == []
    assert store.stats().outputs == 0
    store.check()
    # two slices were written and deleted
    assert store.append([make_output([i]) for i in range(2 * SLICE_ROWS)]).result()[-1] == 6 * SLICE_ROWS


def test_a_bulk_load_into_a_full_store_leaves_nothing(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, limit_bytes=2 << 20, sync=False)
    store.add_namespace(NamespaceRecord(NS))
    ids = store.append([make_output([1])]).result()
    with pytest.raises(StoreFullError):
        store.append([make_output(range(i, i + 100)) for i in range(6 * SLICE_ROWS)]).result()
    assert [stored.output_id for stored in store.scan()] == ids
    assert store.failure() is None
    store.append([make_output(range(2000))]).result()
    store.check()
    store.close()


def test_an_output_of_an_unfinished_append_does_not_count_as_logged(store: LmdbStore, points: Points) -> None:
    """A load is sent again while the first attempt runs: if that failed, outputs that the second one found
    would be deleted."""
    outputs = [make_output([i], uuid=(i + 1).to_bytes(16, "big")) for i in range(4 * SLICE_ROWS)]
    hold_thread(store, points)
    bulk = store.append(outputs)
    again = store.append(outputs[:5])  # after one slice of the load
    points.go.set()
    error = again.exception()
    assert error is None or "another append" in str(error)
    ids = bulk.result()
    assert store.append(outputs[:5]).result() == ids[:5]
    assert store.stats().outputs == 1 + 4 * SLICE_ROWS
    store.check()


def test_pending_undos_run_before_other_writes(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fails during a load and its undo. The load is sent again: it must not find outputs of the
    first attempt, which are deleted."""
    outputs = [make_output([i], uuid=(i + 1).to_bytes(16, "big")) for i in range(3 * SLICE_ROWS)]
    append, undo_append = WriteView.append, WriteView.undo_append
    broken = [True]

    def failing(self: WriteView, *args: Any) -> Any:
        if broken and self.counters.last_lsn >= 2 * SLICE_ROWS:
            raise RuntimeError("half way")
        return append(self, *args)

    def not_now(self: WriteView, lsns: Any) -> None:
        if broken:
            raise StoreError("not now")
        undo_append(self, lsns)

    monkeypatch.setattr(WriteView, "append", failing)
    monkeypatch.setattr(WriteView, "undo_append", not_now)
    with pytest.raises(RuntimeError, match="half way"):
        store.append(outputs).result()
    with pytest.raises(StoreError, match="must be undone"):
        store.append(outputs[:5]).result()
    broken.clear()
    ids = store.append(outputs).result()
    assert ids[0] > 2 * SLICE_ROWS
    assert [stored.output_id for stored in store.scan()] == ids
    store.check()


def test_an_unknown_namespace_is_refused_before_the_first_slice(store: LmdbStore) -> None:
    outputs = [make_output([i]) for i in range(3 * SLICE_ROWS)]
    last = store.stats().last_lsn
    future = store.append([*outputs, make_output([1], namespace="nowhere")])
    with pytest.raises(UnknownNamespaceError):
        future.result()
    assert store.stats().last_lsn == last
    made = store.append([*outputs, make_output([1], namespace="now")], [NamespaceRecord("now")]).result()
    assert store.get(made[-1]).output.namespace == "now"


def test_memory_stores_do_not_load_lmdb() -> None:
    import subprocess

    code = "import sys; from suffixsvc.store import MemoryStore; MemoryStore(); print('lmdb' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
