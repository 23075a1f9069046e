"""Protection from signal handlers that raise: uninterrupted work, and locks that are always released.

Python runs signal handlers in the main thread between two instructions, and they may raise there.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any, Final, TypeVar

T = TypeVar("T")

#: signals that programs, and Python for SIGINT, turn into exceptions; those that the system has
_NAMES: Final = "SIGINT SIGTERM SIGHUP SIGQUIT SIGALRM SIGVTALRM SIGPROF SIGUSR1 SIGUSR2"
_SIGNALS: Final = tuple(getattr(signal, name) for name in _NAMES.split() if hasattr(signal, name))


class AtomicCondition(threading.Condition):
    """A condition whose lock is released even if a signal handler raises while it is entered.

    ``Condition.__enter__`` is Python code: an exception raised in it after it acquired the lock and before
    the block begins would leave the lock held. These properties make ``with`` call the methods of the lock
    itself, which are not interrupted.
    """

    __enter__ = property(lambda self: self._lock.__enter__)
    __exit__ = property(lambda self: self._lock.__exit__)


def new_future() -> Future[Any]:
    """Return a future whose waiters may be interrupted by signal handlers that raise."""
    future: Future[Any] = Future()
    future._condition = AtomicCondition()
    return future


def uninterrupted(work: Callable[[], T]) -> T:
    """Run ``work`` with signals deferred: their handlers are called afterwards.

    Python runs handlers in the main thread only, so that other threads call ``work`` directly.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    deferred: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
    working = True

    def note(number: int, frame: FrameType | None) -> None:
        # A handler that raises while the handlers are restored leaves this one installed for later signals.
        if working:
            deferred.append((number, frame))
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
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in deferred:
            handlers[number](number, frame)


class JoinedThreads(ThreadPoolExecutor):
    """A thread pool whose ``with`` block ends after its threads, however often it is interrupted.

    ``Thread.join`` of Python 3.11 takes a thread for ended if it is interrupted (its mend of bpo-45274), and
    native code that runs in a thread while the interpreter ends aborts the process.
    """

    def __exit__(self, *error: object) -> None:
        uninterrupted(self.shutdown)
