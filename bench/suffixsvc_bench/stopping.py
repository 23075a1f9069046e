"""Signals that end a run in order."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["stop_on_signals"]


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], None]]:
    """SIGINT, SIGTERM and SIGHUP end the block by a KeyboardInterrupt, so that its `with` blocks are left in
    order. What is ignored stays so: nohup and shells that start a job in the background mean it.

    Yields:
        A function to call now and then: it raises if a signal came. An exception that is raised while the
        interpreter runs a callback of a C library or a finalizer is printed and lost.
    """
    came = False

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        check()

    numbers = [
        n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN
    ]
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield check
        check()
    except Exception as error:
        # Children hear the signal as well: that one of them is gone may be known before the signal is.
        if came:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
