"""Work that an interrupt must not cut in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final, TypeVar

__all__ = ["uninterrupted"]

T = TypeVar("T")

#: what programs turn into exceptions, the first one Python itself
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def uninterrupted(work: Callable[[], T]) -> T:
    """Do all of the work, also where a signal comes; its handler is called afterwards.

    Python runs handlers in the main thread only: other threads are never interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    came: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
    working = True

    def note(number: int, frame: FrameType | None) -> None:
        # One that comes while the handlers are put back may keep those after it from it: they stay reachable.
        if working:
            came.append((number, frame))
        else:
            handlers[number](number, frame)

    try:
        for known in _SIGNALS:
            handler = signal.getsignal(known)
            if callable(handler):
                handlers[known] = handler
                signal.signal(known, note)
        return work()
    finally:
        working = False
        for number, own in handlers.items():
            signal.signal(number, own)
        for number, frame in came:
            handlers[number](number, frame)
