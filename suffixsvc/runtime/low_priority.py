"""Long native calls in threads of a lower priority, so that they do not delay decode steps.

A step passes through several threads of a service, and each waits for Python's lock (the GIL). Native code
that has released it still competes for the cores: with more such threads than cores, the system stops a
thread that holds the lock for several milliseconds, and everything waits. Here such code runs at a niceness
of :data:`NICENESS` more than the process, while threads that run Python code keep their priority.

    low_priority(call, *arguments)    the result, or the exception, of the call
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from suffixsvc.runtime.signal_guard import uninterrupted

__all__ = ["NICENESS", "low_priority"]

P = ParamSpec("P")
T = TypeVar("T")

#: added to the niceness of the process. With 10 the steps are as fast as with 19, and the work still gets a
#: tenth of a core that other processes keep busy
NICENESS: Final = 10
#: calls at a time: as many as there are cores, and long ones, as of segments that are built
_THREADS: Final = (os.cpu_count() or 1) + 4


def low_priority(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``call(*args, **kwargs)`` in a thread of lower priority, and wait for it.

    The call should release Python's lock for most of its time, and must not call this function. It ends
    before this function does, also if a signal handler raises; the handler is called afterwards.

    Raises:
        What ``call`` raises.
    """
    if not sys.platform.startswith("linux"):  # elsewhere threads have no priority of their own
        return call(*args, **kwargs)

    def waited() -> T:
        try:
            pending: Future[T] = _threads(os.getpid()).submit(call, *args, **kwargs)
        except RuntimeError:  # the interpreter is ending: caches may be closed after the pool
            return call(*args, **kwargs)
        return pending.result()

    return uninterrupted(waited)


@functools.cache
def _threads(_process: int) -> ThreadPoolExecutor:
    """The pool of a process, created at its first call; a forked child has none of its parent's threads."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="low-priority", initializer=_lower)


def _lower() -> None:
    """Give the calling thread its niceness."""
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)
