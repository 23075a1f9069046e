"""Replacement of a file: its permissions, and what is left after an error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from suffixsvc_driver.settings.atomic_file import write_atomically


def test_a_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    """A page of a benchmark could be read by its user only, and not by a web server."""
    path, plain = tmp_path / "a.html", tmp_path / "plain"
    plain.touch()
    write_atomically(path, "old")
    write_atomically(path, "né")
    assert path.read_text(encoding="utf-8") == "né"
    assert os.stat(path).st_mode == os.stat(plain).st_mode


def test_an_error_leaves_the_old_text_and_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]
