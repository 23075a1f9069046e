"""Signal handling of ``suffixsvc generate``: during generation a signal ends the text in order, elsewhere at
once.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupts"]


class Interrupts:
    """Handler of SIGINT, SIGTERM and SIGHUP. Ignored signals stay ignored (nohup).

    Attributes:
        received: a signal was received.
    """

    def __init__(self) -> None:
        self.received = False
        self._writing = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within the block, a signal raises KeyboardInterrupt, so that `with` blocks are closed in order.

        See :meth:`writing` for the exception.
        """
        numbers = [
            number
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) != signal.SIG_IGN
        ]
        before = [signal.signal(number, self._on_signal) for number in numbers]
        try:
            yield
        except Exception as error:
            # a child gets the signal as well; its exit can be noticed before the signal
            if self.received:
                raise KeyboardInterrupt from error
            raise
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Within the block, the first signal only sets :attr:`received`, which is checked after each token.

        A second signal raises KeyboardInterrupt.
        """
        self._writing = True
        try:
            yield
        finally:
            self._writing = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        first, self.received = not self.received, True
        if not (self._writing and first):
            raise KeyboardInterrupt
