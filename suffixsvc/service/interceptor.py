"""The one place where calls are admitted, requests are parsed and errors become gRPC statuses.

Servicers raise and never catch. All calls, those of health and reflection included, are taken as streams of
bytes, also where the method has one request: only so does a call that never sends its request pass here
before it waits, take a place among the others of its kind (admission.py) and get a deadline (stalls.py).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import structlog

from suffixsvc import wire
from suffixsvc.errors import InvalidInputError
from suffixsvc.service.admission import CHECK, MAX_REFLECTIONS, MAX_UPLOADS, Admission, Place
from suffixsvc.service.elements import SMALL_BYTES
from suffixsvc.service.failures import as_suffix_error
from suffixsvc.service.requests import RequestReaders
from suffixsvc.service.stalls import StalledCalls, TimedMessages

__all__ = ["CallInterceptor"]

log = structlog.get_logger(__name__)

#: how long the request of a call of one request may take to come
REQUEST_SECONDS = 30.0
#: the same of a health check: there are few places
CHECK_SECONDS = 5.0
#: how long a client may send nothing in the middle of a bulk load, or of a reflection call; then it is told
BETWEEN_MESSAGES_SECONDS = 30.0

_OURS: Final = "/suffixsvc.v1.SuffixCache/"
_STREAM: Final = _OURS + "Stream"

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
#: bytes of a call -> the argument of a servicer's method
Requests: TypeAlias = Callable[[Iterator[bytes], grpc.ServicerContext, Place], Any]


class CallInterceptor(grpc.ServerInterceptor):
    """SuffixError -> status of the table, with its ErrorDetail in the trailing metadata.

    Anything else that a handler raises is a defect: logged with its traceback, answered INTERNAL.
    """

    def __init__(self, admission: Admission, readers: RequestReaders, stalled: StalledCalls) -> None:
        self._admission = admission
        self._readers = readers
        self._stalled = stalled
        self._messages = TimedMessages(MAX_UPLOADS + MAX_REFLECTIONS)
        #: by method: handlers do not change, and wrapping one takes time on every call's path
        self._wrapped: dict[str, Handler] = {}

    def drain(self) -> None:
        """Calls that wait for their next message end, and say what they did."""
        self._messages.drain()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        method = handler_call_details.method
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            handler = continuation(handler_call_details)
            if handler is None:
                return None
            wrapped = self._wrapped[method] = self._wrap(handler, method)
        return wrapped

    def _wrap(self, handler: Handler, method: str) -> Handler:
        call: Callable[..., Any] | None
        if (call := handler.unary_unary or handler.stream_unary) is not None:
            many = handler.unary_unary is None
            requests = self._requests(handler, method, many=many)
            return grpc.stream_unary_rpc_method_handler(
                self._guard_call(call, method, requests),
                response_serializer=handler.response_serializer,
            )
        call = handler.unary_stream or handler.stream_stream
        if call is None:
            raise AssertionError(f"{method} has a kind that this interceptor does not guard")
        many = handler.unary_stream is None
        requests = self._requests(handler, method, many=many)
        return grpc.stream_stream_rpc_method_handler(
            self._guard_stream(call, method, requests),
            # messages of the stream stay bytes in this direction, too
            response_serializer=None if method == _STREAM else handler.response_serializer,
        )

    # ------------------------------------------------------------------------------------------- requests

    def _requests(self, handler: Handler, method: str, *, many: bool) -> Requests:
        """What makes the argument of a servicer's method of the bytes that come."""
        if method == _STREAM:
            # Messages of the stream stay bytes: the core reads and writes them (Handlers.message_bytes).
            # Agents wait for their tools for minutes, so that no silence of a stream is too long.
            return lambda requests, context, place: _started(requests, place)
        read = self._reader(handler, method)
        seconds = CHECK_SECONDS if method == CHECK else REQUEST_SECONDS
        if many:
            return lambda requests, context, place: self._each(requests, place, read)
        return lambda requests, context, place: self._only(requests, context, place, method, read, seconds)

    def _reader(self, handler: Handler, method: str) -> Callable[[bytes], Any]:
        parse = handler.request_deserializer
        if method.startswith(_OURS):
            return self._readers.of[method.removeprefix(_OURS)]
        return lambda data: _read_small(data, parse)

    def _only(
        self,
        requests: Iterator[bytes],
        context: grpc.ServicerContext,
        place: Place,
        method: str,
        read: Callable[[bytes], Any],
        seconds: float,
    ) -> Any:
        with self._stalled.deadline(context, seconds, method, "its request did not come"):
            data = next(requests, None)
        place.mark_received()
        if data is None:
            raise InvalidInputError("a call must have a request", expected="one message", got="none")
        return read(data)

    def _each(self, requests: Iterator[bytes], place: Place, read: Callable[[bytes], Any]) -> Iterator[Any]:
        data = self._messages.next(requests, BETWEEN_MESSAGES_SECONDS)
        place.mark_received()
        while data is not None:
            yield read(data)
            data = self._messages.next(requests, BETWEEN_MESSAGES_SECONDS)

    # ------------------------------------------------------------------------------------------- guards

    @contextlib.contextmanager
    def _place(self, method: str, context: grpc.ServicerContext) -> Iterator[Place]:
        place = self._admission.enter(method, context.cancel)
        try:
            yield place
        finally:
            place.leave()

    def _guard_call(
        self, call: Callable[[Any, Any], Any], method: str, requests: Requests
    ) -> Callable[[Any, Any], Any]:
        def guarded(data: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            try:
                with self._place(method, context) as place:
                    return call(requests(data, context, place), context)
            except grpc.RpcError:
                raise  # the client went away while it was still sending; nobody is left to be told
            except Exception as error:
                _abort(error, method, context)

        return guarded

    def _guard_stream(
        self, call: Callable[..., Any], method: str, requests: Requests
    ) -> Callable[[Any, Any], Iterator[Any]]:
        def guarded(data: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            try:
                with self._place(method, context) as place:
                    yield from call(requests(data, context, place), context)
            except grpc.RpcError:
                return  # as above; what its sessions hold stays until they are resumed or expire
            except Exception as error:
                _abort(error, method, context)

        return guarded


def _started(requests: Iterator[bytes], place: Place) -> Iterator[bytes]:
    """The messages of a call, after its first one has come: the call is preemptible until then."""
    first = next(requests, None)
    place.mark_received()
    return iter(()) if first is None else itertools.chain((first,), requests)


def _read_small(data: bytes, parse: Callable[[bytes], Any] | None) -> Any:
    """A request of a service that is not ours: all of them are names."""
    if len(data) > SMALL_BYTES:
        raise InvalidInputError(
            "a request must be small", expected=f"at most {SMALL_BYTES} bytes", got=f"{len(data)} bytes"
        )
    return data if parse is None else parse(data)


def _abort(error: Exception, method: str, context: grpc.ServicerContext) -> NoReturn:
    typed = as_suffix_error(error, method)
    code, status = wire.status_of(typed)
    log.info("call refused", method=method, code=code.name, error=str(typed))
    context.set_trailing_metadata(
        ((wire.ERROR_METADATA_KEY, wire.detail_from_error(typed).SerializeToString()),)
    )
    context.abort(grpc.StatusCode[status], typed.message[:1000])
