"""Threads that callers share by turns."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from suffixsvc_openai.engine.fair_threads import FairThreads
from support.serving import PATIENCE_S


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as found:
        yield found


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_owners_take_turns(executor: ThreadPoolExecutor) -> None:
    done: list[str] = []

    async def main() -> None:
        threads, gate = FairThreads(executor, 1), threading.Event()
        first = asyncio.create_task(threads.run("a", gate.wait))
        await settled()
        names = ("a1", "a2", "a3", "b1", "b2", "c1")
        others = [asyncio.create_task(threads.run(name[0], lambda n=name: done.append(n))) for name in names]  # type: ignore[misc]  # a default binds the loop's variable
        await settled()
        gate.set()
        await asyncio.gather(first, *others)

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert done == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_results_and_errors_reach_their_callers(executor: ThreadPoolExecutor) -> None:
    def fail() -> None:
        raise ValueError("of the function")

    async def main() -> None:
        threads = FairThreads(executor, 1)
        for _ in range(3):
            with pytest.raises(ValueError, match="of the function"):
                await threads.run("a", fail)
            assert await threads.run("b", lambda: 7) == 7

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_caller_that_gives_up_leaves_the_queue_and_its_function(executor: ThreadPoolExecutor) -> None:
    async def main() -> None:
        threads, gate = FairThreads(executor, 1), threading.Event()
        first = asyncio.create_task(threads.run("a", gate.wait))
        await settled()

        def function() -> None:
            pytest.fail("no caller waits for it")

        task, kept = asyncio.create_task(threads.run("b", function)), weakref.ref(function)
        del function
        await settled()
        task.cancel()
        await asyncio.wait([task])
        del task
        gc.collect()
        assert kept() is None
        gate.set()
        await first
        assert await threads.run("b", lambda: 7) == 7

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_the_thread_of_a_caller_that_gave_up_is_in_use_until_its_function_returns(
    executor: ThreadPoolExecutor,
) -> None:
    async def main() -> None:
        threads, gate = FairThreads(executor, 1), threading.Event()
        first = asyncio.create_task(threads.run("a", gate.wait))
        await settled()
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(threads.run("a", lambda: 7))
        await settled()
        assert executor._work_queue.empty()  # nothing waits in the executor
        gate.set()
        assert await second == 7

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.parametrize("pause", [False, True])
def test_a_turn_that_comes_as_its_caller_gives_up_is_passed_on(
    executor: ThreadPoolExecutor, pause: bool
) -> None:
    async def main() -> None:
        threads, gate = FairThreads(executor, 1), threading.Event()
        first = asyncio.create_task(threads.run("a", gate.wait))
        await settled()
        second = asyncio.create_task(threads.run("b", lambda: 0))
        third = asyncio.create_task(threads.run("c", lambda: 7))
        await settled()
        if pause:  # cancelled first, then its turn comes
            second.cancel()
            threads._next()
        else:
            threads._next()
            second.cancel()
        await asyncio.wait([second])
        gate.set()
        await first
        assert await third == 7

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
