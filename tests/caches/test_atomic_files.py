"""Files that appear whole or not at all, and what they may take the place of."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest
from suffixsvc_caches.atomic import new_file, remove_leftovers, require_new
from support.durable_names import DurableNames
from support.small_disk import files_up_to

from suffixsvc.errors import InvalidInputError, StoreError, StoreFullError


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


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    """--force made a file of a pipe, and as root of /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInputError, match="no ordinary file"):
        require_new(tmp_path / "pipe", force=True)
    with pytest.raises(InvalidInputError), new_file(tmp_path / "pipe", force=True):
        pass
    assert (tmp_path / "pipe").is_fifo()


def test_what_a_killed_process_left_is_no_obstacle(tmp_path: Path) -> None:
    """A process of the same number, as every build in a container has, could not write the file again."""
    path = tmp_path / "s[1].bin"
    mine = tmp_path / f".{path.name}.{os.getpid()}.tmp"
    mine.write_bytes(b"left behind")
    with new_file(path) as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole"
    for name in (f".{path.name}.999999999.tmp", f".{path.name}.99999999999999999999.tmp"):
        (tmp_path / name).write_bytes(b"left behind")
    others = [
        f".{path.name}.{os.getpid()}.tmp",
        f".{path.name}.1.tmp",
        f".{path.name}.mine.tmp",
        ".s.bin.7.tmp",
    ]
    for name in others:
        (tmp_path / name).write_bytes(b"of somebody")
    remove_leftovers(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([*others, path.name])


def test_a_file_that_was_written_is_there_after_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable = DurableNames(monkeypatch)
    with new_file(tmp_path / "s.bin") as file:
        file.write(b"whole")
    assert durable.have(tmp_path / "s.bin")


def test_a_file_in_a_folder_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems do not do it; others fail, and that is told."""
    for number, refused in ((errno.EINVAL, False), (errno.EIO, True)):

        def fail(path: str, number: int = number) -> None:
            raise OSError(number, os.strerror(number), path)

        monkeypatch.setattr("suffixsvc.store.folder.sync_folder", fail)
        with (
            pytest.raises(StoreError) if refused else contextlib.nullcontext(),
            new_file(tmp_path / f"{number}.bin") as file,
        ):
            file.write(b"whole")
