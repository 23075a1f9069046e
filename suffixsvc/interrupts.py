"""Work that an interrupt must not cut in two, and locks that one must not leave held.

Handlers of signals run in the main thread between two instructions of Python, and may raise there.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType
from typing import Any, Final, TypeVar

__all__ = ["AtomicCondition", "new_future", "uninterrupted"]

T = TypeVar("T")

#: what programs turn into exceptions, the first one Python itself, and what of them the system has
_SIGNALS: Final = tuple(
    getattr(signal, name)
    for name in (
        "SIGINT",
        "SIGTERM",
        "SIGHUP",
        "SIGQUIT",
        "SIGALRM",
        "SIGVTALRM",
        "SIGPROF",
        "SIGUSR1",
        "SIGUSR2",
    )
    if hasattr(signal, name)
)


class AtomicCondition(threading.Condition):
    """A condition that an interrupt cannot leave held.

    ``Condition.__enter__`` is a function of Python: an exception raised in it after its acquire, before the
    block begins, would leave the lock held for ever. ``with`` looks both methods up before it calls the
    first, so here it calls those of the lock itself, which no handler interrupts.
    """

    __enter__ = property(lambda self: self._lock.__enter__)
    __exit__ = property(lambda self: self._lock.__exit__)


def new_future() -> Future[Any]:
    """A future whose result may be waited for where interrupts come."""
    future: Future[Any] = Future()
    future._condition = AtomicCondition()
    return future


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
