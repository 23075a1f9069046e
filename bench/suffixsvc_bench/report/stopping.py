"""Signal handling of long runs: SIGINT, SIGTERM and SIGHUP end them in order."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["stop_on_signals"]


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], None]]:
    """Turn SIGINT, SIGTERM and SIGHUP into a KeyboardInterrupt, so that `with` blocks are closed in order.

    Ignored signals stay ignored (nohup, background jobs of a shell).

    Yields:
        A function to call regularly: it raises if a signal was received. This is needed because an exception
            raised while the interpreter runs a callback of a C library or a finalizer is printed and lost.
    """
    received = False

    def check() -> None:
        if received:
            raise KeyboardInterrupt

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received = True
        check()

    numbers = [
        n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN
    ]
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield check
        check()
    except Exception as error:
        # Children get the signal as well; the exit of one of them can be noticed before the signal.
        if received:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
