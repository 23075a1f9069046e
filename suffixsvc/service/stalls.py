"""Deadlines of calls that wait for their client: for its next message, or until it reads an answer.

gRPC for Python waits for ever for either, in a thread of the server's pool. Two ways out of a wait:

- A call is registered here while it waits; one background task cancels those whose time has passed: the wait
  ends with grpc.RpcError, and the client learns nothing but CANCELLED.
- A call of many messages reads them in another thread (:class:`TimedMessages`), and can say what became of
  those that came.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor, wait
from typing import Any, Final, NamedTuple

import grpc
import structlog

from suffixsvc.errors import ServiceTimeoutError, ServiceUnavailableError

__all__ = ["LOOK_EVERY_SECONDS", "StalledCalls", "TimedMessages"]

log = structlog.get_logger(__name__)

#: how late a call may be cancelled
LOOK_EVERY_SECONDS: Final = 1.0
#: how long a call may wait for its next message once the server stops
DRAIN_SECONDS: Final = 0.2


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

    @contextlib.contextmanager
    def deadline(
        self, context: grpc.ServicerContext, seconds: float, method: str, why: str
    ) -> Iterator[None]:
        """Cancel the call where the block takes longer than ``seconds``."""
        started = _Wait(time.monotonic() + seconds, context, method, why)
        with self._lock:
            self._number = number = self._number + 1
            self._waiting[number] = started
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def cancel_overdue(self) -> int:
        """Cancel the calls whose time has passed; how many."""
        now = time.monotonic()
        with self._lock:
            overdue = [number for number, each in self._waiting.items() if each.deadline <= now]
            waits = [self._waiting.pop(number) for number in overdue]
        for each in waits:
            # each by itself: those after one that raises wait for ever otherwise
            with contextlib.suppress(Exception):
                each.context.cancel()
            with contextlib.suppress(Exception):
                log.info("a call waited too long for its client: cancelled", method=each.method, why=each.why)
        return len(waits)


class TimedMessages:
    """Reads the messages of calls, each within a time. Thread-safe.

    Args:
        limit: calls that read at a time.
    """

    def __init__(self, limit: int) -> None:
        self._pool = ThreadPoolExecutor(limit, thread_name_prefix="messages")
        self._draining: Future[None] = Future()

    def drain(self) -> None:
        """Calls that wait for a message end soon."""
        with contextlib.suppress(InvalidStateError):  # they are told already
            self._draining.set_result(None)

    def next(self, messages: Iterator[bytes], seconds: float) -> bytes | None:
        """The next message; None at their end. What it does not wait for is read when the call has ended.

        Raises:
            ServiceTimeoutError: it did not come within ``seconds``.
            ServiceUnavailableError: the server stops.
            grpc.RpcError: the client is gone.
        """
        pending = self._pool.submit(next, messages, None)
        ends: tuple[Future[Any], ...] = (pending, self._draining)
        wait(ends, seconds, FIRST_COMPLETED)
        if not pending.done() and self._draining.done():
            wait((pending,), DRAIN_SECONDS)
            if not pending.done():
                raise ServiceUnavailableError(
                    "the service is shutting down", remedy="Send what is left again when it is back."
                )
        if not pending.done():
            raise ServiceTimeoutError(
                "the next message of a call must come in time",
                expected=f"a message within {seconds:g} s, or the end of the call",
                got="none",
                remedy="Send what is left in another call.",
            )
        return pending.result()
