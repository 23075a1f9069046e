"""Atomic replacement of files: permissions, durability, errors, and temporary files of killed processes."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from suffixsvc.errors import InvalidConfigError
from suffixsvc.runtime.atomic_file import atomic_file, remove_stale_temporaries, write_atomically
from suffixsvc.runtime.server_lifecycle import report_ready
from support.durable_names import DurableNames
from support.small_disk import files_up_to


def test_a_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    """A page of a benchmark could be read by its user only, and not by a web server."""
    path, plain = tmp_path / "a.html", tmp_path / "plain"
    plain.touch()
    write_atomically(path, "old")
    write_atomically(path, "né")
    assert path.read_text(encoding="utf-8") == "né"
    assert os.stat(path).st_mode == os.stat(plain).st_mode
    before = os.umask(0o077)
    try:
        write_atomically(path, "private")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_error_leaves_the_old_text_and_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    with files_up_to(10), pytest.raises(OSError, match="File too large"):
        write_atomically(path, "a" * 100)
    with pytest.raises(ZeroDivisionError), atomic_file(path) as file:
        file.write(b"half" + bytes([1 // 0]))
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "a.html", "new")
    with pytest.raises(NotADirectoryError):
        write_atomically(path / "a.html", "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_of_the_disk_is_the_one_that_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that is remounted read-only after it refuses a sync does not remove files either."""

    def fail(number: int) -> None:
        raise OSError(number, os.strerror(number))

    def fail_and_remount(fd: int) -> None:
        monkeypatch.setattr(Path, "unlink", lambda *_, **__: fail(errno.EROFS))
        fail(errno.EIO)

    monkeypatch.setattr(os, "fsync", fail_and_remount)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        write_atomically(tmp_path / "a", "new")
    assert not (tmp_path / "a").exists()


def test_readers_see_the_old_bytes_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomically(path, "old")
    with atomic_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


def test_threads_may_write_the_same_file(tmp_path: Path) -> None:
    """Threads of one process do not write into each other's temporary file."""
    path, together = tmp_path / "a", threading.Barrier(4)

    def write(letter: bytes) -> None:
        together.wait()
        for _ in range(20):
            with atomic_file(path) as file:
                for _ in range(100):
                    file.write(letter * 100)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, (b"a", b"b", b"c", b"d")))
    assert path.read_bytes() in {letter * 10_000 for letter in (b"a", b"b", b"c", b"d")}
    assert list(tmp_path.iterdir()) == [path]


def test_temporary_files_of_killed_processes_are_replaced(tmp_path: Path) -> None:
    """A process with the same pid, which is usual in containers, could not write the file again."""
    path = tmp_path / "s[1].bin"
    mine = tmp_path / f".{path.name}.{os.getpid()}.tmp"
    mine.write_bytes(b"stale")
    mine.chmod(0o400)
    write_atomically(path, "whole")
    assert path.read_bytes() == b"whole"
    assert path.stat().st_mode & stat.S_IWUSR, "not that of the stale file"
    assert list(tmp_path.iterdir()) == [path]
    for name in (f".{path.name}.999999999.tmp", f".{path.name}.99999999999999999999.tmp"):
        (tmp_path / name).write_bytes(b"stale")
    others = [
        f".{path.name}.{os.getpid()}.tmp",
        f".{path.name}.1.tmp",
        f".{path.name}.mine.tmp",
        ".s.bin.7.tmp",
    ]
    for name in others:
        (tmp_path / name).write_bytes(b"other")
    remove_stale_temporaries(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([*others, path.name])


def test_the_temporary_file_of_another_thread_is_not_stale(tmp_path: Path) -> None:
    path, opened, cleaned = tmp_path / "a", threading.Event(), threading.Event()

    def write() -> None:
        with atomic_file(path) as file:
            file.write(b"whole")
            opened.set()
            cleaned.wait(60)

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        assert opened.wait(60)
        remove_stale_temporaries(path)
        cleaned.set()
        written.result()
    assert path.read_bytes() == b"whole"


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path: Path) -> None:
    """In a folder that others can write to, a link would have another file overwritten."""
    path, victim = tmp_path / "a", tmp_path / "victim"
    victim.write_text("untouched")
    (tmp_path / f".a.{threading.get_native_id()}.tmp").symlink_to(victim)
    write_atomically(path, "new")
    assert victim.read_text() == "untouched"
    assert path.read_text() == "new"
    assert not path.is_symlink()


def test_a_written_file_survives_a_power_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    durable = DurableNames(monkeypatch)
    write_atomically(tmp_path / "a", "whole")
    assert durable.have(tmp_path / "a")


def test_a_file_in_a_folder_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems do not support it; other errors are raised."""
    sync = os.fsync
    for number, refused in ((errno.EINVAL, False), (errno.EACCES, False), (errno.EIO, True)):

        def fail_for_folders(fd: int, number: int = number) -> None:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                raise OSError(number, os.strerror(number))
            sync(fd)

        monkeypatch.setattr(os, "fsync", fail_for_folders)
        with pytest.raises(OSError, match="error") if refused else contextlib.nullcontext():
            write_atomically(tmp_path / f"{number}", "whole")


def test_a_ready_file_that_cannot_be_written_leaves_no_part(tmp_path: Path) -> None:
    """A full disk left NAME.new."""
    path = tmp_path / "ready"
    with files_up_to(10), pytest.raises(InvalidConfigError, match="the ready file cannot be written"):
        report_ready(path, addresses=["unix:/tmp/s"])
    assert list(tmp_path.iterdir()) == []
    report_ready(path, addresses=["unix:/tmp/s"])
    assert path.read_text() == f'{{"addresses": ["unix:/tmp/s"], "pid": {os.getpid()}}}\n'
    assert list(tmp_path.iterdir()) == [path]
