"""Time as a store counts it: elapsed time, which a step of the wall clock does not move.

    opened (1st time)   store time = wall clock
    running             store time = store time at opening + elapsed time, whatever the wall clock does
    opened again        store time = the last one kept + what the wall clock moved since (the gap)

Outputs are stamped with store time, and their time to live is counted in it. It is close to the wall clock
unless that was set in between, and it never runs backward between two openings of a folder that the wall
clock agrees with.

The gap at an opening is downtime if the wall clock is right, and nothing else can tell. So it is believed,
but for a grace period outputs that are due *only because of it* stay: a clock that is wrong at boot deletes
nothing before it can be set right. At the end of the period the wall clock is asked again; where it was set
back meanwhile, that part of the gap was none. Outputs written since the opening owe nothing to the gap: they
expire on time throughout.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final, Protocol

__all__ = ["ClockReading", "Due", "StoreClock", "SystemTime", "TimeSource"]

_MICROSECONDS: Final = 1_000_000
#: what the kernel corrects step by step all the time; a clock that was set differs by more
_TOLERANCE_US: Final = _MICROSECONDS


class TimeSource(Protocol):
    """What a machine knows of time, in seconds."""

    def wall(self) -> float:
        """Since the epoch. May be set to anything at any moment."""

    def elapsed(self) -> float:
        """Since some moment in the past. Only ever rises, at the pace of time."""


class SystemTime:
    """The clocks of this machine."""

    def wall(self) -> float:
        return time.time()

    def elapsed(self) -> float:
        """Time in which the machine was suspended counts, where the system can tell."""
        return time.clock_gettime(_ELAPSED) if _ELAPSED is not None else time.monotonic()


_ELAPSED: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """What is kept of a clock across a restart, in microseconds.

    Attributes:
        time_us: store time.
        wall_us: the wall clock of the same moment.
    """

    time_us: int
    wall_us: int


@dataclass(frozen=True, slots=True)
class Due:
    """Up to which store time outputs have expired, in microseconds.

    Attributes:
        now_us: for those written since the store was opened.
        earlier_us: for those written before; less than ``now_us`` during the grace period only.
        opened_us: store time at the opening: no output written since has an earlier stamp.
    """

    now_us: int
    earlier_us: int
    opened_us: int

    @classmethod
    def at(cls, now_us: int) -> Due:
        """Everything whose time has come by then."""
        return cls(now_us, now_us, now_us)


class StoreClock:
    """The clock of one open store. Thread-safe.

    Args:
        seen: what was kept of it last; None: the store is new.
        grace_seconds: how long outputs stay that are due only because of the gap; never longer than that gap.
        source: the machine's clocks.
    """

    def __init__(
        self,
        seen: ClockReading | None = None,
        *,
        grace_seconds: float,
        source: TimeSource | None = None,
    ) -> None:
        self._source = SystemTime() if source is None else source
        self._lock = threading.Lock()
        self._begun = self._source.elapsed()
        wall_us = _microseconds(self._source.wall())
        self._seen = ClockReading(wall_us, wall_us) if seen is None else seen
        #: negative: the wall clock is behind what was seen
        self._moved_us = wall_us - self._seen.wall_us
        self._gap_us = max(0, self._moved_us)
        self._grace_us = min(self._gap_us, _microseconds(grace_seconds))
        self._opened_us = self._seen.time_us + self._gap_us
        self._correction_us: int | None = None if self._grace_us else 0

    @property
    def moved_seconds(self) -> float:
        """How far the wall clock moved while the store was closed; negative: back, which counts as 0."""
        return self._moved_us / _MICROSECONDS

    def now_us(self) -> int:
        """Store time in microseconds."""
        with self._lock:
            elapsed_us = self._elapsed_us()
            return self._opened_us + elapsed_us - self._settled_us(elapsed_us)

    def now(self) -> float:
        """Store time in seconds."""
        return self.now_us() / _MICROSECONDS

    def due(self) -> Due:
        """What has expired at this moment."""
        with self._lock:
            elapsed_us = self._elapsed_us()
            now_us = self._opened_us + elapsed_us - self._settled_us(elapsed_us)
            earlier_us = now_us - self._gap_us if self._correction_us is None else now_us
            return Due(now_us, earlier_us, self._opened_us)

    @property
    def grace_seconds(self) -> float:
        """What is left of the grace period; 0 once it is over, or where there was no gap."""
        with self._lock:
            left_us = self._grace_us - self._elapsed_us()
            return max(0, left_us) / _MICROSECONDS if self._correction_us is None else 0.0

    @property
    def correction_seconds(self) -> float:
        """The part of the gap that turned out to be none at the end of the grace period."""
        with self._lock:
            return (self._correction_us or 0) / _MICROSECONDS

    def reading(self) -> ClockReading:
        """What to keep of it. During the grace period that is the state before the gap, so that a process
        that ends meanwhile leaves the question as open as it was."""
        with self._lock:
            elapsed_us = self._elapsed_us()
            correction_us = self._settled_us(elapsed_us)
            if self._correction_us is None:
                return ClockReading(self._seen.time_us + elapsed_us, self._seen.wall_us + elapsed_us)
            now_us = self._opened_us + elapsed_us - correction_us
            return ClockReading(now_us, _microseconds(self._source.wall()))

    def _elapsed_us(self) -> int:
        return _microseconds(self._source.elapsed() - self._begun)

    def _settled_us(self, elapsed_us: int) -> int:
        """The correction, decided once: at the end of the grace period."""
        if self._correction_us is None and elapsed_us >= self._grace_us:
            wall_us = _microseconds(self._source.wall()) - elapsed_us
            believed_us = min(self._gap_us, max(0, wall_us - self._seen.wall_us))
            wrong_us = self._gap_us - believed_us
            self._correction_us = wrong_us if wrong_us > _TOLERANCE_US else 0
        return self._correction_us or 0


def _microseconds(seconds: float) -> int:
    return max(0, min(round(seconds * _MICROSECONDS), 2**62))
