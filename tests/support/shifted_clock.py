"""The other end of ``shifted_clock.c``: a process whose wall clock is set."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path

from support.preloading import preloaded_library

__all__ = ["ShiftedClock"]


class ShiftedClock:
    """The wall clock of the processes that have :attr:`environ`.

    Args: folder: for the library and the shared file.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        library = preloaded_library(Path(__file__).with_name("shifted_clock.c"), folder)
        path = folder / "control"
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)
        #: of a process with this clock
        self.environ: Mapping[str, str] = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "SHIFTED_CLOCK_CONTROL": str(path),
        }

    def set(self, seconds_ahead: float) -> None:
        """Set the wall clock to so many seconds after the machine's; negative: before it."""
        self._map[:8] = struct.pack("<q", round(seconds_ahead * 1e9))
