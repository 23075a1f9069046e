"""Segments from the service's folder, from the cache folder, and fetched."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from follower_testing import array, header_digest, no_fetch

from suffixsvc.core.segments import SegmentText, build_segment
from suffixsvc.errors import ServiceUnavailableError
from suffixsvc.types import SegmentRecord
from suffixsvc_follower.contents.segment_cache import default_cache_folder, stem
from suffixsvc_follower.contents.segment_source import SegmentSource
from support.small_disk import files_up_to

LIMIT = 1 << 30


class Made:
    """A segment file of a service, and its rows in the manifest."""

    def __init__(self, folder: Path, name: str, first: int = 1, outputs: int = 300) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / name
        random = np.random.default_rng(first)
        build_segment(
            self.path,
            [SegmentText(array(random.integers(0, 900, 100)), 0, first + i) for i in range(outputs)],
        )
        self.data = self.path.read_bytes()
        self.digest = header_digest(self.path)
        self.record = SegmentRecord(name, first, first + outputs - 1, outputs, outputs * 100, len(self.data))
        self.ids = list(range(first, first + outputs))


class Service:
    """Sends files in pieces; ``change`` alters what is sent."""

    def __init__(self, *made: Made) -> None:
        self.files = {each.record.name: each.data for each in made}
        self.offsets: list[int] = []
        self.change: Callable[[bytes], bytes] = lambda data: data
        self.fails_after: int | None = None

    def fetch(self, _namespace: str, name: str, offset: int) -> Iterable[bytes]:
        self.offsets.append(offset)
        data = self.change(self.files[name])
        for at in range(offset, len(data), 1000):
            if self.fails_after is not None and at - offset >= self.fails_after:
                raise ServiceUnavailableError("the connection was cut")
            yield data[at : at + 1000]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "service", "a.seg")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The cache folder; nothing in it is open to others at the end."""
    folder = tmp_path / "cache" / "segments"
    yield folder
    if folder.exists():
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ------------------------------------------------------------------------------------------- the same host


def test_a_file_of_the_service_is_mapped(made: Made, folder: Path) -> None:
    source = SegmentSource(folder, LIMIT, no_fetch)
    segment = source.open("a", made.record, made.digest, [2, 10**6], str(made.path.parent))
    assert segment is not None
    assert segment.path == made.path
    assert segment.outputs() == [1, *made.ids[2:]]
    assert not folder.exists(), "no cache folder is needed"


def test_files_that_are_not_the_segment_are_not_mapped(made: Made, folder: Path, tmp_path: Path) -> None:
    source = SegmentSource(folder, 0, no_fetch)
    shared = str(made.path.parent)

    def opens() -> bool:
        return source.open("a", made.record, made.digest, (), shared) is not None

    assert opens()
    other = tmp_path / "other.seg"
    made.path.rename(other)
    assert not opens(), "it does not exist"
    made.path.symlink_to(other)
    assert not opens(), "a link"
    made.path.unlink()
    made.path.mkdir()
    assert not opens(), "a folder"
    made.path.rmdir()
    os.mkfifo(made.path)
    assert not opens(), "a pipe, without waiting for a writer"
    made.path.unlink()
    made.path.write_bytes(made.data[:-1])
    assert not opens(), "torn"
    made.path.write_bytes(made.data[:100] + bytes([made.data[100] ^ 1]) + made.data[101:])
    assert not opens(), "another header"
    made.path.write_bytes(made.data)
    assert opens()


def test_another_segment_under_the_name_is_not_mapped(made: Made, folder: Path, tmp_path: Path) -> None:
    other = Made(tmp_path / "other", "a.seg", first=5)
    other.path.replace(made.path)
    record = replace(made.record, file_bytes=len(other.data))
    source = SegmentSource(folder, 0, no_fetch)
    assert source.open("a", record, made.digest, (), str(made.path.parent)) is None
    assert source.open("a", record, other.digest, (), str(made.path.parent)) is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the owner of a file")
def test_a_file_of_another_user_is_not_mapped(made: Made, folder: Path) -> None:
    os.chown(made.path, 12345, -1)
    source = SegmentSource(folder, 0, no_fetch)
    assert source.open("a", made.record, made.digest, (), str(made.path.parent)) is None


# ------------------------------------------------------------------------------------------------ fetching


