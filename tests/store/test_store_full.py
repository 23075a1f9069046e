"""Full stores: byte limit, full disk, file size limit of the process. Failed writes leave nothing."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_testing import NS, make_output, plain

from suffixsvc.errors import StoreFullError
from suffixsvc.store import LmdbStore
from suffixsvc.store.base import Store
from suffixsvc.store.lmdb_store import MIN_LIMIT_BYTES
from suffixsvc.types import NamespaceRecord
from support.small_disk import small_disk


def fill_up(store: Store, tokens: int = 2000) -> int:
    """Append until the store is full; return the number of appends."""
    for i in range(100_000):
        before = store.stats()
        future = store.append([make_output([i]), make_output(range(i, i + tokens), ttl_seconds=9)])
        if future.exception() is not None:
            with pytest.raises(StoreFullError) as caught:
                future.result()
            assert caught.value.remedy
            after = store.stats()
            assert (after.outputs, after.payloads, after.tokens, after.last_lsn) == (
                before.outputs,
                before.payloads,
                before.tokens,
                before.last_lsn,
            )
            return 2 * i
    raise AssertionError("never full")


def test_the_byte_limit_holds(small: Store) -> None:
    count = fill_up(small)
    assert count > 50
    small.check()
    assert small.stats().bytes_used <= MIN_LIMIT_BYTES
    assert [s.output_id for s in small.scan()] == list(range(1, count + 1))


def test_the_byte_limit_is_named_and_not_the_disk(small: Store) -> None:
    fill_up(small)
    error = small.append([make_output(range(400_000))]).exception()
    assert "Limits.max_store_bytes" in str(error)
    assert "MAP_FULL" not in str(error)
    assert "disk" not in str(error)
    assert "Limits.max_store_bytes" in str(small.failure())


def test_small_ones_still_fit_when_a_large_one_does_not(small: Store) -> None:
    """The large one fails alone, also if it shared a commit."""
    large = make_output(range(400_000))
    futures = [small.append([o]) for o in (make_output([1]), large, make_output([2]))]
    assert isinstance(futures[1].exception(), StoreFullError)
    assert [len(futures[i].result()) for i in (0, 2)] == [1, 1]
    assert [s.output.token_ids.tolist() for s in small.scan()] == [[1], [2]]


def test_a_full_store_can_forget_and_then_take_more(small: Store) -> None:
    """Deletions need pages, too; without a reserve a full store would stay full."""
    for _ in range(3):
        fill_up(small)
        fill_up(small, tokens=1)  # to the last page
        held = [s.output_id for s in small.scan()]
        for output_id in held[: len(held) // 2]:
            small.forget_many(NS, [output_id])
        small.check()
    assert small.expire(4e9)
    for stored in list(small.scan()):
        small.forget_many(NS, [stored.output_id])
    assert small.stats().outputs == 0
    assert fill_up(small) > 50


def test_a_full_store_keeps_its_states_or_says_so(small: Store) -> None:
    small.put_state(NS, "mixer", b"old")
    fill_up(small)
    with pytest.raises(StoreFullError):
        small.put_state(NS, "mixer", bytes(MIN_LIMIT_BYTES))
    assert small.get_state(NS, "mixer") == b"old"


def test_a_lower_limit_than_what_is_there_only_stops_growth(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, sync=False)
    store.add_namespace(NamespaceRecord(NS))
    outputs = [make_output(range(i, i + 50_000)) for i in range(20)]
    for output in outputs:
        store.append([output]).result()
    store.close()
    store = LmdbStore(tmp_path, limit_bytes=MIN_LIMIT_BYTES)
    assert [plain(s.output) for s in store.scan()] == [plain(o) for o in outputs]
    with pytest.raises(StoreFullError):
        store.append([make_output(range(60_000))]).result()
    store.forget_many(NS, [1])
    store.forget_many(NS, [2])
    store.append([make_output(range(100))]).result()
    store.check()
    store.close()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two MiB."""
    with small_disk(tmp_path / "disk", 2 << 20) as folder:
        yield folder


def test_a_full_disk(tiny_disk: Path) -> None:
    store = LmdbStore(tiny_disk / "data", map_bytes_initial=1)
    store.add_namespace(NamespaceRecord(NS))
    count = fill_up(store)
    assert count > 50
    store.check()
    ballast = tiny_disk / "ballast"
    free = os.statvfs(tiny_disk)
    ballast.write_bytes(bytes(free.f_bavail * free.f_frsize))
    # on the full disk deletions, reads and a reopened store work
    store.forget_many(NS, [1])
    store.close()
    store = LmdbStore(tiny_disk / "data")
    store.check()
    assert store.stats().outputs == count - 1
    for stored in list(store.scan())[: count // 2]:
        store.forget_many(NS, [stored.output_id])
    store.append([make_output([1, 2])]).result()
    store.check()
    store.close()


def test_a_full_disk_keeps_a_new_store_from_half_existing(tiny_disk: Path) -> None:
    free = os.statvfs(tiny_disk)
    (tiny_disk / "ballast").write_bytes(bytes(free.f_bavail * free.f_frsize - (64 << 10)))
    with pytest.raises(StoreFullError):
        LmdbStore(tiny_disk / "data")
    assert not (tiny_disk / "data" / "data.mdb").exists()
    (tiny_disk / "ballast").unlink()
    LmdbStore(tiny_disk / "data", map_bytes_initial=1).close()


def limited_child(folder: str) -> None:
    """Child process: the file size is limited to one MiB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    store = LmdbStore(folder, map_bytes_initial=1)
    store.add_namespace(NamespaceRecord(NS))
    count = fill_up(store)
    for stored in list(store.scan())[: count // 2]:
        store.forget_many(NS, [stored.output_id])
    store.append([make_output([1, 2])]).result()
    store.check()
    store.close()
    print(count)


def test_a_file_size_limit(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; import test_store_full as t; t.limited_child(sys.argv[1])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data")], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    count = int(result.stdout.splitlines()[-1])  # log lines go first
    assert count > 50
    store = LmdbStore(tmp_path / "data")
    assert store.stats().outputs == count - count // 2 + 1
    store.check()
    store.close()
