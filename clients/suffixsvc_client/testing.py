"""Fake transports for tests of client code, over a real engine in the same process.

    from suffixsvc import SuffixCache
    from suffixsvc_client import SuffixClient
    from suffixsvc_client.testing import FakeTransport

    with SuffixCache() as cache, SuffixClient(transport=FakeTransport(cache)) as client: ...

Messages are serialised, parsed and answered by the service's handlers; only gRPC is left out. ``fail_with``
and ``delay_s`` simulate failures.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.config import Limits
from suffixsvc.engine import SuffixCache
from suffixsvc.errors import SuffixError
from suffixsvc.service.handlers import Handlers
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client.protocol.effects import Call, Method
from suffixsvc_client.transport.interface import STREAM, timed_out

M = TypeVar("M", bound=Message)


class FakeTransport:
    """A :class:`~suffixsvc_client.Transport` that calls the service's handlers directly.

    Attributes:
        fail_with: creates the error to raise instead of answering, until it is set to None again.
        cache: the engine.
        delay_s: simulated latency of every answer. A step with a shorter timeout is applied and its reply
            dropped, like a late reply of a real service. Nothing waits.
        late_replies: number of replies that were dropped.
        requests: all requests, in order.
    """

    def __init__(self, cache: SuffixCache, limits: Limits | None = None) -> None:
        self.cache = cache
        self._limits = limits or Limits()
        self.fail_with: Callable[[], SuffixError] | None = None
        self.delay_s = 0.0
        self.late_replies = 0
        self.requests: list[Message] = []
        self.handlers = self._new_handlers()

    def restart(self) -> None:
        """Lose all sessions and their output, like a service that crashed and was restarted."""
        for entry in self.handlers.sessions.table.entries():
            self.handlers.close_session(
                pb.CloseSessionRequest(session_id=entry.name.id, discard=True), OPERATOR_CALLER
            )
        self.handlers = self._new_handlers()

    def _new_handlers(self) -> Handlers:
        return Handlers(self.cache, self._limits, durable=False)

    def call(self, call: Call) -> Any:
        """Call the handler of a method; its reply, or every reply of a stream to ``call.take``."""
        method, request = call.method, call.request

        def serve(received: Any) -> Any:
            if not isinstance(request, Message):
                received = (_copy(method.request, each) for each in request)
            answer: Any = self.handlers.of(method.name)(received, OPERATOR_CALLER)
            if call.take is None:
                return answer
            last = method.reply()
            for last in answer:
                call.take(_copy(method.reply, last))
            return last

        first = request if isinstance(request, Message) else request[0]
        return self._answer(serve, method, first, call.timeout_s)

    def exchange(self, requests: Sequence[pb.StreamRequest], timeout_s: float) -> list[pb.StreamReply]:
        """Answer stream messages."""
        answer = functools.partial(self.handlers.message, caller=OPERATOR_CALLER)
        return [self._answer(answer, STREAM, request, timeout_s) for request in requests]

    def post(self, requests: Sequence[pb.StreamRequest]) -> None:
        """Answer stream messages and drop the replies."""
        self.exchange(requests, float("inf"))

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _answer(
        self, serve: Callable[[Any], Message], method: Method, request: Message, timeout_s: float
    ) -> Any:
        self.requests.append(_copy(type(request), request))
        if self.fail_with is not None:
            raise self.fail_with()
        reply = serve(_copy(method.request, request))
        if self.delay_s > timeout_s:
            self.late_replies += 1
            raise timed_out(timeout_s)
        return _copy(method.reply, reply)


class AsyncFakeTransport:
    """An :class:`~suffixsvc_client.AsyncTransport` around a :class:`FakeTransport`."""

    def __init__(self, fake: FakeTransport) -> None:
        self.fake = fake

    @property
    def late_replies(self) -> int:
        """Number of replies that were dropped."""
        return self.fake.late_replies

    async def call(self, call: Call) -> Any:
        """Call the handler of a method; its reply, or every reply of a stream to ``call.take``."""
        await asyncio.sleep(0)
        return self.fake.call(call)

    async def exchange(self, requests: Sequence[pb.StreamRequest], timeout_s: float) -> list[pb.StreamReply]:
        """Answer stream messages."""
        await asyncio.sleep(0)
        return self.fake.exchange(requests, timeout_s)

    async def post(self, requests: Sequence[pb.StreamRequest]) -> None:
        """Answer stream messages and drop the replies."""
        self.fake.post(requests)

    async def close(self) -> None:
        """Do nothing: there is no connection."""


def _copy(kind: type[M], message: Message) -> M:
    """Serialise and parse, as the wire does."""
    return kind.FromString(message.SerializeToString())
