"""Loads of several transactions: failures between two slices, and what a load left that a kill ended."""

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

import pytest
from store_testing import NS, make_output, until_it_works
from support.small_disk import files_up_to

from suffixsvc.errors import StoreError, StoreFullError
from suffixsvc.store import LmdbStore, committer, environment, operations, tables, writer
from suffixsvc.store.identity import note_pending
from suffixsvc.store.lmdb_store import MIN_LIMIT_BYTES
from suffixsvc.store.operations import SLICE_ROWS, Operation
from suffixsvc.types import NamespaceRecord

#: what appends may fill; the rest is kept back for what makes room
_ROOM = MIN_LIMIT_BYTES - (256 << 10)
LOAD = [make_output([n], uuid=(n + 1).to_bytes(16, "big")) for n in range(3 * SLICE_ROWS)]


def no_descriptors(*_: object) -> bool:
    raise StoreError("the file system refused extending data.mdb", got=os.strerror(errno.EMFILE))


def test_a_load_goes_on_where_the_look_for_room_after_a_slice_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a commit the writer looks whether a store that was full has room again. When that failed, the
    load whose slice had just been committed was refused for it, although it stood in the queue for its next
    slice; the writer then met a future that was done, and its defect counter rose.

    Now a failure to look belongs to no operation: the load is kept whole, and the store looks again later.
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
            store.barrier()  # no look is under way
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


def test_a_look_for_room_that_fails_is_repeated_ever_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was repeated at once, and took a whole core for as long as it failed."""
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
        # each pause is at least as long as the first one; more where the machine is busy
        assert min(b - a for a, b in itertools.pairwise(looked)) > (committer.FIRST_PAUSE_SECONDS / 2)
    assert store.stats().defects == 0
    store.close()


def test_a_defect_after_a_slice_is_one_defect(tmp_path: Path) -> None:
    """An exception of no foreseen kind after the commit of a slice: the load is refused and taken back, and
    the writer does not stumble over the slice that waited for its turn."""
    bad = ["now"]
    store = LmdbStore(tmp_path)
    store.add_namespace(NamespaceRecord(NS))

    def hook(point: str) -> None:
        if point == "acknowledged" and bad:
            bad.clear()
            raise RuntimeError("of no foreseen kind")

    store._writer.set_hook(hook)
    load = store.append(LOAD)
    with pytest.raises(RuntimeError, match="foreseen"):
        load.result(60)
    assert store.append([make_output([1])]).result(60)[0] > SLICE_ROWS
    assert [stored.output.token_ids.tolist() for stored in store.scan()] == [[1]]
    store.check()
    store.close()
    assert store._writer.defects == 1


def test_a_load_is_refused_where_nothing_can_be_taken_back_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second slice of a load failed; to delete the first one there was no room; and the transaction that
    makes freed pages usable failed as well, as it does on a disk that fails. That last error left the writer
    before the load was refused: nobody heard of it, and wait_for_writes waited for ever.

    Now whatever fails there is tried again later, and the load is refused at once. It is owed once.
    """
    store = LmdbStore(tmp_path)
    store.add_namespace(NamespaceRecord(NS))
    attempt, apply = writer.Writer._attempt_within, operations._AppendSlices.apply
    hooked = []

    def second_fails(self: Any, view: Any) -> Any:
        if hooked:
            raise StoreError("the second slice")
        hooked.append(1)
        return apply(self, view)

    def failing(self: writer.Writer, batch: list[Operation[Any]], cap: int) -> None:
        if isinstance(getattr(batch[0].apply, "__self__", None), operations.Undo):
            self._freed = True  # as after a commit that deletes
            raise writer._NoRoom("no page is free")
        if batch[0].apply is tables.WriteView.touch:
            raise StoreError("the file system refused extending data.mdb")
        attempt(self, batch, cap)

    with monkeypatch.context() as patch:
        patch.setattr(operations._AppendSlices, "apply", second_fails)
        patch.setattr(writer.Writer, "_attempt_within", failing)
        with pytest.raises(StoreError, match="second slice"):
            store.append(LOAD).result(60)
        assert len(store._writer._owed) == 1
        assert store.failure() is not None
        assert store.stats().defects == 0
    until_it_works(store)
    assert not list(store.scan())
    store.check()
    store.close()


def test_a_folder_opens_where_an_unfinished_load_cannot_be_taken_back_yet(tmp_path: Path) -> None:
    """A kill ended a load, and the disk ran full: to delete takes pages before it gives pages. The folder
    could not be opened at all any more, so that nobody could read it or make room in it.

    Now it opens. What the load left is still to be taken back, which refuses appends and which health names;
    forgetting makes room, and then it goes by itself.
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
    store = LmdbStore(tmp_path, limit_bytes=MIN_LIMIT_BYTES, sync=False)  # now the reserve can be used
    assert not set(range(2, 22)) & {stored.output_id for stored in store.scan()}
    store.forget(NS, 1)
    until_it_works(store)
    assert store.append([make_output([7], uuid=LOAD[0].uuid)]).result(60)[0] > 21
    store.check()
    store.close()


def killed_child(folder: str) -> None:
    """In a process of its own: outputs 2 .. 21 are of a load that is not finished; no page is free."""
    with files_up_to(_ROOM):
        store = LmdbStore(folder, limit_bytes=MIN_LIMIT_BYTES, sync=False)
        store.add_namespace(NamespaceRecord(NS))
        store.append([make_output(range(300))]).result()
        more = {"session_id": "s", "incomplete": True, "ttl_seconds": 10**6}  # an entry in every database
        left = store.append([make_output([n], uuid=LOAD[n].uuid, **more) for n in range(20)]).result()
        unfinished = [(left[0], left[-1])]
        store._writer.call(Operation(lambda view: note_pending(view, left[0], unfinished)))
        for tokens in (2000, 500, 1):
            while store.append([make_output(range(tokens))]).exception() is None:
                pass
        os.kill(os.getpid(), signal.SIGKILL)
