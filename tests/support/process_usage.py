"""What processes hold over time: memory, descriptors and threads, from Linux's /proc."""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

__all__ = ["Trend", "Usage", "UsageSampler", "trend", "usage_of"]


@dataclass(frozen=True, slots=True)
class Usage:
    """What one process holds at a moment; ``anonymous_bytes`` is the resident memory without mapped files."""

    resident_bytes: int
    anonymous_bytes: int
    descriptors: int
    threads: int


def usage_of(pid: int) -> Usage:
    """Raises FileNotFoundError or ProcessLookupError: the process has ended."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = {name: int(value) for name, value in re.findall(r"^(\w+):\s*(\d+)", status, re.MULTILINE)}
    if "VmRSS" not in found:  # a zombie
        raise ProcessLookupError(pid)
    return Usage(
        1024 * found["VmRSS"],
        1024 * found["RssAnon"],
        len(os.listdir(f"/proc/{pid}/fd")),
        found["Threads"],
    )


class UsageSampler:
    """Samples processes in a thread, for the block.

    Attributes:
        samples: by the name of a process, (seconds since the start, usage).
    """

    def __init__(self, pids: Mapping[str, int], period_seconds: float) -> None:
        self._pids = dict(pids)
        self._period = period_seconds
        self._stop = threading.Event()
        self._began = time.monotonic()
        self.samples: dict[str, list[tuple[float, Usage]]] = {name: [] for name in pids}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            for name, pid in self._pids.items():
                try:
                    self.samples[name].append((time.monotonic() - self._began, usage_of(pid)))
                except (FileNotFoundError, ProcessLookupError):
                    return

    def peak(self, name: str, of: Callable[[Usage], int]) -> int:
        """The largest value of a process; 0 without samples."""
        return max((of(usage) for _, usage in self.samples[name]), default=0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@dataclass(frozen=True, slots=True)
class Trend:
    """A least squares line: change per second, with the half width of its 95 % interval, and the mean."""

    slope: float
    half_width: float
    mean: float

    def growth(self, seconds: float) -> float:
        """Change over a time, as a share of the mean."""
        return self.slope * seconds / self.mean

    def least_growth(self, seconds: float) -> float:
        """The same for the lower end of the interval: what the samples prove."""
        return (self.slope - self.half_width) * seconds / self.mean


def trend(times: npt.ArrayLike, values: npt.ArrayLike) -> Trend:
    """Fit a line. Successive samples are not independent: the interval is that of fewer samples, by the
    autocorrelation of the residuals at lag 1."""
    t, v = np.asarray(times, float), np.asarray(values, float)
    assert len(t) >= 8, "too few samples for a trend"
    t = t - t.mean()
    slope = float((t * v).sum() / (t * t).sum())
    rest = v - v.mean() - slope * t
    spread = float((rest * rest).sum())
    lag = float((rest[1:] * rest[:-1]).sum()) / spread if spread else 0.0
    lag = min(max(lag, 0.0), 0.99)
    independent = max(4.0, len(t) * (1 - lag) / (1 + lag))
    variance = spread / len(t) / float((t * t).mean()) / (independent - 2)
    return Trend(slope, 1.96 * math.sqrt(variance), float(v.mean()))
