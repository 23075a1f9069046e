"""Targets of backups and restores: links, folders of other users, the data folder itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from backup_testing import NS, open_cache

from suffixsvc.engine.backup.restore import restore
from suffixsvc.errors import InvalidInputError
from support.other_uid_process import OTHER_UID


def _partial_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def test_a_link_in_the_place_of_the_partial_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious" / "folder").mkdir(parents=True)
    (tmp_path / "precious" / "file").write_text("kept")
    with open_cache(tmp_path / "data") as cache:
        cache.namespace(NS).add_output([1, 2, 3])
        _partial_of(tmp_path / "b").symlink_to(tmp_path / "precious")
        with pytest.raises(InvalidInputError, match="must be a folder of this user"):
            cache.backup(tmp_path / "b")
        assert sorted(os.listdir(tmp_path / "precious")) == ["file", "folder"]
        assert not os.path.lexists(tmp_path / "b")
        _partial_of(tmp_path / "b").unlink()
        cache.backup(tmp_path / "b")
    _partial_of(tmp_path / "restored").symlink_to(tmp_path / "precious")
    with pytest.raises(InvalidInputError, match="must be a folder of this user"):
        restore(tmp_path / "b", tmp_path / "restored")
    assert sorted(os.listdir(tmp_path / "precious")) == ["file", "folder"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_partial_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    with open_cache(tmp_path / "data") as cache:
        partial = _partial_of(tmp_path / "b")
        partial.mkdir()
        os.chown(partial, OTHER_UID, OTHER_UID)
        with pytest.raises(InvalidInputError, match=f"user id {OTHER_UID}"):
            cache.backup(tmp_path / "b")
        assert os.listdir(partial) == []


def test_the_partial_folder_of_a_killed_process_becomes_private(tmp_path: Path) -> None:
    with open_cache(tmp_path / "data") as cache:
        _partial_of(tmp_path / "b").mkdir()
        _partial_of(tmp_path / "b").chmod(0o777)
        cache.backup(tmp_path / "b")
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("place", ["b", "segments", "segments/b", "../data/b", "../link/b"])
def test_a_backup_in_the_data_folder_is_refused(tmp_path: Path, place: str) -> None:
    data = tmp_path / "data"
    (tmp_path / "link").symlink_to(data)
    with open_cache(data) as cache:
        cache.namespace(NS).add_output([1, 2, 3])
        (data / "segments").mkdir(exist_ok=True)
        before = sorted(data.rglob("*"))
        with pytest.raises(InvalidInputError, match="outside of the data folder"):
            cache.backup(data / place)
        assert sorted(data.rglob("*")) == before
