"""gRPC servicer: binds every method to its handler. Exceptions are mapped to statuses in interceptor.py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import grpc

from suffixsvc.access.caller import Caller
from suffixsvc.access.control import Peer
from suffixsvc.access.grpc_calls import peer_of
from suffixsvc.engine import ExportJob
from suffixsvc.errors import InvalidInputError
from suffixsvc.service.calls.stalls import StalledCalls
from suffixsvc.service.handlers import Handlers
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import watch_pb2

T = TypeVar("T")

#: time within which a client has to read each reply of a stream, such as a piece of an export
STALLED_SECONDS: Final = 60.0


class SuffixCacheServicer:
    """Servicer of suffixsvc.v1.SuffixCache. Every call, a stream too, occupies a thread until it ends.

    The interceptor calls the methods, with the caller as a third argument.
    """

    def __init__(self, handlers: Handlers, stalled: StalledCalls) -> None:
        self._handlers = handlers
        self._stalled = stalled
        #: the exports in progress
        self._exports: set[ExportJob] = set()
        for method in pb.DESCRIPTOR.services_by_name["SuffixCache"].methods_by_name:
            if method not in ("Stream", "ExportNgrams", "Watch", "FetchSegment", "Backup"):
                setattr(self, method, _servicer_method(handlers, method))

    def drain(self) -> None:
        """Refuse new messages, cancel exports, and end the streams of followers."""
        self._handlers.start_draining()
        for job in tuple(self._exports):
            job.cancel()

    def Stream(  # noqa: N802 - gRPC's method name
        self, request_iterator: Iterator[bytes], context: grpc.ServicerContext, caller: Caller
    ) -> Iterator[bytes]:
        """Answer the messages of a stream, which stay bytes; see :meth:`Handlers.message_bytes`."""
        return filter(None, (self._handlers.message_bytes(data, caller) for data in request_iterator))

    def ExportNgrams(  # noqa: N802 - gRPC's method name
        self, request: pb.ExportNgramsRequest, context: grpc.ServicerContext, caller: Caller
    ) -> Iterator[pb.ExportNgramsReply]:
        """See :meth:`Handlers.export_ngrams`. The export is cancelled when the call ends."""
        job = ExportJob()
        self._exports.add(job)
        try:
            self._handlers.refuse_while_draining()
            # The callback runs at the end of the call, also if the client disconnects.
            if not context.add_callback(job.cancel):
                return  # the call has ended already
            with contextlib.closing(self._handlers.export_ngrams(request, caller, job)) as replies:
                yield from self._timed(replies, context, "ExportNgrams")
        finally:
            self._exports.discard(job)

    def Watch(  # noqa: N802 - gRPC's method name
        self,
        request_iterator: Iterator[watch_pb2.WatchRequest],
        context: grpc.ServicerContext,
        caller: Caller,
    ) -> Iterator[bytes]:
        """Send a follower the log; the replies are serialised. See :meth:`FollowerService.watch`."""
        self._handlers.refuse_while_draining()
        local = peer_of(context.peer()) is not Peer.NETWORK
        watched = self._handlers.followers.watch(
            request_iterator, caller, local=local, on_end=context.add_callback
        )
        with contextlib.closing(watched) as replies:
            yield from self._timed(replies, context, "Watch")

    def FetchSegment(  # noqa: N802 - gRPC's method name
        self, request: watch_pb2.FetchSegmentRequest, context: grpc.ServicerContext, caller: Caller
    ) -> Iterator[watch_pb2.FetchSegmentReply]:
        """See :meth:`Handlers.fetch_segment`."""
        self._handlers.refuse_while_draining()
        with contextlib.closing(self._handlers.fetch_segment(request, caller)) as replies:
            yield from self._timed(replies, context, "FetchSegment")

    def Backup(  # noqa: N802 - gRPC's method name
        self, request: pb.BackupRequest, context: grpc.ServicerContext, caller: Caller
    ) -> Iterator[pb.BackupReply]:
        """See :meth:`Handlers.backup`. The call's end, also by the client, ends the backup."""
        self._handlers.refuse_while_draining()
        if peer_of(context.peer()) is Peer.NETWORK:
            raise InvalidInputError(
                "the client must be on the service's host to ask for a backup",
                expected="a unix socket or a loopback address",
                got=context.peer(),
                remedy="Run `suffixsvc backup` there: it names a folder of that host.",
            )
        with contextlib.closing(self._handlers.backup(request, caller)) as replies:
            yield from self._timed(replies, context, "Backup")

    def _timed(self, replies: Iterator[T], context: grpc.ServicerContext, method: str) -> Iterator[T]:
        """Send replies, each within a deadline: gRPC itself waits without a limit for the client to read."""
        for reply in replies:
            with self._stalled.deadline(context, STALLED_SECONDS, method, "a reply was not read"):
                yield reply


def _servicer_method(handlers: Handlers, method: str) -> Callable[[Any, grpc.ServicerContext, Caller], Any]:
    return lambda request, _context, caller: handlers.of(method)(request, caller)
