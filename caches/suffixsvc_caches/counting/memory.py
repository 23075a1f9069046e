"""Memory use of this process."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return the resident memory in bytes; the peak if the system does not report it."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return peak_bytes()


def peak_bytes() -> int:
    """Return the peak resident memory of the process in bytes."""
    # VmHWM, because getrusage() on Linux includes the peak of the parent before exec.
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
