"""The other end of ``faulty_disk.c``: a process whose disk fails at a numbered call."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Mapping
from enum import IntFlag
from pathlib import Path

from support.preloading import preloaded_library

__all__ = ["Calls", "FaultyDisk"]

_ALL = (1 << 64) - 1


class Calls(IntFlag):
    """Kinds of calls."""

    WRITE = 1  #: write, pwrite, writev, pwritev, sendfile, copy_file_range
    SYNC = 2  #: fsync, fdatasync, msync
    SIZE = 4  #: ftruncate, fallocate
    OPEN = 8  #: open for writing
    NAME = 16  #: rename, link, unlink, mkdir
    READ = 32  #: open for reading, read, pread

    #: calls that change something
    CHANGES = WRITE | SYNC | SIZE | OPEN | NAME


class _Control(ctypes.Structure):
    _fields_ = (
        ("kinds", ctypes.c_uint32),
        ("error", ctypes.c_int32),
        ("first", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("calls", ctypes.c_uint64),
        ("failed", ctypes.c_uint64),
        ("half", ctypes.c_uint32),
    )


class FaultyDisk:
    """Faults of the files whose paths begin with ``prefix``, in the processes that have :attr:`environ`.

    Args: folder: for the library and the shared file; not below ``prefix``.
    """

    def __init__(self, folder: Path, prefix: Path) -> None:
        folder.mkdir()
        library = preloaded_library(Path(__file__).with_name("faulty_disk.c"), folder)
        path = folder / "control"
        path.write_bytes(bytes(ctypes.sizeof(_Control)))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), ctypes.sizeof(_Control))
        self._control = _Control.from_buffer(self._map)
        #: of a process on this disk
        self.environ: Mapping[str, str] = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "FAULTY_DISK_CONTROL": str(path),
            "FAULTY_DISK_PREFIX": str(prefix),
        }

    def fail(
        self, kinds: Calls, *, first: int = 1, count: int = _ALL, error: int = errno.EIO, half: bool = False
    ) -> None:
        """Let calls fail, or write half, from the ``first`` one of these kinds on, counted from now."""
        control = self._control
        control.first = control.kinds = 0
        control.error, control.count, control.half = error, count, half
        control.calls = control.failed = 0
        control.first, control.kinds = first, kinds

    def count(self, kinds: Calls) -> None:
        """Count calls from now on; none fails."""
        self.fail(kinds, count=0)

    def heal(self) -> None:
        """Let no call fail."""
        self._control.kinds = self._control.first = 0

    @property
    def calls(self) -> int:
        """Calls that were counted."""
        return int(self._control.calls)

    @property
    def failed(self) -> int:
        """Calls that failed."""
        return int(self._control.failed)
