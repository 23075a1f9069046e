"""gRPC methods -> handlers. Nothing is caught here: see interceptor.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

import grpc

from suffixsvc.engine import ExportJob
from suffixsvc.errors import ServiceUnavailableError
from suffixsvc.service.handlers import Handlers
from suffixsvc.service.stalls import StalledCalls
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc

__all__ = ["SuffixCacheServicer"]

#: how long a client may leave a piece of an export unread before it loses its place
STALLED_SECONDS: Final = 60.0


class SuffixCacheServicer(suffix_cache_pb2_grpc.SuffixCacheServicer):
    """One thread of the server's pool per call; a stream keeps its thread for as long as it lives."""

    def __init__(self, handlers: Handlers, stalled: StalledCalls) -> None:
        self._handlers = handlers
        self._stalled = stalled
        #: those that run
        self._exports: set[ExportJob] = set()
        self.draining = False

    def drain(self) -> None:
        """Refuse what is new, and end what would take long."""
        self.draining = True
        self._handlers.sessions.desk.close()
        for job in tuple(self._exports):
            job.cancel()

    def Stream(  # type: ignore[override] # noqa: N802 - messages stay bytes (see interceptor.py); gRPC's method name
        self, request_iterator: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        for request in request_iterator:
            yield self.answer(request)

    def answer(self, request: bytes) -> bytes:
        """One message of a stream, a serialised StreamRequest; a serialised StreamReply."""
        self._refuse_while_draining()
        return self._handlers.message_bytes(request)

    def answer_rest(self, request: bytes, answered: Sequence[bytes | None] | None) -> bytes:
        """The same of a message that passed the desk already. See :meth:`Handlers.unanswered`."""
        if answered is None:
            self._refuse_while_draining()
        return self._handlers.unanswered(request, answered)

    def _refuse_while_draining(self) -> None:
        if self.draining:
            raise ServiceUnavailableError(
                "the service is shutting down", remedy="Connect again; sessions can be resumed."
            )

    def OpenSession(  # noqa: N802 - gRPC's method name
        self, request: pb.OpenSessionRequest, context: grpc.ServicerContext
    ) -> pb.OpenSessionReply:
        return self._handlers.open_session(request)

    def Step(self, request: pb.StepRequest, context: grpc.ServicerContext) -> pb.StepReply:  # noqa: N802 - gRPC's method name
        return self._handlers.step(request)

    def AppendContext(  # noqa: N802 - gRPC's method name
        self, request: pb.AppendContextRequest, context: grpc.ServicerContext
    ) -> pb.AppendContextReply:
        return self._handlers.append_context(request)

    def CloseSession(  # noqa: N802 - gRPC's method name
        self, request: pb.CloseSessionRequest, context: grpc.ServicerContext
    ) -> pb.CloseSessionReply:
        return self._handlers.close_session(request)

    def AddOutputs(  # noqa: N802 - gRPC's method name
        self, request_iterator: Iterator[pb.AddOutputsRequest], context: grpc.ServicerContext
    ) -> pb.AddOutputsReply:
        return self._handlers.add_outputs(request_iterator)

    def ExportNgrams(  # noqa: N802 - gRPC's method name
        self, request: pb.ExportNgramsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ExportNgramsReply]:
        job = ExportJob()
        self._exports.add(job)
        try:
            self._refuse_while_draining()
            # At the end of the call, also where the client went away; False where that was before.
            if not context.add_callback(job.cancel):
                return
            with contextlib.closing(self._handlers.export_ngrams(request, job)) as replies:
                for reply in replies:
                    # gRPC itself waits for ever for a client that does not read
                    with self._stalled.deadline(
                        context, STALLED_SECONDS, "ExportNgrams", "a piece of the export is not read"
                    ):
                        yield reply
        finally:
            self._exports.discard(job)

    def Forget(self, request: pb.ForgetRequest, context: grpc.ServicerContext) -> pb.ForgetReply:  # noqa: N802 - gRPC's method name
        return self._handlers.forget(request)

    def DeleteNamespace(  # noqa: N802 - gRPC's method name
        self, request: pb.DeleteNamespaceRequest, context: grpc.ServicerContext
    ) -> pb.DeleteNamespaceReply:
        return self._handlers.delete_namespace(request)

    def ListNamespaces(  # noqa: N802 - gRPC's method name
        self, request: pb.ListNamespacesRequest, context: grpc.ServicerContext
    ) -> pb.ListNamespacesReply:
        return self._handlers.list_namespaces(request)

    def GetStats(self, request: pb.GetStatsRequest, context: grpc.ServicerContext) -> pb.GetStatsReply:  # noqa: N802 - gRPC's method name
        return self._handlers.get_stats(request)

    def GetServerInfo(  # noqa: N802 - gRPC's method name
        self, request: pb.GetServerInfoRequest, context: grpc.ServicerContext
    ) -> pb.GetServerInfoReply:
        return self._handlers.get_server_info(request)
