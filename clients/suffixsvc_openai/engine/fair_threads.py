"""Threads for which callers wait in their event loop, by turns.

A caller that gives up leaves the queue at once, with all that its function refers to; in the queue of an
executor both would stay until a thread is free.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class FairThreads:
    """Runs functions in the threads of an executor. Used in one event loop.

    Args:
        executor: has the threads.
        threads: number of functions that run at the same time.

    Attributes:
        waiting: those that wait, by owner, whose turn is next first.
    """

    def __init__(self, executor: Executor, threads: int) -> None:
        self._executor, self._free = executor, threads
        self.waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def run(self, owner: str, function: Callable[[], T]) -> T:
        """Return what ``function`` returns, in a thread.

        A function that runs is not ended if its caller is cancelled; its thread is in use until it returns.

        Args:
            owner: those that wait take turns by owner.
            function: the function.
        """
        await self._turn(owner)
        loop = asyncio.get_running_loop()
        try:
            future = self._executor.submit(function)
        except BaseException:
            self._next()
            raise

        def ended(_future: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: no caller waits
                loop.call_soon_threadsafe(self._next)

        future.add_done_callback(ended)
        return await asyncio.shield(asyncio.wrap_future(future))

    async def _turn(self, owner: str) -> None:
        """Wait for a thread; the caller gives it back."""
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(owner, turn)
            else:
                self._next()  # the turn came at the same moment
            raise

    def _leave(self, owner: str, turn: asyncio.Future[None]) -> None:
        turns = self.waiting.get(owner, deque())
        if turn in turns:  # or its turn has come and was passed on
            turns.remove(turn)
            if not turns:
                del self.waiting[owner]

    def _next(self) -> None:
        """Give a thread to the next owner that waits."""
        while self.waiting:
            owner = next(iter(self.waiting))
            turns = self.waiting.pop(owner)
            turn = turns.popleft()
            if turns:
                self.waiting[owner] = turns  # behind the others
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
