"""Server interceptor of a draft worker: no call is answered before its caller is authenticated.

But for health checks, which need no credential. All calls are handled as streams of bytes, even if the method
has a single request: gRPC would otherwise hold a thread for a caller that is not known, until its request has
come.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError

from suffixsvc import wire
from suffixsvc.access.caller import Caller
from suffixsvc.access.control import AccessControl
from suffixsvc.access.grpc_calls import LiveCalls, caller_of
from suffixsvc.access.principals import OPERATOR
from suffixsvc.access.refreshing import refreshing
from suffixsvc.errors import ProtocolError, SuffixError
from suffixsvc_driver.workers.server.health import HEALTH_CHECK

_log = structlog.get_logger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Authentication(grpc.ServerInterceptor):
    """Passes the caller of each call to its method, as the argument after the context.

    A call without a valid credential ends with its error; one whose credential is revoked or expires is
    cancelled within about a second, while :meth:`start` is in effect.

    Args:
        access: authenticates callers.
    """

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._calls = LiveCalls(access)
        self._task = refreshing(access, self._calls.cancel_revoked)

    def start(self) -> None:
        """Read tokens and policies again when they change."""
        self._task.start()

    def stop(self) -> None:
        """Undo :meth:`start`."""
        self._task.stop()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap the handler of a method; gRPC calls this for every call."""
        handler = continuation(handler_call_details)
        method = handler_call_details.method
        return handler if handler is None or method == HEALTH_CHECK else self._wrap(handler, method)

    def _wrap(self, handler: Handler, method: str) -> Handler:
        call: Any = handler.unary_unary or handler.unary_stream or handler.stream_stream
        parse: Any = handler.request_deserializer

        def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            with self._authenticated(method, context) as caller:
                messages = _parsed(requests, parse)
                argument = messages if handler.request_streaming else _single(messages)
                replies = call(argument, context, caller)
                yield from replies if handler.response_streaming else (replies,)

        return grpc.stream_stream_rpc_method_handler(answer, response_serializer=handler.response_serializer)

    @contextlib.contextmanager
    def _authenticated(self, method: str, context: grpc.ServicerContext) -> Iterator[Caller]:
        """Authenticate a call, and have it cancelled if its credential is revoked within the block."""
        known: dict[str, str] = {}
        try:
            caller = caller_of(context, self._access)
            if caller.principal != OPERATOR:
                known["principal"] = caller.principal
            with self._calls.registered(context, caller):
                yield caller
        except SuffixError as error:
            _log.info("call refused", method=method, code=wire.status_of(error)[0], error=str(error), **known)
            _abort(error, context)


def _parsed(requests: Iterator[bytes], parse: Callable[[bytes], Any]) -> Iterator[Any]:
    """The requests of a call. Raises ProtocolError: one cannot be parsed."""
    for data in requests:
        try:
            message = parse(data)
        except DecodeError:
            raise ProtocolError("a request must be one of its method", got=f"{len(data)} bytes") from None
        yield message


def _single(requests: Iterator[Any]) -> Any:
    """The request of a call. Raises ProtocolError: there is none."""
    for request in requests:
        return request
    raise ProtocolError("a call must have a request", got="none")


def _abort(error: SuffixError, context: grpc.ServicerContext) -> NoReturn:
    _, status = wire.status_of(error)
    context.set_trailing_metadata(wire.error_metadata(error))
    context.abort(grpc.StatusCode[status], error.message[:1000])
