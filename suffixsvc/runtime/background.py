"""Periodic background tasks that survive exceptions of their work.

An exception of any class is logged and counted, and the work is run again with exponential backoff.
:meth:`PeriodicTask.stats` reports runs, failures and the time of the last success, so that a task that fails
every time is visible from outside.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import structlog

from suffixsvc.runtime.signal_guard import AtomicCondition

log = structlog.get_logger(__name__)

#: longest pause after consecutive failures, unless the period itself is longer
_LONGEST_PAUSE_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class TaskStats:
    """Counters of a periodic task since it was started."""

    runs: int  #: successful runs
    failures: int  #: runs that raised an exception
    failures_in_a_row: int  #: since the last success; 0 = the last run succeeded
    last_success: float  #: seconds since the epoch; 0 = no run has succeeded
    last_error: str  #: error of the last failed run; empty = none has failed
    alive: bool  #: whether the thread runs


class PeriodicTask:
    """Runs work in a daemon thread, once a period and after :meth:`wake`, until :meth:`stop`.

    Thread-safe. The thread holds this object and the work alive, nothing else.

    Args:
        name: name of the thread, and of the task in log lines.
        work: performs one run. It should return soon after :attr:`stopping` is true.
        period_seconds: time between the end of a run and the start of the next.
        longest_pause_seconds: each further consecutive failure doubles the pause, up to this; None: the
            longer of the period and 300 s.

    Attributes:
        stopping: :meth:`stop` was called.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        *,
        period_seconds: float,
        longest_pause_seconds: float | None = None,
    ) -> None:
        self.name = name
        self._work = work
        self._period = period_seconds
        longest = _LONGEST_PAUSE_SECONDS if longest_pause_seconds is None else longest_pause_seconds
        self._longest_pause = max(period_seconds, longest)
        self._wake = AtomicCondition()
        self._woken = False
        self.stopping = False
        #: replaced by the thread, never changed
        self._stats = TaskStats(0, 0, 0, 0.0, "", alive=False)
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; the first run follows after one period. Call it at most once."""
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def wake(self) -> None:
        """Run the work now rather than at the end of the period."""
        with self._wake:
            self._woken = True
            self._wake.notify()

    def stop(self) -> None:
        """End the thread after the current run, and wait unless called by the work itself. Idempotent."""
        self.stopping = True
        if self._pid != os.getpid():  # a forked child has the object, not the thread
            return
        self.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._work = lambda: None  # breaks the reference cycle with the work's owner

    def stats(self) -> TaskStats:
        """Return the counters."""
        return replace(self._stats, alive=self.alive)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._woken, self.pause_seconds(self._stats.failures_in_a_row))
                self._woken = False
            if self.stopping:
                return
            try:
                self._work()
            except BaseException as error:  # also SystemExit, which ends a thread silently
                self._note_failure(error)
            else:
                before = self._stats
                self._stats = replace(
                    before, runs=before.runs + 1, failures_in_a_row=0, last_success=time.time()
                )

    def pause_seconds(self, failures_in_a_row: int) -> float:
        """Time until the next run, after so many consecutive failures."""
        doublings = min(failures_in_a_row, 32)
        return min(self._period * 2.0 ** max(0, doublings - 1), self._longest_pause)

    def _note_failure(self, error: BaseException) -> None:
        if self.stopping:  # the resources of the work are being closed
            return
        self._stats = after = replace(
            self._stats,
            failures=self._stats.failures + 1,
            failures_in_a_row=self._stats.failures_in_a_row + 1,
            last_error=f"{type(error).__name__}: {error}",
        )
        with contextlib.suppress(Exception):  # a log that cannot be written must not end the thread
            log.error(
                "a background task failed; it is retried",
                task=self.name,
                failures_in_a_row=after.failures_in_a_row,
                seconds=self.pause_seconds(after.failures_in_a_row),
                exc_info=error,
            )
