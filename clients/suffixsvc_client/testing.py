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
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from suffixsvc.config import Limits
from suffixsvc.engine import SuffixCache
from suffixsvc.errors import ServiceTimeoutError, SuffixError
from suffixsvc.service.handlers import Handlers
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client.protocol.effects import Method
from suffixsvc_client.transport.interface import STREAM

__all__ = ["AsyncFakeTransport", "FakeTransport"]

M = TypeVar("M", bound=Message)


class FakeTransport:
    """A :class:`~suffixsvc_client.Transport` that calls the service's handlers directly.

    Attributes:
        fail_with: creates the error to raise instead of answering, until it is set to None again.
        delay_s: simulated latency of every answer. A step with a shorter timeout is applied and its reply
            dropped, like a late reply of a real service. Nothing waits.
        late_replies: number of replies that were dropped.
        requests: all requests, in order.
    """

    def __init__(self, cache: SuffixCache, limits: Limits | None = None) -> None:
        self._cache = cache
        self._limits = limits or Limits()
        self.fail_with: Callable[[], SuffixError] | None = None
        self.delay_s = 0.0
        self.late_replies = 0
        self.requests: list[Message] = []
        self.handlers = self._new_handlers()

    def restart(self) -> None:
        """Lose all sessions and their output, like a service that crashed and was restarted."""
        for session_id in self.handlers.sessions.ids():
            self.handlers.close_session(pb.CloseSessionRequest(session_id=session_id, discard=True))
        self.handlers = self._new_handlers()

    def _new_handlers(self) -> Handlers:
        return Handlers(self._cache, self._limits, durable=False, version="fake")

    def unary(self, method: Method[Any, Any], request: Message, timeout_s: float) -> Any:
        """Call the handler of a unary method; its reply."""
        return self._answer(_handler(self.handlers, method), method, request, timeout_s)

    def upload(self, method: Method[Any, Any], requests: Sequence[Message], timeout_s: float) -> Any:
        """Call the handler of a client-streaming method; its reply."""

        def serve(_first: Message) -> Message:
            copies: Iterator[Any] = (_copy(method.request, request) for request in requests)
            reply: Message = _handler(self.handlers, method)(copies)
            return reply

        return self._answer(serve, method, requests[0], timeout_s)

    def download(
        self, method: Method[Any, Any], request: Message, take: Callable[[Any], None], timeout_s: float
    ) -> None:
        """Call the handler of a server-streaming method; every reply is passed to ``take``."""

        def serve(received: Message) -> Message:
            last: Message = method.reply()
            for last in _handler(self.handlers, method)(received):
                take(_copy(method.reply, last))
            return last

        self._answer(serve, method, request, timeout_s)

    def exchange(self, requests: Sequence[pb.StreamRequest], timeout_s: float) -> list[pb.StreamReply]:
        """Answer stream messages."""
        return [self._answer(self.handlers.message, STREAM, request, timeout_s) for request in requests]

    def post(self, requests: Sequence[pb.StreamRequest]) -> None:
        """Answer stream messages and drop the replies."""
        for request in requests:
            self._answer(self.handlers.message, STREAM, request, float("inf"))

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _answer(
        self, serve: Callable[[Any], Message], method: Method[Any, Any], request: Message, timeout_s: float
    ) -> Any:
        self.requests.append(_copy(type(request), request))
        if self.fail_with is not None:
            raise self.fail_with()
        reply = serve(_copy(method.request, request))
        if self.delay_s > timeout_s:
            self.late_replies += 1
            raise ServiceTimeoutError("the service did not answer in time", expected=f"within {timeout_s} s")
        return _copy(method.reply, reply)


class AsyncFakeTransport:
    """An :class:`~suffixsvc_client.AsyncTransport` around a :class:`FakeTransport`."""

    def __init__(self, fake: FakeTransport) -> None:
        self.fake = fake

    @property
    def late_replies(self) -> int:
        """Number of replies that were dropped."""
        return self.fake.late_replies

    @late_replies.setter
    def late_replies(self, value: int) -> None:
        self.fake.late_replies = value

    async def unary(self, method: Method[Any, Any], request: Message, timeout_s: float) -> Any:
        """Call the handler of a unary method; its reply."""
        await asyncio.sleep(0)
        return self.fake.unary(method, request, timeout_s)

    async def upload(self, method: Method[Any, Any], requests: Sequence[Message], timeout_s: float) -> Any:
        """Call the handler of a client-streaming method; its reply."""
        await asyncio.sleep(0)
        return self.fake.upload(method, requests, timeout_s)

    async def download(
        self, method: Method[Any, Any], request: Message, take: Callable[[Any], None], timeout_s: float
    ) -> None:
        """Call the handler of a server-streaming method; every reply is passed to ``take``."""
        await asyncio.sleep(0)
        self.fake.download(method, request, take, timeout_s)

    async def exchange(self, requests: Sequence[pb.StreamRequest], timeout_s: float) -> list[pb.StreamReply]:
        """Answer stream messages."""
        await asyncio.sleep(0)
        return self.fake.exchange(requests, timeout_s)

    async def post(self, requests: Sequence[pb.StreamRequest]) -> None:
        """Answer stream messages and drop the replies."""
        self.fake.post(requests)

    async def close(self) -> None:
        """Do nothing: there is no connection."""


_HANDLER_OF = {
    "OpenSession": "open_session",
    "Step": "step",
    "AppendContext": "append_context",
    "CloseSession": "close_session",
    "AddOutputs": "add_outputs",
    "ExportNgrams": "export_ngrams",
    "Forget": "forget",
    "DeleteNamespace": "delete_namespace",
    "ListNamespaces": "list_namespaces",
    "GetStats": "get_stats",
    "GetServerInfo": "get_server_info",
}


def _handler(handlers: Handlers, method: Method[Any, Any]) -> Callable[[Any], Any]:
    handler: Callable[[Any], Any] = getattr(handlers, _HANDLER_OF[method.name])
    return handler


def _copy(kind: type[M], message: Message) -> M:
    """Serialise and parse, as the wire does."""
    return kind.FromString(message.SerializeToString())
