"""Long native calls run in threads of lower priority, and otherwise as if they were called directly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from suffixsvc.runtime.low_priority import NICENESS, low_priority

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="priorities of threads are Linux's")


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@linux
def test_only_the_call_has_the_lower_priority() -> None:
    before = niceness()
    assert low_priority(niceness) == min(19, before + NICENESS)
    assert niceness() == before


def test_results_and_exceptions_are_those_of_the_call() -> None:
    assert low_priority(int, "ff", base=16) == 255
    with pytest.raises(ValueError, match="invalid literal"):
        low_priority(int, "x")


@linux
def test_calls_of_several_threads_run_side_by_side() -> None:
    both = threading.Barrier(2)
    threads = [threading.Thread(target=low_priority, args=(both.wait, 60)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not both.broken


def test_a_handler_that_raises_is_called_after_the_call() -> None:
    done: list[int] = []

    def call() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.1)
        done.append(1)

    def raises(_number: int, _frame: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGUSR1, raises)
    try:
        with pytest.raises(InterruptedError):
            low_priority(call)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert done == [1]


CHILDREN = """
import atexit, os
from suffixsvc.runtime.low_priority import low_priority
atexit.register(lambda: print("at the end", low_priority(abs, -2), flush=True))
low_priority(abs, -1)
child = os.fork()
print("child" if child == 0 else "parent", low_priority(abs, -3), flush=True)
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""


def test_forked_children_and_the_end_of_the_interpreter() -> None:
    run = subprocess.run(
        [sys.executable, "-c", CHILDREN], capture_output=True, text=True, timeout=120, check=True
    )
    assert sorted(run.stdout.splitlines()) == ["at the end 2", "child 3", "parent 3"]
