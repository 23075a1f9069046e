"""Durations and positions of the log, as the statistics show them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc_cli.base.times import duration, lag, position

UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.000_007, "7 µs"),
        (0.0124, "12 ms"),
        (0.9996, "1.0 s"),
        (3.21, "3.2 s"),
        (42.4, "42 s"),
        (59.99, "1.0 min"),
        (270.0, "4.5 min"),
        (3.6e3, "1.0 h"),
        (30 * 86_400.0, "30 d"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(1e-6, 1e12))
def test_a_duration_is_within_a_rounding_of_its_text(seconds: float) -> None:
    number, unit = duration(seconds).split()
    value = float(number.replace(",", ""))
    step = UNITS[unit] * (0.1 if "." in number else 1.0)
    assert abs(value * UNITS[unit] - seconds) <= step * 0.51 + seconds * 1e-3


@given(st.integers(10**15, 253_402_300_799_999_999))
def test_a_position_is_the_time_of_its_write(lsn: int) -> None:
    date, time, zone = position(lsn).split()
    at = datetime.fromisoformat(f"{date} {time}").replace(tzinfo=UTC)
    assert (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) == lsn
    assert zone == "UTC"


@pytest.mark.parametrize(("lsn", "text"), [(0, "0"), (1234, "1,234"), (2**64 - 1, f"{2**64 - 1:,}")])
def test_a_position_that_is_no_time_is_its_number(lsn: int, text: str) -> None:
    assert position(lsn) == text


def test_lags() -> None:
    assert lag(10**15, 12_000) == "12 ms"
    assert lag(0, 0) == "0 s"
    assert lag(0, 10**15) == "nothing applied"
