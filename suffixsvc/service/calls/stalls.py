"""Deadlines for calls that wait for their client: for its next message, or until it reads a reply.

gRPC for Python waits for either without a limit, in a thread of the server's pool. There are two kinds of
deadline:

- :class:`StalledCalls` registers a call while it waits, and a background task cancels overdue calls. The wait
  ends with grpc.RpcError; the client receives CANCELLED without details.
- :class:`TimedMessages` reads the messages of a call in another thread, so that the call itself can answer
  with an error that says how much was stored.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor, wait
from typing import Any, Final

import grpc
import structlog

from suffixsvc.errors import ServiceTimeoutError
from suffixsvc.service.calls.call_context import of_this_call
from suffixsvc.service.messages.errors import shutting_down_error

log = structlog.get_logger(__name__)

#: period of the background task: a call is cancelled at most this late
CHECK_INTERVAL_SECONDS: Final = 1.0
#: time for a call to send its next message while the server stops; less than STOP_GRACE_SECONDS (server.py),
#: after which gRPC cancels the call and its error, which says how much was stored, is lost
DRAIN_SECONDS: Final = 0.2


class StalledCalls:
    """The calls that are waiting for their client. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: deadline, call, reason, and context of the log line of each wait
        self._waiting: dict[object, tuple[float, grpc.ServicerContext, str, dict[str, Any]]] = {}

    @contextlib.contextmanager
    def deadline(
        self, context: grpc.ServicerContext, seconds: float, method: str, why: str
    ) -> Iterator[None]:
        """Cancel the call if the block takes longer than ``seconds``; ``why`` is logged."""
        key = object()
        with self._lock:
            about = {"method": method, **of_this_call()}
            self._waiting[key] = time.monotonic() + seconds, context, why, about
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(key, None)

    def cancel_overdue(self) -> int:
        """Cancel the calls that are past their deadline; the number of calls."""
        now = time.monotonic()
        with self._lock:
            overdue = [key for key, (deadline, *_) in self._waiting.items() if deadline <= now]
            waits = [self._waiting.pop(key) for key in overdue]
        for _, context, why, about in waits:
            # one by one: an exception must not leave the calls after it without a deadline
            with contextlib.suppress(Exception):
                context.cancel()
            with contextlib.suppress(Exception):
                log.info("a call was cancelled at its deadline", **about, why=why)
        return len(waits)


class TimedMessages:
    """Reads messages of calls with a timeout. Thread-safe.

    Args:
        limit: number of calls that read concurrently.
    """

    def __init__(self, limit: int) -> None:
        self._pool = ThreadPoolExecutor(limit, thread_name_prefix="messages")
        self._draining: Future[Any] = Future()

    def drain(self) -> None:
        """End calls that wait for a message within DRAIN_SECONDS."""
        with contextlib.suppress(InvalidStateError):  # draining already
            self._draining.set_result(None)

    def next(self, messages: Iterator[bytes], seconds: float) -> bytes | None:
        """The next message; None at the end of the call. A read that timed out ends with the call.

        Raises:
            ServiceTimeoutError: no message came within ``seconds``.
            ServiceUnavailableError: the server is stopping.
            grpc.RpcError: the client disconnected.
        """
        pending = self._pool.submit(next, messages, None)
        wait((pending, self._draining), seconds, FIRST_COMPLETED)
        if not pending.done() and self._draining.done():
            wait((pending,), DRAIN_SECONDS)
            if not pending.done():
                raise shutting_down_error("Send the remaining messages when it is back.")
        if not pending.done():
            raise ServiceTimeoutError(
                "the next message of a call must be sent in time",
                expected=f"a message within {seconds:g} s, or the end of the call",
                got="none",
                remedy="Send the remaining messages in another call.",
            )
        return pending.result()