def test_a_segment_is_fetched_once(made: Made, folder: Path) -> None:
    service = Service(made)
    for _ in range(2):
        segment = SegmentSource(folder, LIMIT, service.fetch).open("a", made.record, made.digest, [3], "")
        assert segment is not None
        assert segment.outputs() == [1, 2, *made.ids[3:]]
    assert service.offsets == [0]
    assert names(folder) == [f"{stem('a', made.digest)}.seg"]


def test_a_cut_fetch_is_continued(made: Made, folder: Path) -> None:
    service = Service(made)
    source = SegmentSource(folder, LIMIT, service.fetch)
    service.fails_after = 5000
    assert source.open("a", made.record, made.digest, (), "") is None
    assert source.open("a", made.record, made.digest, (), "") is None
    assert names(folder) == [f"{stem('a', made.digest)}.part"]
    service.fails_after = None
    segment = source.open("a", made.record, made.digest, (), "")
    assert segment is not None
    segment.check()
    assert service.offsets == [0, 5000, 10000]


def test_a_stream_that_ends_early_is_continued(made: Made, folder: Path) -> None:
    service = Service(made)
    source = SegmentSource(folder, LIMIT, service.fetch)
    service.change = lambda data: data[:7000]
    assert source.open("a", made.record, made.digest, (), "") is None
    service.change = lambda data: data
    assert source.open("a", made.record, made.digest, (), "") is not None
    assert service.offsets == [0, 7000]


