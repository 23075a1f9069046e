"""What this process takes."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

__all__ = ["peak_bytes", "resident_bytes"]

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Memory that is resident now; where the system does not say, the most it ever was."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return peak_bytes()


def peak_bytes() -> int:
    """The most that was resident since the process started."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
