"""Store time: a clock based on elapsed time, which steps of the wall clock do not affect.

    first open          store time = wall clock
    while open          store time = store time at the open + elapsed time
    later opens         store time = last stored reading + movement of the wall clock since (the gap)

Outputs are stamped with store time, and their time to live is measured in it. It is close to the wall clock
unless that was set while the store was open.

The gap at an open is downtime if the wall clock is right, and no other source can confirm that. It therefore
counts, but outputs that are due *only because of it* are retained for a grace period: a clock that is wrong
at boot deletes nothing before it can be corrected. At the end of the period the wall clock is read again. If
it was set back meanwhile, the gap is reduced by that amount. Outputs written since the open do not depend on
the gap, and expire on time throughout.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

_MICROSECONDS: Final = 1_000_000
#: smaller differences are the kernel's gradual corrections, larger ones a clock that was set
_TOLERANCE_US: Final = _MICROSECONDS


class SystemTime:
    """The clocks of this machine, in seconds."""

    def wall(self) -> float:
        """Return the time since the epoch. May be set to any value at any moment."""
        return time.time()

    def elapsed(self) -> float:
        """Return the time since some fixed moment, including suspension where the system provides it."""
        return time.clock_gettime(_ELAPSED) if _ELAPSED is not None else time.monotonic()


_ELAPSED: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """State of a clock that is stored across restarts, in microseconds.

    Attributes:
        time_us: store time.
        wall_us: wall clock at the same moment.
    """

    time_us: int
    wall_us: int


@dataclass(frozen=True, slots=True)
class ExpiryCutoff:
    """Store time up to which outputs have expired, in microseconds.

    Attributes:
        now_us: for outputs written since the store was opened.
        earlier_us: for outputs written before; less than ``now_us`` only during the grace period.
        opened_us: store time at the open; outputs written since have no earlier stamp.
    """

    now_us: int
    earlier_us: int
    opened_us: int

    @classmethod
    def at(cls, now_us: int) -> ExpiryCutoff:
        """Return the cutoff of a given store time, without grace period."""
        return cls(now_us, now_us, now_us)


class StoreClock:
    """The clock of one open store. Thread-safe.

    Args:
        last_reading: the reading stored last; None for a new store.
        grace_seconds: how long outputs are retained that are due only because of the gap; at most the gap.
        source: the machine's clocks.
    """

    def __init__(
        self,
        last_reading: ClockReading | None = None,
        *,
        grace_seconds: float,
        source: SystemTime | None = None,
    ) -> None:
        self._source = SystemTime() if source is None else source
        self._lock = threading.Lock()
        self._started = self._source.elapsed()
        wall_us = _microseconds(self._source.wall())
        self._last = ClockReading(wall_us, wall_us) if last_reading is None else last_reading
        #: negative: the wall clock was set back
        self._moved_us = wall_us - self._last.wall_us
        self._gap_us = max(0, self._moved_us)
        self._grace_us = min(self._gap_us, _microseconds(grace_seconds))
        self._opened_us = self._last.time_us + self._gap_us
        self._correction_us: int | None = None if self._grace_us else 0

    @property
    def moved_seconds(self) -> float:
        """Movement of the wall clock while the store was closed; a negative one counts as no gap."""
        return self._moved_us / _MICROSECONDS

    def now_us(self) -> int:
        """Return store time in microseconds."""
        with self._lock:
            elapsed_us = self._elapsed_us()
            return self._opened_us + elapsed_us - self._update_correction(elapsed_us)

    def now(self) -> float:
        """Return store time in seconds."""
        return self.now_us() / _MICROSECONDS

    def expiry_cutoff(self) -> ExpiryCutoff:
        """Return the current cutoff of expiry."""
        with self._lock:
            elapsed_us = self._elapsed_us()
            now_us = self._opened_us + elapsed_us - self._update_correction(elapsed_us)
            earlier_us = now_us - self._gap_us if self._correction_us is None else now_us
            return ExpiryCutoff(now_us, earlier_us, self._opened_us)

    @property
    def grace_seconds(self) -> float:
        """Remaining seconds of the grace period; 0 after it, or if there was no gap."""
        with self._lock:
            left_us = self._grace_us - self._elapsed_us()
            return max(0, left_us) / _MICROSECONDS if self._correction_us is None else 0.0

    def reading(self) -> ClockReading:
        """Return the reading to be stored.

        During the grace period it is the reading before the gap, advanced by elapsed time, so that the gap is
        evaluated again after a restart.
        """
        with self._lock:
            elapsed_us = self._elapsed_us()
            correction_us = self._update_correction(elapsed_us)
            if self._correction_us is None:
                return ClockReading(self._last.time_us + elapsed_us, self._last.wall_us + elapsed_us)
            now_us = self._opened_us + elapsed_us - correction_us
            return ClockReading(now_us, _microseconds(self._source.wall()))

    def _elapsed_us(self) -> int:
        return _microseconds(self._source.elapsed() - self._started)

    def _update_correction(self, elapsed_us: int) -> int:
        """Return the correction of the gap; it is computed once, at the end of the grace period."""
        if self._correction_us is None and elapsed_us >= self._grace_us:
            wall_us = _microseconds(self._source.wall()) - elapsed_us
            confirmed_us = min(self._gap_us, max(0, wall_us - self._last.wall_us))
            excess_us = self._gap_us - confirmed_us
            self._correction_us = excess_us if excess_us > _TOLERANCE_US else 0
        return self._correction_us or 0


def _microseconds(seconds: float) -> int:
    return max(0, min(round(seconds * _MICROSECONDS), 2**62))
