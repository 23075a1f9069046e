"""Atomic creation of files, and the paths that it refuses."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

import pytest

from suffixsvc.errors import InvalidInputError, StoreError, StoreFullError
from suffixsvc_caches.atomic import new_file, require_new
from support.durable_names import DurableNames
from support.small_disk import files_up_to


def test_files_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "s[1].bin"
    with pytest.raises(ZeroDivisionError), new_file(path) as file:
        file.write(b"half" + bytes([1 // 0]))
    with files_up_to(10), pytest.raises(StoreFullError), new_file(path) as file:
        file.write(bytes(100))
    assert list(tmp_path.iterdir()) == []
    with new_file(path) as file:
        file.write(b"whole")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for bad in (path, tmp_path, tmp_path / "none" / "s.bin", tmp_path / "link"):
        with pytest.raises(InvalidInputError):
            require_new(bad, force=False)
    with new_file(path, force=True) as file:
        file.write(b"other")
    assert path.read_bytes() == b"other"


def test_devices_pipes_and_folders_are_not_replaced(tmp_path: Path) -> None:
    """--force replaced a pipe, and as root /dev/null, by a file."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInputError, match="must be a regular file"):
        require_new(tmp_path / "pipe", force=True)
    with pytest.raises(InvalidInputError), new_file(tmp_path / "pipe", force=True):
        pass
    assert (tmp_path / "pipe").is_fifo()


def test_a_written_file_survives_a_power_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    durable = DurableNames(monkeypatch)
    with new_file(tmp_path / "s.bin") as file:
        file.write(b"whole")
    assert durable.have(tmp_path / "s.bin")


def test_a_file_in_a_folder_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems do not support it; other errors are raised."""
    sync = os.fsync
    for number, refused in ((errno.EINVAL, False), (errno.EIO, True)):

        def fail_for_folders(fd: int, number: int = number) -> None:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                raise OSError(number, os.strerror(number))
            sync(fd)

        monkeypatch.setattr(os, "fsync", fail_for_folders)
        with (
            pytest.raises(StoreError) if refused else contextlib.nullcontext(),
            new_file(tmp_path / f"{number}.bin") as file,
        ):
            file.write(b"whole")
