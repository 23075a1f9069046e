"""Parsing of times in logs: ISO 8601, or numbers since the epoch in seconds, ms, us or ns."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any, Final

from suffixsvc.errors import InvalidConfigError

#: Numbers below this are seconds, which reach it in the year 5138; milliseconds pass it since March 1973.
MAX_SECONDS: Final = 1e11
#: numbers below the first limit are seconds, below the next ones ms, us and ns
_UNITS: Final = ((MAX_SECONDS, 1.0), (1e14, 1e3), (1e17, 1e6), (math.inf, 1e9))
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)?")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}


def as_time(value: Any) -> float | None:
    """Convert to seconds since the epoch; None if the value is not a time. Without a zone it is UTC."""
    if isinstance(value, str):
        return _from_text(value)
    if isinstance(value, datetime):
        return _seconds(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _from_number(value)
    return None


def parse_time(value: str | float, name: str) -> float:
    """Parse a setting to seconds since the epoch. InvalidConfigError: it is not a time."""
    time = as_time(value)
    if time is None:
        raise InvalidConfigError(
            f"{name} must be ISO 8601 (2025-06-30, 2025-06-30T12:00:00Z) or seconds since the epoch",
            got=repr(value)[:80],
        )
    return time


def parse_duration(value: str, name: str) -> float:
    """Parse "90", "90s", "30m", "2h" or "1d" to seconds. InvalidConfigError: it is not a duration."""
    match = _DURATION.fullmatch(value.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not 0 < seconds < math.inf:
        raise InvalidConfigError(
            f"{name} must be a number with s, m, h or d, such as 30m", got=repr(value)[:80]
        )
    return seconds


def _from_text(text: str) -> float | None:
    try:
        return _seconds(datetime.fromisoformat(text.strip()))
    except (ValueError, OverflowError):
        pass
    try:
        return _from_number(float(text))
    except ValueError:
        return None


def _from_number(number: float) -> float | None:
    try:
        size = abs(float(number))
    except OverflowError:  # an int beyond the range of floats
        return None
    if not math.isfinite(size):
        return None
    return number / next(unit for limit, unit in _UNITS if size < limit)


def _seconds(moment: datetime) -> float:
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
