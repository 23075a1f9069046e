"""Appends of several transactions: failures between slices, and undo after a kill."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lmdb
import pytest
from store_testing import NS, make_output, until_it_works

from suffixsvc.errors import StoreError, StoreFullError
from suffixsvc.store import LmdbStore
from suffixsvc.store.lmdb_log import committer, environment
from suffixsvc.store.lmdb_store import MIN_LIMIT_BYTES
from suffixsvc.store.transactions.operations import SLICE_ROWS, Operation, Undo
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.types import NamespaceRecord
from support.small_disk import files_up_to
from support.store_parts import store_parts_of

#: bytes that appends may fill; the rest is reserved for deletions
_ROOM = MIN_LIMIT_BYTES - (256 << 10)
LOAD = [make_output([n], uuid=(n + 1).to_bytes(16, "big")) for n in range(3 * SLICE_ROWS)]


def no_descriptors(*_: object) -> bool:
    raise StoreError("the file system refused extending data.mdb", got=os.strerror(errno.EMFILE))


def test_a_load_goes_on_where_the_look_for_room_after_a_slice_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a commit the thread probes whether a full store has room again. Regression: an error of the probe
    failed the load whose slice had just been committed, although its next slice was queued, and counted as a
    defect.

    An error of the probe belongs to no operation: the load continues, and the probe is repeated later.
    """
    extend = environment.datafile.extend
    full = [True]

    def on_a_full_disk(path: str, size: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        extend(path, size)

    store = LmdbStore(tmp_path, map_bytes_initial=1)
    store.add_namespace(NamespaceRecord(NS))
    with monkeypatch.context() as patch:
        patch.setattr(environment.datafile, "extend", on_a_full_disk)
        tokens = 2000
        while store.failure() is None:
            if store.append([make_output(range(tokens))]).exception() is not None:
                tokens //= 2
        assert isinstance(store.failure(), StoreFullError)
        with monkeypatch.context() as inner:
            inner.setattr(committer.Committer, "has_room", no_descriptors)
            store.barrier()  # no probe is running
            full.clear()
            before = store.stats().outputs
            ids = store.append(LOAD).result(60)
            assert len(ids) == len(LOAD)
            assert store.stats().outputs == before + len(LOAD)
            assert store.stats().defects == 0
            assert isinstance(store.failure(), StoreFullError), "nothing has shown that it is not"
        until_it_works(store)
    assert store.append(LOAD[:3]).result(60) == ids[:3]
    store.check()
    store.close()


def test_a_failing_probe_for_room_is_repeated_with_backoff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it was repeated at once, and occupied a core."""
    store = LmdbStore(tmp_path, limit_bytes=MIN_LIMIT_BYTES, sync=False)
    store.add_namespace(NamespaceRecord(NS))
    tokens = 2000
    while store.failure() is None:
        if store.append([make_output(range(tokens))]).exception() is not None:
            tokens //= 2
    looked: list[float] = []

    def failing(*_: object) -> bool:
        looked.append(time.monotonic())
        return no_descriptors()

    with monkeypatch.context() as patch:
        patch.setattr(committer.Committer, "has_room", failing)
        deadline = time.monotonic() + 60
        while len(looked) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        # each delay is at least as long as the first one; longer on a busy machine
        assert min(b - a for a, b in itertools.pairwise(looked)) > (committer.INITIAL_BACKOFF_SECONDS / 2)
    assert store.stats().defects == 0
    store.close()


def test_a_defect_after_a_slice_is_one_defect(tmp_path: Path) -> None:
    """An unexpected exception after the commit of a slice: the load fails and is undone, its queued slice
    is skipped, and it counts as one defect."""
    bad = ["now"]
    store = LmdbStore(tmp_path)
    store.add_namespace(NamespaceRecord(NS))

    def sync_point(point: str) -> None:
        if point == "acknowledged" and bad:
            bad.clear()
            raise RuntimeError("of no foreseen kind")

    store_parts_of(store).environment.sync_point = sync_point
    load = store.append(LOAD)
    with pytest.raises(RuntimeError, match="foreseen"):
        load.result(60)
    assert store.append([make_output([1])]).result(60)[0] > SLICE_ROWS
    assert [stored.output.token_ids.tolist() for stored in store.scan()] == [[1]]
    store.check()
    store.close()
    assert store_parts_of(store).thread.defects == 1


def test_a_load_is_refused_where_nothing_can_be_taken_back_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the second slice of a load failed, there was no room to delete the first one, and the
    transaction that makes freed pages usable failed, too. That error left the thread before the load was
    failed, so that its future was never resolved.

    The load fails at once, and its undo is retried later, once.
    """
    store = LmdbStore(tmp_path)
    store.add_namespace(NamespaceRecord(NS))
    store.append([make_output([1])]).result()
    store.forget_many(NS, [1])  # leaves freed pages
    transact, append = committer.Committer.transact, WriteView.append
    hooked = []

    def second_fails(*arguments: Any) -> Any:
        if hooked:
            raise StoreError("the second slice")
        hooked.append(1)
        return append(*arguments)

    def failing(self: committer.Committer, batch: list[Operation[Any]], failed: Any) -> Any:
        if isinstance(getattr(batch[0].apply, "__self__", None), Undo):
            raise lmdb.MapFullError("no page is free")
        if batch[0].apply is WriteView.touch:
            raise StoreError("the file system refused extending data.mdb")
        return transact(self, batch, failed)

    with monkeypatch.context() as patch:
        patch.setattr(WriteView, "append", second_fails)
        patch.setattr(committer.Committer, "transact", failing)
        patch.setattr(committer.Committer, "grow", lambda *_: False)
        with pytest.raises(StoreError, match="second slice"):
            store.append(LOAD).result(60)
        assert "must be undone" in str(store.failure())
        assert store.stats().defects == 0
    until_it_works(store)
    assert not list(store.scan())
    store.check()
    store.close()


def test_a_folder_opens_where_an_unfinished_load_cannot_be_taken_back_yet(tmp_path: Path) -> None:
    """Regression: a folder with an interrupted load could not be opened on a full disk, because the undo
    needs pages.

    It opens. The pending undo fails appends and is reported by health; deletions free space, and then it
    succeeds.
    """
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; "
        f"import test_store_slices as t; t.killed_child({str(tmp_path)!r})"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert child.returncode == -signal.SIGKILL, child.stderr
    with files_up_to(_ROOM):
        store = LmdbStore(tmp_path, limit_bytes=MIN_LIMIT_BYTES, sync=False)
        assert store.get(1).output.token_ids.tolist() == list(range(300))
        assert store.failure() is not None
        with pytest.raises(StoreError):
            store.append([make_output([7], uuid=LOAD[0].uuid)]).result(60)
        store.close()
    store = LmdbStore(tmp_path, limit_bytes=MIN_LIMIT_BYTES, sync=False)  # the reserve can be used
    assert not set(range(2, 22)) & {stored.output_id for stored in store.scan()}
    store.forget_many(NS, [1])
    until_it_works(store)
    assert store.append([make_output([7], uuid=LOAD[0].uuid)]).result(60)[0] > 21
    store.check()
    store.close()


def killed_child(folder: str) -> None:
    """Child process: outputs 2 .. 21 belong to an unfinished load; no page is free."""
    with files_up_to(_ROOM):
        store = LmdbStore(folder, limit_bytes=MIN_LIMIT_BYTES, sync=False)
        store.add_namespace(NamespaceRecord(NS))
        store.append([make_output(range(300))]).result()
        more = {"session_id": "s", "incomplete": True, "ttl_seconds": 10**6}  # an entry in every database
        left = store.append([make_output([n], uuid=LOAD[n].uuid, **more) for n in range(20)]).result()
        unfinished = [(left[0], left[-1])]
        store_parts_of(store).thread.submit(
            Operation(lambda view: view.put_pending(left[0], unfinished))
        ).result()
        for tokens in (2000, 500, 1):
            while store.append([make_output(range(tokens))]).exception() is None:
                pass
        os.kill(os.getpid(), signal.SIGKILL)