@pytest.mark.parametrize("at", [0, 40, 511, 512, 3000, -1], ids=lambda at: f"byte {at}")
def test_a_tampered_segment_is_refused(made: Made, folder: Path, at: int) -> None:
    service = Service(made)
    source = SegmentSource(folder, LIMIT, service.fetch)

    def flip(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[at] ^= 1
        return bytes(changed)

    service.change = flip
    assert source.open("a", made.record, made.digest, (), "") is None
    assert names(folder) == []
    service.change = lambda data: data
    assert source.open("a", made.record, made.digest, (), "") is not None


def test_a_torn_partial_file_is_found_and_fetched_again(made: Made, folder: Path) -> None:
    """As of a crash that left zeros where data was not written."""
    service = Service(made)
    source = SegmentSource(folder, LIMIT, service.fetch)
    folder.mkdir(parents=True, mode=0o700)
    partial = folder / f"{stem('a', made.digest)}.part"
    partial.write_bytes(made.data[:4000] + bytes(4000))
    partial.chmod(0o600)
    assert source.open("a", made.record, made.digest, (), "") is None
    assert source.open("a", made.record, made.digest, (), "") is not None
    assert service.offsets == [8000, 0]


def test_a_partial_file_that_is_too_long_begins_again(made: Made, folder: Path) -> None:
    service = Service(made)
    folder.mkdir(parents=True, mode=0o700)
    partial = folder / f"{stem('a', made.digest)}.part"
    partial.write_bytes(made.data + b"x")
    partial.chmod(0o600)
    assert SegmentSource(folder, LIMIT, service.fetch).open("a", made.record, made.digest, (), "") is not None
    assert service.offsets == [0]


def test_more_bytes_than_the_segment_has_are_not_stored(made: Made, folder: Path) -> None:
    def endless(_namespace: str, _name: str, _offset: int) -> Iterator[bytes]:
        yield made.data
        while True:
            yield bytes(1000)

    assert SegmentSource(folder, LIMIT, endless).open("a", made.record, made.digest, (), "") is None
    assert names(folder) == []


def test_a_cached_file_that_was_changed_is_fetched_again(made: Made, folder: Path) -> None:
    service = Service(made)
    source = SegmentSource(folder, LIMIT, service.fetch)
    assert source.open("a", made.record, made.digest, (), "") is not None
    cached = folder / f"{stem('a', made.digest)}.seg"
    for changed in (made.data[:-1], b"\0" + made.data[1:], made.data[:520] + b"\xff" * 8 + made.data[528:]):
        cached.write_bytes(changed)
        assert source.open("a", made.record, made.digest, (), "") is not None
        assert cached.read_bytes() == made.data
    assert len(service.offsets) == 4


def test_a_full_disk_leaves_nothing(made: Made, folder: Path) -> None:
    service = Service(made)
    source = SegmentSource(folder, LIMIT, service.fetch)
    with files_up_to(20_000):
        assert source.open("a", made.record, made.digest, (), "") is None
        assert names(folder) == []
    assert source.open("a", made.record, made.digest, (), "") is not None


def test_the_least_recently_used_files_make_room(tmp_path: Path, folder: Path) -> None:
    all_made = [Made(tmp_path / "service", f"{i}.seg", first=1 + 1000 * i) for i in range(4)]
    service = Service(*all_made)
    size = max(len(each.data) for each in all_made)

    def open_one(source: SegmentSource, i: int) -> bool:
        return source.open("a", all_made[i].record, all_made[i].digest, (), "") is not None

    def cached() -> set[int]:
        stems = {path.stem for path in folder.glob("*.seg")}
        return {i for i, each in enumerate(all_made) if stem("a", each.digest) in stems}

    def used(i: int, when: int) -> None:
        os.utime(folder / f"{stem('a', all_made[i].digest)}.seg", (when, when))

    source = SegmentSource(folder, 2 * size + size // 2, service.fetch)
    for i in (0, 1):
        assert open_one(source, i)
        used(i, 1000 + i)
    assert not open_one(source, 2), "both are in use"
    assert cached() == {0, 1}
    source.release("a", [all_made[0].digest, all_made[1].digest])
    assert open_one(source, 0), "used again: now the newest"
    source.release("a", [all_made[0].digest])
    assert open_one(source, 2)
    assert cached() == {0, 2}
    source.release("a", [each.digest for each in all_made])
    assert open_one(source, 3)
    assert len(cached()) == 2
    small = SegmentSource(folder, size // 2, service.fetch)
    assert not open_one(small, 1), "larger than the limit"


def test_unfinished_files_of_others_are_removed_unless_they_are_written(tmp_path: Path, folder: Path) -> None:
    made = Made(tmp_path / "service", "a.seg")
    folder.mkdir(parents=True, mode=0o700)
    abandoned, written = folder / f"{'0' * 32}.part", folder / f"{'1' * 32}.part"
    for path in (abandoned, written):
        path.write_bytes(b"x" * 100)
        path.chmod(0o600)
    with written.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        source = SegmentSource(folder, LIMIT, Service(made).fetch)
        assert source.open("a", made.record, made.digest, (), "") is not None
    assert not abandoned.exists()
    assert written.exists()


def test_a_file_that_another_process_fetches_is_waited_for_by_trying_again(made: Made, folder: Path) -> None:
    service = Service(made)
    source = SegmentSource(folder, LIMIT, service.fetch)
    folder.mkdir(parents=True, mode=0o700)
    partial = folder / f"{stem('a', made.digest)}.part"
    partial.touch(0o600)
    with partial.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert source.open("a", made.record, made.digest, (), "") is None
        assert service.offsets == []
    assert source.open("a", made.record, made.digest, (), "") is not None


def test_processes_share_a_folder(made: Made, folder: Path) -> None:
    script = Path(__file__).with_name("segment_fetching_child.py")
    children = [
        subprocess.Popen(
            [sys.executable, str(script), str(folder), str(made.path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    found = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0] * 3, found
    counts = [list(map(int, out.split()[-2:])) for out, _ in found]
    assert [outputs for _, outputs in counts] == [len(made.ids)] * 3
    assert sum(fetched for fetched, _ in counts) == 1, "one of them fetches it"
    assert names(folder) == [f"{stem('a', made.digest)}.seg"]


def test_a_mapped_file_outlives_its_deletion(made: Made, folder: Path) -> None:
    segment = SegmentSource(folder, LIMIT, Service(made).fetch).open("a", made.record, made.digest, (), "")
    assert segment is not None
    (folder / f"{stem('a', made.digest)}.seg").unlink()
    segment.check()
    assert segment.outputs() == made.ids


# ------------------------------------------------------------------------------------------------- folders


def test_a_folder_that_others_can_read_is_not_used(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    service = Service(made)
    assert SegmentSource(folder, LIMIT, service.fetch).open("a", made.record, made.digest, (), "") is None
    folder.chmod(0o700)
    assert SegmentSource(folder, LIMIT, service.fetch).open("a", made.record, made.digest, (), "") is not None


def test_a_path_that_is_a_file_is_not_used(made: Made, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    service = Service(made)
    assert SegmentSource(file, LIMIT, service.fetch).open("a", made.record, made.digest, (), "") is None


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, made: Made, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    source = SegmentSource(None, LIMIT, Service(made).fetch)
    assert source.open("a", made.record, made.digest, (), "") is not None
    assert len(names(tmp_path / "xdg" / "suffixsvc" / "segments")) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_folder() == tmp_path / ".cache" / "suffixsvc" / "segments"
