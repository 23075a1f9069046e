"""Simulation of a power failure: names in folders that were synced."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest


class DurableNames:
    """Records the names in each folder at its last fsync, which are those after a power failure."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._names: dict[Path, set[str]] = {}
        sync = os.fsync

        def fsync(fd: int) -> None:
            sync(fd)
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                folder = Path(os.readlink(f"/proc/self/fd/{fd}"))
                self._names[folder] = set(os.listdir(folder))

        monkeypatch.setattr(os, "fsync", fsync)

    def have(self, path: Path) -> bool:
        return path.name in self._names.get(path.parent, ())
