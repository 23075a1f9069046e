"""Damaged, foreign and unreadable segment files, full disks and I/O errors."""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from sealing_testing import (
    BATCH,
    NS,
    all_there,
    damage,
    files,
    fill_random,
    open_cache,
    three_sealed,
)

from suffixsvc import Limits
from suffixsvc.errors import (
    IndexCorruptError,
    SegmentCancelledError,
    SegmentCorruptError,
    StoreError,
    StoreFullError,
    SuffixError,
)
from support.engine_parts import parts_of


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "header": lambda path: flip(path, 60),
    "table": lambda path: flip(path, 600),
    "newer": lambda path: path.write_bytes(path.read_bytes()[:8] + b"\2" + path.read_bytes()[9:]),
    "foreign": lambda path: path.write_bytes(b"GIF89a" + bytes(1000)),
    "folder": lambda path: (path.unlink(), path.mkdir()),
}

#: left as they are: of another version, or foreign
STAYS = {"empty", "newer", "foreign", "folder"}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_file_that_cannot_be_used_is_named_and_its_outputs_come_from_the_log(
    tmp_path: Path, how: str
) -> None:
    folder = tmp_path / "d"
    with open_cache(folder, BATCH) as cache:
        ids = fill_random(cache)
        cache.seal()
        names = files(folder)
        assert len(names) == 3
        cache.namespace(NS).delete(output_ids=[ids[5]])
    victim = next(name for name in names if "-5-8-" in name)
    DAMAGE[how](folder / "segments" / victim)
    with structlog.testing.capture_logs() as lines:
        cache = open_cache(folder, BATCH)
    with cache:
        (line,) = [line for line in lines if "cannot be used" in line["event"]]
        assert (line["file"], line["first_lsn"], line["last_lsn"]) == (victim, 5, 8)
        assert cache.stats().segments == 2
        assert cache.stats().hot_tokens == 90
        all_there(cache, 11)
        cache.namespace(NS).delete(output_ids=[ids[6]])
        assert parts_of(cache).store.tombstones(NS) == {}
        cache.seal()
        all_there(cache, 10)
        named = {record.name for record in parts_of(cache).store.segments(NS)}
        assert set(files(folder)) == (named | {victim} if how in STAYS else named)
        assert (victim in named) == (how not in STAYS), "a name is free again once its file is removed"
    with structlog.testing.capture_logs() as lines:
        cache = open_cache(folder, BATCH)
    with cache:
        assert [line["event"] for line in lines if "cannot be used" in line["event"]] == []
        assert [Path(line["file"]).name for line in lines if "left as it is" in line["event"]] == (
            [victim] if how in STAYS else []
        )
        assert (cache.stats().segments, cache.stats().hot_tokens) == (3, 0)
        all_there(cache, 10)


def test_segments_that_changed_places_are_noticed(tmp_path: Path) -> None:
    """Valid segment files with exchanged names."""
    folder = tmp_path / "d"
    one, two, _ = (folder / "segments" / name for name in three_sealed(folder))
    shutil.copy(one, tmp_path / "one")
    shutil.copy(two, one)
    shutil.copy(tmp_path / "one", two)
    with structlog.testing.capture_logs() as lines, open_cache(folder, BATCH) as cache:
        assert ["not the one in the manifest" in line["error"] for line in lines] == [True, True]
        all_there(cache, 12)


def test_a_large_damaged_range_goes_back_into_files_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    with open_cache(folder, BATCH) as cache:
        fill_random(cache, 40)
        assert cache.compact() == 1
    flip(folder / "segments" / files(folder)[0], 600)
    with open_cache(folder, BATCH) as cache:
        assert (cache.stats().segments, cache.stats().hot_tokens) == (10, 0)
        all_there(cache, 40)


