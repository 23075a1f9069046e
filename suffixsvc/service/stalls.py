"""Deadlines of calls that wait for their client: for its next message, or until it reads an answer.

gRPC for Python waits for ever for either, in a thread of the server's pool. A call is registered here while
it waits; one background task cancels those whose time has passed: the wait ends with grpc.RpcError.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import grpc
import structlog

__all__ = ["LOOK_EVERY_SECONDS", "StalledCalls"]

log = structlog.get_logger(__name__)

#: how late a call may be cancelled
LOOK_EVERY_SECONDS: Final = 1.0


class _Wait(NamedTuple):
    deadline: float
    context: grpc.ServicerContext
    method: str
    why: str


class StalledCalls:
    """The calls that wait for a client at this moment. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, _Wait] = {}
        self._number = 0
        #: calls cancelled since the start
        self.cancelled = 0

    @contextlib.contextmanager
    def deadline(
        self, context: grpc.ServicerContext, seconds: float, method: str, why: str
    ) -> Iterator[None]:
        """The call is cancelled where the block takes longer than ``seconds``."""
        wait = _Wait(time.monotonic() + seconds, context, method, why)
        with self._lock:
            self._number = number = self._number + 1
            self._waiting[number] = wait
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def cancel_overdue(self) -> int:
        """Cancel the calls whose time has passed; how many."""
        now = time.monotonic()
        with self._lock:
            overdue = [number for number, wait in self._waiting.items() if wait.deadline <= now]
            waits = [self._waiting.pop(number) for number in overdue]
            self.cancelled += len(waits)
        for wait in waits:
            log.info("a call waited too long for its client: cancelled", method=wait.method, why=wait.why)
            wait.context.cancel()
        return len(waits)
