"""Periodic tasks: the thread survives every exception of its work, and reports it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from suffixsvc.errors import StoreFullError
from suffixsvc.runtime import background
from suffixsvc.runtime.background import PeriodicTask

PERIOD = 0.002
LONG = 30.0


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.001)


@pytest.mark.parametrize(
    "error",
    [
        StoreFullError("no room"),
        OSError(24, "Too many open files"),
        MemoryError(),
        SystemExit(1),
        RuntimeError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_exception_ends_the_thread(error: BaseException) -> None:
    """Regression: the expiry thread caught only the project's errors, so an OSError (no descriptors left)
    ended it silently. Every exception must be logged and counted, and the work retried."""
    results = [error, error, None, error, None]
    done = threading.Event()

    def work() -> None:
        if not results:
            done.set()
            return
        result = results.pop(0)
        if result is not None:
            raise result

    before = time.time()
    task = PeriodicTask("test-task", work, period_seconds=PERIOD)
    task.start()
    assert done.wait(LONG)
    wait_for(lambda: task.stats().runs >= 3)
    stats = task.stats()
    assert stats.alive
    assert stats.failures == 3
    assert stats.failures_in_a_row == 0
    assert before <= stats.last_success <= time.time()
    assert stats.last_error.startswith(type(error).__name__)
    task.stop()
    assert not task.stats().alive


def test_a_log_that_cannot_be_written_ends_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    class BrokenLog:
        def error(self, *_args: object, **_values: object) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(background, "log", BrokenLog())
    task = PeriodicTask("test-task", lambda: 1 / 0, period_seconds=PERIOD)
    task.start()
    wait_for(lambda: task.stats().failures >= 3)
    assert task.stats().alive
    task.stop()


def test_consecutive_failures_increase_the_delay() -> None:
    task = PeriodicTask("test-task", lambda: None, period_seconds=2.0, longest_pause_seconds=10.0)
    pauses = [task.pause_seconds(failures) for failures in (0, 1, 2, 3, 4, 1000)]
    assert pauses == [2.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert PeriodicTask("rare", lambda: None, period_seconds=600.0).pause_seconds(1000) == 600.0


def test_wake_runs_it_at_once_and_stop_waits_for_the_run() -> None:
    began, go_on, ended = threading.Event(), threading.Event(), []

    def work() -> None:
        began.set()
        assert go_on.wait(LONG)
        ended.append(task.stopping)

    task = PeriodicTask("test-task", work, period_seconds=3600.0)
    task.start()
    assert not began.is_set()
    task.wake()
    assert began.wait(LONG)
    stopper = threading.Thread(target=task.stop)
    stopper.start()
    wait_for(lambda: task.stopping)
    go_on.set()
    stopper.join(LONG)
    assert ended == [True]
    assert not task.alive
    task.stop()


def test_stop_from_the_work_itself_does_not_wait_for_itself() -> None:
    task = PeriodicTask("test-task", lambda: task.stop(), period_seconds=PERIOD)
    task.start()
    wait_for(lambda: not task.alive)


def test_never_started_it_has_nothing_to_stop() -> None:
    task = PeriodicTask("test-task", lambda: None, period_seconds=PERIOD)
    task.stop()
    assert task.stats() == background.TaskStats(0, 0, 0, 0.0, "", alive=False)


def test_a_forked_child_has_no_thread_to_stop() -> None:
    task = PeriodicTask("test-task", lambda: None, period_seconds=PERIOD)
    task.start()
    child = os.fork()
    if child == 0:  # threads are not forked
        task.stop()
        os._exit(7 if task.alive else 0)
    assert os.waitpid(child, 0)[1] == 0
    assert task.alive
    task.stop()
