"""CPU time of servers that are not timed: it must be none, or they slow the one that is.

Read from /proc; on systems without it nothing is reported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
#: position of utime behind the program's name, which ends with the last ")"
_UTIME: Final = 11


def cpu_seconds(pid: int) -> float | None:
    """CPU seconds of a process, all its threads together; None if they are unknown."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[_UTIME]) + int(fields[_UTIME + 1])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


@dataclass(slots=True)
class IdleWatch:
    """Adds up what processes use while others are timed.

    Attributes:
        cpu: CPU seconds by name.
        wall: seconds in which they should have been idle, by name.
    """

    cpu: dict[str, float] = field(default_factory=dict)
    wall: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def during(self, idle: Mapping[str, int]) -> Iterator[None]:
        """Watch these processes, pid by name, within the block."""
        before = {name: cpu_seconds(pid) for name, pid in idle.items()}
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        for name, pid in idle.items():
            start, end = before[name], cpu_seconds(pid)
            if start is not None and end is not None:
                self.cpu[name] = self.cpu.get(name, 0.0) + end - start
                self.wall[name] = self.wall.get(name, 0.0) + seconds

    def shares(self) -> dict[str, float]:
        """Share of one core that each process used."""
        return {name: self.cpu[name] / wall for name, wall in self.wall.items() if wall > 0}
