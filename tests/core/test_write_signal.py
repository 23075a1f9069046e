"""Waiting for sessions to write."""

from __future__ import annotations

import threading

import pytest

from suffixsvc.core import WriteSignal


def test_a_write_is_told_once() -> None:
    signal = WriteSignal()
    assert not signal.wait(0.0)
    for _ in range(3):
        signal.notify()
    assert signal.wait(60)
    assert not signal.wait(0.0)
    signal.notify()
    assert signal.wait(60)


def test_a_waiting_thread_is_woken() -> None:
    signal, told = WriteSignal(0.001), []
    thread = threading.Thread(target=lambda: told.append(signal.wait(60)))
    thread.start()
    signal.notify()
    thread.join(60)
    assert told == [True]


def test_a_write_is_told_after_the_delay() -> None:
    signal = WriteSignal(3600)
    signal.notify()
    assert not signal.wait(0.01)
    signal = WriteSignal(0.05)
    signal.notify()
    signal.wait(0.0)  # whether or not it comes too early, what was written until then is seen
    signal.notify()
    assert signal.wait(60)


@pytest.mark.parametrize("seconds", [-1.0, 3601.0, float("nan"), float("inf")])
def test_other_delays_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="delay_seconds must be from 0 to 3600"):
        WriteSignal(seconds)
