"""The one place where errors become gRPC statuses; servicers raise and never catch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import grpc
import structlog

from suffixsvc import wire
from suffixsvc.service.failures import as_suffix_error

__all__ = ["ErrorInterceptor"]

log = structlog.get_logger(__name__)

_OURS = "/suffixsvc.v1."


class ErrorInterceptor(grpc.ServerInterceptor):
    """SuffixError -> status of the table, with its ErrorDetail in the trailing metadata.

    Anything else that a handler raises is a defect: logged with its traceback, answered INTERNAL.
    """

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith(_OURS):
            return handler
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                _guard_call(handler.unary_unary, method),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.stream_unary is not None:
            return grpc.stream_unary_rpc_method_handler(
                _guard_call(handler.stream_unary, method),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                _guard_stream(handler.unary_stream, method),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.stream_stream is not None:
            # Messages of the stream stay bytes: the core reads and writes them (Handlers.message_bytes).
            return grpc.stream_stream_rpc_method_handler(_guard_stream(handler.stream_stream, method))
        raise AssertionError(f"{method} has a kind that this interceptor does not guard")


def _guard_call(call: Callable[[Any, Any], Any], method: str) -> Callable[[Any, Any], Any]:
    def guarded(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return call(request, context)
        except grpc.RpcError:
            raise  # the client went away while it was still sending; nobody is left to be told
        except Exception as error:
            _abort(error, method, context)

    return guarded


def _guard_stream(
    call: Callable[[Any, Any], Iterator[Any]], method: str
) -> Callable[[Any, Any], Iterator[Any]]:
    def guarded(requests: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            yield from call(requests, context)
        except grpc.RpcError:
            return  # as above; what its sessions hold stays until they are resumed or expire
        except Exception as error:
            _abort(error, method, context)

    return guarded


def _abort(error: Exception, method: str, context: grpc.ServicerContext) -> NoReturn:
    typed = as_suffix_error(error, method)
    code, status = wire.status_of(typed)
    log.info("call refused", method=method, code=code.name, error=str(typed))
    context.set_trailing_metadata(
        ((wire.ERROR_METADATA_KEY, wire.detail_from_error(typed).SerializeToString()),)
    )
    context.abort(grpc.StatusCode[status], typed.message[:1000])
