"""Signals of ``suffixsvc generate``: while text is written they end it in order, elsewhere at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupts"]


class Interrupts:
    """SIGINT, SIGTERM and SIGHUP. What is ignored stays so: nohup means it.

    Attributes:
        came: whether one came.
    """

    def __init__(self) -> None:
        self.came = False
        self._writing = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While the block runs, a signal raises KeyboardInterrupt, so that `with` blocks are left in order;
        but see :meth:`writing`."""
        numbers = [
            number
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) != signal.SIG_IGN
        ]
        before = [signal.signal(number, self._on_signal) for number in numbers]
        try:
            yield
        except Exception as error:
            # a child hears the signal as well: that it is gone may be known before the signal is
            if self.came:
                raise KeyboardInterrupt from error
            raise
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """While the block runs, the first signal is only noted: whoever writes looks at :attr:`came` after
        each token. A second one raises."""
        self._writing = True
        try:
            yield
        finally:
            self._writing = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        first, self.came = not self.came, True
        if not (self._writing and first):
            raise KeyboardInterrupt
