"""gRPC servicer: passes every method to its handler. Exceptions are mapped to statuses in interceptor.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

import grpc

from suffixsvc.core import Refusal
from suffixsvc.engine import ExportJob
from suffixsvc.errors import ServiceUnavailableError
from suffixsvc.service.calls.stalls import StalledCalls
from suffixsvc.service.handlers import Handlers
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc

__all__ = ["SuffixCacheServicer"]

#: time within which a client has to read each piece of an export
STALLED_SECONDS: Final = 60.0


class SuffixCacheServicer(suffix_cache_pb2_grpc.SuffixCacheServicer):
    """Servicer of suffixsvc.v1.SuffixCache. Every call, a stream too, occupies a thread until it ends."""

    def __init__(self, handlers: Handlers, stalled: StalledCalls) -> None:
        self._handlers = handlers
        self._stalled = stalled
        #: the exports in progress
        self._exports: set[ExportJob] = set()
        self.draining = False

    def drain(self) -> None:
        """Refuse new messages and cancel exports."""
        self.draining = True
        self._handlers.sessions.dispatcher.close()
        for job in tuple(self._exports):
            job.cancel()

    def Stream(  # type: ignore[override] # noqa: N802 - messages stay bytes (see interceptor.py); gRPC's method name
        self, request_iterator: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Answer the serialised messages of a stream; see :meth:`answer`."""
        for request in request_iterator:
            yield self.answer(request)

    def answer(self, request: bytes) -> bytes:
        """Answer a serialised StreamRequest with a serialised StreamReply."""
        self._refuse_while_draining()
        return self._handlers.message_bytes(request)

    def answer_remaining(self, request: bytes, answered: Sequence[bytes | Refusal] | None) -> bytes:
        """Answer what the dispatcher left of a message; see :meth:`Handlers.answer_remaining`."""
        if answered is None:
            self._refuse_while_draining()
        return self._handlers.answer_remaining(request, answered)

    def _refuse_while_draining(self) -> None:
        if self.draining:
            raise ServiceUnavailableError(
                "the service is shutting down", remedy="Connect again; sessions can be resumed."
            )

    def OpenSession(  # noqa: N802 - gRPC's method name
        self, request: pb.OpenSessionRequest, context: grpc.ServicerContext
    ) -> pb.OpenSessionReply:
        """See :meth:`Handlers.open_session`."""
        return self._handlers.open_session(request)

    def Step(self, request: pb.StepRequest, context: grpc.ServicerContext) -> pb.StepReply:  # noqa: N802 - gRPC's method name
        """See :meth:`Handlers.step`."""
        return self._handlers.step(request)

    def AppendContext(  # noqa: N802 - gRPC's method name
        self, request: pb.AppendContextRequest, context: grpc.ServicerContext
    ) -> pb.AppendContextReply:
        """See :meth:`Handlers.append_context`."""
        return self._handlers.append_context(request)

    def CloseSession(  # noqa: N802 - gRPC's method name
        self, request: pb.CloseSessionRequest, context: grpc.ServicerContext
    ) -> pb.CloseSessionReply:
        """See :meth:`Handlers.close_session`."""
        return self._handlers.close_session(request)

    def AddOutputs(  # noqa: N802 - gRPC's method name
        self, request_iterator: Iterator[pb.AddOutputsRequest], context: grpc.ServicerContext
    ) -> pb.AddOutputsReply:
        """See :meth:`Handlers.add_outputs`."""
        return self._handlers.add_outputs(request_iterator)

    def ExportNgrams(  # noqa: N802 - gRPC's method name
        self, request: pb.ExportNgramsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ExportNgramsReply]:
        """See :meth:`Handlers.export_ngrams`. The export is cancelled when the call ends."""
        job = ExportJob()
        self._exports.add(job)
        try:
            self._refuse_while_draining()
            # The callback runs at the end of the call, also if the client disconnects.
            if not context.add_callback(job.cancel):
                return  # the call has ended already
            with contextlib.closing(self._handlers.export_ngrams(request, job)) as replies:
                for reply in replies:
                    # gRPC waits without a limit for a client that does not read
                    with self._stalled.deadline(
                        context, STALLED_SECONDS, "ExportNgrams", "a piece of the export was not read"
                    ):
                        yield reply
        finally:
            self._exports.discard(job)

    def Forget(self, request: pb.ForgetRequest, context: grpc.ServicerContext) -> pb.ForgetReply:  # noqa: N802 - gRPC's method name
        """See :meth:`Handlers.forget`."""
        return self._handlers.forget(request)

    def DeleteNamespace(  # noqa: N802 - gRPC's method name
        self, request: pb.DeleteNamespaceRequest, context: grpc.ServicerContext
    ) -> pb.DeleteNamespaceReply:
        """See :meth:`Handlers.delete_namespace`."""
        return self._handlers.delete_namespace(request)

    def ListNamespaces(  # noqa: N802 - gRPC's method name
        self, request: pb.ListNamespacesRequest, context: grpc.ServicerContext
    ) -> pb.ListNamespacesReply:
        """See :meth:`Handlers.list_namespaces`."""
        return self._handlers.list_namespaces(request)

    def GetStats(self, request: pb.GetStatsRequest, context: grpc.ServicerContext) -> pb.GetStatsReply:  # noqa: N802 - gRPC's method name
        """See :meth:`Handlers.get_stats`."""
        return self._handlers.get_stats(request)

    def GetServerInfo(  # noqa: N802 - gRPC's method name
        self, request: pb.GetServerInfoRequest, context: grpc.ServicerContext
    ) -> pb.GetServerInfoReply:
        """See :meth:`Handlers.get_server_info`."""
        return self._handlers.get_server_info(request)
