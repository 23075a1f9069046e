"""Server interceptor: authenticates and admits calls, parses their requests, maps errors to gRPC statuses.

Servicers raise and never catch. All calls, including health and reflection, are handled as streams of bytes,
even if the method has a single request: a call that never sends its request then still acquires a permit of
its kind (admission.py) and a deadline (stalls.py) before it waits.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError

from suffixsvc import wire
from suffixsvc.access.call_limits import CallPermit
from suffixsvc.access.caller import Caller
from suffixsvc.access.control import AccessControl
from suffixsvc.access.grpc_calls import LiveCalls, caller_of
from suffixsvc.errors import InvalidInputError
from suffixsvc.runtime.request_ids import REQUEST_ID
from suffixsvc.service.calls.admission import CHECK, MAX_REFLECTIONS, MAX_UPLOADS, Admission
from suffixsvc.service.calls.call_context import CallContext, call_context
from suffixsvc.service.calls.call_counts import CallCounts
from suffixsvc.service.calls.stalls import StalledCalls, TimedMessages
from suffixsvc.service.messages.elements import SMALL_BYTES
from suffixsvc.service.messages.errors import as_suffix_error
from suffixsvc.v1 import types_pb2

log = structlog.get_logger(__name__)

#: time for a call of one request to send it
REQUEST_SECONDS = 30.0
#: the same for a health check: there are few permits
CHECK_SECONDS = 5.0
#: time between two messages of a bulk load or reflection call, after which the call ends with an error
BETWEEN_MESSAGES_SECONDS = 30.0

_OURS: Final = "/suffixsvc.v1.SuffixCache/"
_HEALTH: Final = "/grpc.health.v1.Health/"
_STREAM: Final = _OURS + "Stream"
_WATCH: Final = _OURS + "Watch"

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
#: converts the bytes of a call to the argument of a servicer's method
Requests: TypeAlias = Callable[[Iterator[bytes], grpc.ServicerContext, CallPermit], Any]


class CallInterceptor(grpc.ServerInterceptor):
    """Maps SuffixError to the status of the table, with its ErrorDetail in the trailing metadata.

    Any other exception of a handler is a defect: logged with its traceback and answered with INTERNAL.
    """

    def __init__(
        self,
        access: AccessControl,
        admission: Admission,
        readers: Mapping[str, Callable[[bytes], Any]],
        stalled: StalledCalls,
        calls: CallCounts,
    ) -> None:
        self._access = access
        self.live_calls = LiveCalls(access)
        self._admission = admission
        self._readers = readers
        self._stalled = stalled
        self._calls = calls
        self._messages = TimedMessages(MAX_UPLOADS + MAX_REFLECTIONS)
        #: by method: handlers do not change, and wrapping one takes time on the path of every call
        self._wrapped: dict[str, Handler] = {}

    def drain(self) -> None:
        """End calls that wait for their next message; their errors say how much was stored."""
        self._messages.drain()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap the handler of a method; gRPC calls this for every call."""
        method = handler_call_details.method
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            handler = continuation(handler_call_details)
            if handler is None:
                return None
            wrapped = self._wrapped[method] = self._wrap(handler, method)
        return wrapped

    def _wrap(self, handler: Handler, method: str) -> Handler:
        argument = self._requests(handler, method)
        call: Any = (
            handler.unary_unary or handler.stream_unary or handler.unary_stream or handler.stream_stream
        )

        def admitted(data: Iterator[bytes], caller: tuple[Caller, ...]) -> Iterator[bytes]:
            # messages of Stream are admitted one by one, because each has a reply (Handlers.message_bytes)
            return data if method == _STREAM or not caller else map(caller[0].admit, data)

        unary = handler.unary_unary is not None

        def answer(data: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            with self._admitted(method, context, unary=unary) as (permit, caller):
                return call(argument(admitted(data, caller), context, permit), context, *caller)

        def answer_stream(data: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            try:
                with self._admitted(method, context, unary=unary) as (permit, caller):
                    yield from call(argument(admitted(data, caller), context, permit), context, *caller)
            except grpc.RpcError:
                return  # the client disconnected; its sessions stay open until they are resumed or expire

        # replies of Stream are serialised already, and so are those of Watch, which its calls share
        serialize = None if method in (_STREAM, _WATCH) else handler.response_serializer
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(answer_stream, response_serializer=serialize)
        return grpc.stream_unary_rpc_method_handler(answer, response_serializer=serialize)

    @contextlib.contextmanager
    def _admitted(
        self, method: str, context: grpc.ServicerContext, *, unary: bool
    ) -> Iterator[tuple[CallPermit, tuple[Caller, ...]]]:
        """Authenticate a call, then hold a permit for the block; answer its error, unless the client
        disconnected while sending.

        Args:
            unary: the method has one request and one reply. Any other call is cancelled if its credential is
                revoked; this one ends by itself, and cancelled it would not say why.

        Yields:
            The permit, and the arguments that the method has after its context: the caller of one of ours.
        """
        with call_context(method, context, self._calls, unary=unary) as call:
            try:
                if method.startswith(_HEALTH):  # probes have no identity, and learn a state only
                    with self._admission.acquire(method, context.cancel) as permit:
                        yield permit, ()
                    call.code = _code_of(context)
                    return
                caller = caller_of(context, self._access)
                call.name_principal(caller.principal)
                with (
                    self._admission.acquire(method, context.cancel, caller.principal) as permit,
                    contextlib.nullcontext() if unary else self.live_calls.registered(context, caller),
                ):
                    yield permit, (caller,) if method.startswith(_OURS) else ()
                call.code = _code_of(context)
            except grpc.RpcError:
                raise
            except Exception as error:
                _abort(error, method, context, call)

    # ------------------------------------------------------------------------------------------- requests

    def _requests(self, handler: Handler, method: str) -> Requests:
        """The converter from a call's bytes to the argument of the servicer's method."""
        if method == _STREAM:
            # Messages of Stream stay bytes: the core reads and writes them (Handlers.message_bytes). A stream
            # has no deadline: agents wait for their tools for minutes.
            return lambda requests, context, permit: _after_first(requests, permit)
        if method.startswith(_OURS):
            read = self._readers[method.removeprefix(_OURS)]
        else:
            read = functools.partial(_read_small, handler.request_deserializer)
        if method == _WATCH:  # a follower may have nothing to say for long
            return lambda requests, context, permit: map(
                read, self._after_first_in_time(requests, context, permit)
            )
        if handler.request_streaming:
            return lambda requests, context, permit: self._read_each(requests, permit, read)
        return lambda requests, context, permit: self._read_one(requests, context, permit, method, read)

    def _after_first_in_time(
        self, requests: Iterator[bytes], context: grpc.ServicerContext, permit: CallPermit
    ) -> Iterator[bytes]:
        """As :func:`_after_first`, with a deadline for the first message."""
        with self._stalled.deadline(context, REQUEST_SECONDS, _WATCH, "no hello was sent"):
            return _after_first(requests, permit)

    def _read_one(
        self,
        requests: Iterator[bytes],
        context: grpc.ServicerContext,
        permit: CallPermit,
        method: str,
        read: Callable[[bytes], Any],
    ) -> Any:
        seconds = CHECK_SECONDS if method == CHECK else REQUEST_SECONDS
        with self._stalled.deadline(context, seconds, method, "no request was sent"):
            data = next(requests, None)
        permit.mark_received()
        if data is None:
            raise InvalidInputError("a call must have a request", expected="one message", got="none")
        return read(data)

    def _read_each(
        self, requests: Iterator[bytes], permit: CallPermit, read: Callable[[bytes], Any]
    ) -> Iterator[Any]:
        data = self._messages.next(requests, BETWEEN_MESSAGES_SECONDS)
        permit.mark_received()
        while data is not None:
            yield read(data)
            data = self._messages.next(requests, BETWEEN_MESSAGES_SECONDS)


def _after_first(requests: Iterator[bytes], permit: CallPermit) -> Iterator[bytes]:
    """The messages of a call; returns after the first one, until which the call is preemptible."""
    first = next(requests, None)
    permit.mark_received()
    return iter(()) if first is None else itertools.chain((first,), requests)


def _read_small(parse: Callable[[bytes], Any] | None, data: bytes) -> Any:
    """Parse a request of another service, such as health: these hold names only."""
    if len(data) > SMALL_BYTES:
        raise InvalidInputError(
            "a request must be small", expected=f"at most {SMALL_BYTES} bytes", got=f"{len(data)} bytes"
        )
    try:
        return data if parse is None else parse(data)
    except DecodeError:
        raise InvalidInputError(
            "a request must be a message of its method", got=f"{len(data)} other bytes"
        ) from None


def _code_of(context: grpc.ServicerContext) -> str:
    """Name of the status of a call that ended without an error; the health service sets one."""
    server: Any = context  # its type has no ``code``
    return str((server.code() or grpc.StatusCode.OK).name)


def _abort(error: Exception, method: str, context: grpc.ServicerContext, call: CallContext) -> NoReturn:
    typed = as_suffix_error(error, method)
    code, status = wire.status_of(typed)
    name = types_pb2.ErrorCode.Name(code).removeprefix("ERROR_CODE_")
    # not what was expected and got, which can be tokens
    log.info("call refused", code=name, error=typed.message)
    call.code = status
    context.set_trailing_metadata((*wire.error_metadata(typed), (REQUEST_ID, call.request_id)))
    context.abort(grpc.StatusCode[status], typed.message[:1000])
