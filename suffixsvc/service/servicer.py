"""gRPC servicer: binds every method to its handler. Exceptions are mapped to statuses in interceptor.py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc

from suffixsvc.engine import ExportJob
from suffixsvc.service.calls.stalls import StalledCalls
from suffixsvc.service.handlers import Handlers
from suffixsvc.v1 import suffix_cache_pb2 as pb

#: time within which a client has to read each piece of an export
STALLED_SECONDS: Final = 60.0


class SuffixCacheServicer:
    """Servicer of suffixsvc.v1.SuffixCache. Every call, a stream too, occupies a thread until it ends."""

    def __init__(self, handlers: Handlers, stalled: StalledCalls) -> None:
        self._handlers = handlers
        self._stalled = stalled
        #: the exports in progress
        self._exports: set[ExportJob] = set()
        for method in pb.DESCRIPTOR.services_by_name["SuffixCache"].methods_by_name:
            if method not in ("Stream", "ExportNgrams"):
                setattr(self, method, _servicer_method(handlers, method))

    def drain(self) -> None:
        """Refuse new messages and cancel exports."""
        self._handlers.start_draining()
        for job in tuple(self._exports):
            job.cancel()

    def Stream(  # noqa: N802 - gRPC's method name
        self, request_iterator: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Answer the messages of a stream, which stay bytes; see :meth:`Handlers.message_bytes`."""
        return map(self._handlers.message_bytes, request_iterator)

    def ExportNgrams(  # noqa: N802 - gRPC's method name
        self, request: pb.ExportNgramsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ExportNgramsReply]:
        """See :meth:`Handlers.export_ngrams`. The export is cancelled when the call ends."""
        job = ExportJob()
        self._exports.add(job)
        try:
            self._handlers.refuse_while_draining()
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


def _servicer_method(handlers: Handlers, method: str) -> Callable[[Any, grpc.ServicerContext], Any]:
    return lambda request, _context: handlers.of(method)(request)
