"""Work that an interrupt must not cut in two: what becomes of the signals' handlers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from suffixsvc.interrupts import uninterrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def came() -> Iterator[list[int]]:
    """The signals that reached the program's own handlers, of which SIGINT's raises."""
    seen: list[int] = []

    def own(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, own) for number in SIGNALS}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_signals_reach_their_handlers_after_the_work(came: list[int]) -> None:
    def work() -> str:
        signal.raise_signal(signal.SIGTERM)
        assert came == []
        return "done"

    assert uninterrupted(work) == "done"
    assert came == [signal.SIGTERM]


def test_an_interrupt_while_the_handlers_are_put_back_leaves_every_signal_its_handler(
    came: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second Ctrl-C came when only SIGINT had its handler again: SIGTERM and SIGHUP were noted by a call
    that was over, and the process could no longer be ended by them."""
    install = signal.signal

    def put_back(number: int, handler: object) -> object:
        before = install(number, handler)  # type: ignore[arg-type]  # what signal.signal itself takes
        if number == signal.SIGINT and ready:
            signal.raise_signal(signal.SIGINT)
        return before

    ready: list[bool] = []
    monkeypatch.setattr(signal, "signal", put_back)
    with pytest.raises(KeyboardInterrupt):
        uninterrupted(lambda: ready.append(True))
    monkeypatch.undo()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.raise_signal(number)
    assert came == [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
