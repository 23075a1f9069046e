"""Durations and positions of the log in words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

#: LSNs of a service are microseconds since 1970; smaller ones are numbers of outputs (an embedded cache's)
_FIRST_TIME: Final = 10**15
#: seconds from which a unit is used, and its name
_UNITS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))


def duration(seconds: float) -> str:
    """A duration with two or three digits and a unit: "12 ms", "3.2 s", "4.5 min", "30 d"."""
    for least, unit in _UNITS:
        # what would be rounded to the least of a unit has that unit
        if seconds >= least * 0.9995:
            value = seconds / least
            return f"{value:.1f} {unit}" if value < 9.95 and unit != "ms" else f"{value:,.0f} {unit}"
    return f"{seconds * 1e6:,.0f} µs" if seconds > 0 else "0 s"


def position(lsn: int) -> str:
    """A position of the log: its time, or its number where it is none."""
    if lsn < _FIRST_TIME:
        return f"{lsn:,}"
    try:
        at = datetime.fromtimestamp(lsn // 1_000_000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{lsn:,}"
    return f"{at:%Y-%m-%d %H:%M:%S}.{lsn % 1_000_000:06} UTC"


def lag(applied_lsn: int, lag_us: int) -> str:
    """How far a follower is from the end of the log.

    Args:
        applied_lsn: the last LSN that it has applied; 0: none.
        lag_us: microseconds from there to the last LSN of the log.
    """
    return "nothing applied" if lag_us and not applied_lsn else duration(lag_us / 1e6)
