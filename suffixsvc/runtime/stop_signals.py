"""Signal handling of long runs: SIGINT, SIGTERM and SIGHUP end them in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopSignals:
    """Signals received within :func:`stop_on_signals`.

    Attributes:
        received: a signal was received.
    """

    def __init__(self) -> None:
        self.received = False
        self._deferring = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal was received.

        To be called regularly, because an exception raised while the interpreter runs a callback of a C
        library or a finalizer is printed and lost.
        """
        if self.received:
            raise KeyboardInterrupt

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Within the block, the first signal only sets :attr:`received`; a second one raises."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        first, self.received = not self.received, True
        if not (self._deferring and first):
            raise KeyboardInterrupt


@contextmanager
def stop_on_signals() -> Iterator[StopSignals]:
    """Turn SIGINT, SIGTERM and SIGHUP into a KeyboardInterrupt, so that `with` blocks are closed in order.

    Ignored signals stay ignored (nohup, background jobs of a shell).
    """
    signals = StopSignals()
    numbers = [
        n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN
    ]
    before = [signal.signal(number, signals._on_signal) for number in numbers]
    try:
        yield signals
        signals.check()
    except Exception as error:
        # Children get the signal as well; the exit of one of them can be noticed before the signal.
        if signals.received:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
