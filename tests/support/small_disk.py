"""Disks that are full."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["files_up_to", "small_disk"]


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Inside, no file of this process grows past so many bytes; the system says EFBIG, which is no room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A file system of so many bytes; skips where none may be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("may not mount a small file system here (tests with a file size limit still run)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