def test_damage_found_in_use_is_repaired_from_the_log(tmp_path: Path) -> None:
    """A block that was not read before is found to be damaged."""
    folder = tmp_path / "d"
    limits = Limits(seal_tokens=40_000)
    with open_cache(folder, limits) as cache:
        ids = fill_random(cache, 30, 2_000)
        cache.compact()
    with open_cache(folder, limits) as cache:
        index = parts_of(cache).catalog.index_of(NS)
        (sealed,) = index.sealed()
        path = Path(sealed.segment.path)
        damage(path)
        cache.namespace(NS).delete(output_ids=[ids[3]])
        with pytest.raises(SegmentCorruptError):
            cache.check()
        parts_of(cache).maintenance.run_once()  # type: ignore[union-attr]  # a cache with a folder has it
        assert path.name not in files(folder)
        all_there(cache, 29)
        assert cache.stats().segments == 1
        assert cache.stats().hot_tokens == 18_000


def test_an_io_error_while_damage_is_repaired_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the segment was out of use when the store failed to drop it from the manifest, and only
    a full disk was handled there: its outputs were no longer drafted from, could not be forgotten, and no
    later run loaded them."""
    folder = tmp_path / "d"
    limits = Limits(seal_tokens=40_000)
    with open_cache(folder, limits) as cache:
        fill_random(cache, 30, 2_000)
        cache.compact()
    with open_cache(folder, limits) as cache:
        (sealed,) = parts_of(cache).catalog.index_of(NS).sealed()
        path = Path(sealed.segment.path)
        damage(path)
        with pytest.raises(SegmentCorruptError):
            cache.check()

        def fails(*_: object) -> None:
            raise StoreError("injected")

        with monkeypatch.context() as broken:
            broken.setattr(parts_of(cache).store, "drop_segments", fails)
            parts_of(cache).maintenance.run_once()  # type: ignore[union-attr]  # a cache with a folder has it
        assert cache.stats().outputs == 30
        cache.seal()
        assert path.name not in files(folder)
        all_there(cache, 30)


def test_damage_found_while_merging_is_repaired(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    limits = Limits(seal_tokens=20_000)
    with open_cache(folder, limits) as cache:
        fill_random(cache, 20, 4_000)
        cache.seal()
    with open_cache(folder, limits) as cache:
        path = Path(parts_of(cache).catalog.index_of(NS).sealed()[1].segment.path)
        damage(path)
        with pytest.raises(SegmentCorruptError):
            cache.compact()
        parts_of(cache).maintenance.run_once()  # type: ignore[union-attr]  # a cache with a folder has it
        all_there(cache, 20)
        assert cache.compact() == 1
        all_there(cache, 20)


def test_what_a_crash_left_is_removed_and_what_is_not_ours_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    names = three_sealed(folder)
    segments = folder / "segments"
    (segments / (names[0] + ".123-4.segment-tmp")).write_bytes(b"half")
    shutil.copy(segments / names[0], segments / names[0].replace("-0.seg", "-7.seg"))
    theirs = {"notes.txt": b"x", "0" * 16 + "-1-2-0.seg": b"not a segment", "x.segment-tmp": b""}
    for name, raw in theirs.items():
        (segments / name).write_bytes(raw)
    with structlog.testing.capture_logs() as lines, open_cache(folder, BATCH) as cache:
        assert files(folder) == sorted([*names, *theirs])
        assert {Path(line["file"]).name for line in lines} == theirs.keys()
        all_there(cache, 12)


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """Simulates a full disk: the kernel rejects the same writes, with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_while_sealing_and_merging(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    with open_cache(folder, Limits(seal_tokens=30_000)) as cache:
        fill_random(cache, 30, 2_000)
        cache.seal()
        names = files(folder)
        assert len(names) == 2
        more = fill_random(cache, 10, 2_000)
        sizes = {name: (folder / "segments" / name).stat().st_size for name in names}
        limit = min(sizes.values()) * 2 // 3
        assert limit > 64 << 10
        for attempt in (cache.seal, cache.compact):
            with file_size_limit(limit), pytest.raises(StoreFullError):
                attempt()
            assert files(folder) == names
            assert cache.stats().hot_tokens == 20_000
            all_there(cache, 40)
        # the thread logs it and continues
        with file_size_limit(limit), structlog.testing.capture_logs() as lines:
            parts_of(cache).maintenance.batch_tokens = 1000  # type: ignore[union-attr]  # a cache with a folder has it
            parts_of(cache).maintenance.run_once()  # type: ignore[union-attr]  # as above
        assert [line["event"] for line in lines] == ["sealing failed; it is retried"]
        cache.namespace(NS).delete(output_ids=[more[0]])
        assert cache.compact() == 1
        all_there(cache, 39)


def test_no_room_for_files_while_a_damaged_range_is_read_back(tmp_path: Path) -> None:
    """The outputs are then loaded into memory."""
    folder = tmp_path / "d"
    limits = Limits(seal_tokens=20_000)
    with open_cache(folder, limits) as cache:
        fill_random(cache, 20, 2_000)
        cache.compact()
    (name,) = files(folder)
    flip(folder / "segments" / name, 600)
    with file_size_limit(100_000), open_cache(folder, limits) as cache:
        assert (cache.stats().segments, cache.stats().hot_tokens) == (0, 40_000)
        assert cache.stats().outputs == 20
        for _ in range(2):  # the manifest cannot be written either
            with pytest.raises(StoreFullError):
                cache.seal()
    with open_cache(folder, limits) as cache:
        assert cache.stats().segments == 2
        all_there(cache, 20)


def test_what_fails_in_the_background_is_counted_and_the_thread_goes_on(tmp_path: Path) -> None:
    """Regression: the thread took a cancelled build for the close of the cache, and ended silently."""
    left = [OSError(24, "Too many open files"), SegmentCancelledError("cancelled"), MemoryError()]

    def hook(point: str) -> None:
        if point == "seal-read" and left:
            raise left.pop()

    with open_cache(tmp_path / "d", BATCH, background=True, sync_point=hook) as cache:
        assert cache.background_tasks()["maintenance"].alive
        fill_random(cache)
        end = time.monotonic() + 60
        while cache.stats().hot_tokens >= 100 or left:
            assert time.monotonic() < end
            time.sleep(0.01)
        task = cache.background_tasks()["maintenance"]
        assert task.alive
        assert task.failures == 3
        assert task.last_error == "OSError: [Errno 24] Too many open files"
        while cache.background_tasks()["maintenance"].failures_in_a_row:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert 0 < time.time() - cache.background_tasks()["maintenance"].last_success < 60
        all_there(cache, 12)
    assert not cache.background_tasks()["maintenance"].alive


def test_check_names_a_segment_that_does_not_hold_what_the_log_holds(tmp_path: Path) -> None:
    with open_cache(tmp_path / "d", BATCH) as cache:
        fill_random(cache)
        cache.compact()
        (sealed,) = parts_of(cache).catalog.index_of(NS).sealed()
        sealed.segment.forget([4])
        with pytest.raises(IndexCorruptError, match="same outputs"):
            cache.check()
    with open_cache(tmp_path / "d", BATCH) as cache:
        (name,) = files(tmp_path / "d")
        (tmp_path / "d/segments" / name).unlink()
        with pytest.raises(IndexCorruptError, match="must be complete"):
            cache.check()


def test_a_folder_of_segments_that_is_a_file_is_refused_by_name(tmp_path: Path) -> None:
    open_cache(tmp_path / "d").close()
    (tmp_path / "d/segments").write_bytes(b"")
    with pytest.raises(StoreError, match="segments"):
        open_cache(tmp_path / "d")
    (tmp_path / "d/segments").unlink()
    open_cache(tmp_path / "d").close()


def test_a_reading_error_in_the_background_never_reaches_a_step(tmp_path: Path) -> None:
    with open_cache(tmp_path / "d", BATCH) as cache:
        fill_random(cache)
        maintenance = parts_of(cache).maintenance
        assert maintenance is not None

        def fails(index: object) -> int:
            raise SuffixError("as a defect would")

        maintenance.sealer.seal = fails  # type: ignore[method-assign,assignment]  # a defect, for once
        with structlog.testing.capture_logs() as lines:
            maintenance.run_once()
            maintenance.run_once()  # during the back-off
        assert [line["event"] for line in lines] == ["sealing failed; it is retried"]
        assert cache.namespace(NS).open_session([1]).step([2, 3]) is not None
