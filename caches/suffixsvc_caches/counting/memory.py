"""What this process takes."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path

__all__ = ["peak_bytes", "resident_bytes"]

_STATUS = Path("/proc/self/status")
_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Memory that is resident now; where the system does not say, the most it ever was."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return peak_bytes()


def peak_bytes() -> int:
    """The most that was resident since the process started."""
    # Better than getrusage, which on Linux counts the program as well that started this one.
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
