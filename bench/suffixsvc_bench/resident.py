"""What this process holds in memory."""

from __future__ import annotations

from pathlib import Path

__all__ = ["resident"]


def resident() -> dict[str, int]:
    """Bytes resident now and (VmHWM) at most so far, by their names in /proc; zeros where there is none."""
    found = {"VmRSS": 0, "VmHWM": 0, "RssAnon": 0}
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        name, _, value = line.partition(":")
        if name in found:
            found[name] = int(value.split()[0]) * 1024
    return found
