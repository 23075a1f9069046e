"""gRPC server of a :class:`DraftEngine`: converts messages to requests for the scheduler."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import structlog

from suffixsvc import wire
from suffixsvc.access.call_limits import CallLimit
from suffixsvc.access.caller import Caller
from suffixsvc.access.control import AccessControl
from suffixsvc.access.identity_socket import IdentitySocket, binding
from suffixsvc.errors import ListenError, SuffixError, UnknownSessionError
from suffixsvc.runtime.server_lifecycle import SERVER_OPTIONS
from suffixsvc.transport.peer_credentials import socket_path
from suffixsvc.transport.tls import ServerTls
from suffixsvc.v1 import draft_worker_pb2 as pb
from suffixsvc.v1 import draft_worker_pb2_grpc as rpc
from suffixsvc_driver.workers.server.authentication import Authentication
from suffixsvc_driver.workers.server.engine import DraftEngine, DraftRequest
from suffixsvc_driver.workers.server.health import health_handler
from suffixsvc_driver.workers.server.scheduler import Scheduler
from suffixsvc_driver.workers.server.ticket import Ticket

_log = structlog.get_logger(__name__)
_VOCAB_CHUNK: Final = 8192
#: threads beside those of the streams: for Describe and GetVocab
_SPARE_THREADS: Final = 8
#: calls that may wait for a thread; gRPC refuses calls over this number, Describe of other clients too
_WAITING_CALLS: Final = 4096
#: limit of a request's wait_seconds, for which it occupies a thread
_MAX_WAIT_SECONDS: Final = 10.0
_STOP_GRACE_SECONDS: Final = 0.5
#: time for the last replies to be sent; idle streams would stay open otherwise
_FINAL_REPLIES_SECONDS: Final = 0.1
_WHEN_FULL: Final = "End sessions, start another draft worker, or serve with a larger --drivers."


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Limits of a worker that serves several clients.

    Attributes:
        queue: requests that may wait for the model; further ones are refused as busy at once.
        busy_after_seconds: how long a request may wait for its start; None = the time of two tokens, at
            least 5 ms.
        batch_width: sessions computed in one batch; 0 = the width that pays by the measured costs.
        drivers: concurrent streams, one per session; further ones are refused, and so are those of a
            principal that has as many as it leaves to others.
    """

    queue: int = 8
    busy_after_seconds: float | None = None
    batch_width: int = 0
    drivers: int = 64


@dataclass(frozen=True, slots=True)
class WorkerEdge:
    """Who may use a worker.

    Attributes:
        access: authenticates callers.
        tls: certificates of ``HOST:PORT``; None: connections are not encrypted.
    """

    access: AccessControl = field(default_factory=AccessControl)
    tls: ServerTls | None = None


class _Servicer:
    """The methods of the gRPC service, each with its caller (:mod:`.authentication`).

    Sessions, principals and KV are those of the caller: equal names of two callers are unrelated.
    """

    def __init__(
        self, engine: DraftEngine, scheduler: Scheduler, streams: int, access: AccessControl
    ) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._vocabulary = engine.model.vocabulary
        self._instance_id = uuid.uuid4().hex
        self._streams = CallLimit("streams of a draft worker", streams, _WHEN_FULL)
        self._access = access

    def Describe(  # noqa: N802  # the service names it
        self, request: pb.DescribeRequest, context: grpc.ServicerContext, caller: Caller
    ) -> pb.DescribeReply:
        """Describe the model, its vocabulary and its speed."""
        self._require_running(context)
        engine, vocabulary = self._engine, self._vocabulary
        return pb.DescribeReply(
            model=engine.model.path.name,
            vocab_type=vocabulary.kind,
            vocab_size=vocabulary.size,
            bos_id=vocabulary.bos_id,
            eos_id=vocabulary.eos_id,
            add_bos=vocabulary.add_bos,
            add_eos=vocabulary.add_eos,
            fingerprint=vocabulary.fingerprint,
            context_size=engine.context_size,
            seconds_per_token=engine.seconds_per_token,
            parameters=engine.model.parameters,
            instance_id=self._instance_id,
            batch_width=min(engine.costs.lanes, engine.slots),
            seconds_per_read_token=engine.costs.prefill_seconds(1),
            checks=engine.checks,
        )

    def GetVocab(  # noqa: N802  # the service names it
        self, request: pb.GetVocabRequest, context: grpc.ServicerContext, caller: Caller
    ) -> Iterator[pb.GetVocabReply]:
        """Stream the texts of all tokens."""
        vocabulary = self._vocabulary
        if request.fingerprint and request.fingerprint != vocabulary.fingerprint:
            context.abort(grpc.StatusCode.NOT_FOUND, f"this worker's vocabulary is {vocabulary.fingerprint}")
        for first in range(0, vocabulary.size, _VOCAB_CHUNK):
            yield pb.GetVocabReply(first_id=first, texts=vocabulary.texts[first : first + _VOCAB_CHUNK])

    def Draft(  # noqa: N802  # the service names it
        self,
        request_iterator: Iterator[pb.WorkerDraftRequest],
        context: grpc.ServicerContext,
        caller: Caller,
    ) -> Iterator[pb.WorkerDraftReply]:
        """Reply to the requests of one client's session.

        Raises:
            LimitExceededError: the worker has as many streams as it may, or the principal its share.
        """
        with self._streams.acquire(context.cancel, caller.principal, lambda: self._access.shared) as permit:
            current: list[Ticket] = []
            # the request of a client that disconnected must not keep the model busy
            context.add_callback(lambda: self._scheduler.cancel(*current))
            for request in request_iterator:
                permit.mark_received()
                self._require_running(context)
                yield self._reply(request, caller, current)

    def _require_running(self, context: grpc.ServicerContext) -> None:
        if self._scheduler.stopped:
            context.abort(grpc.StatusCode.UNAVAILABLE, "this worker is stopping")

    def _reply(
        self, request: pb.WorkerDraftRequest, caller: Caller, current: list[Ticket]
    ) -> pb.WorkerDraftReply:
        reply = pb.WorkerDraftReply(
            seq=request.seq, session_id=request.session_id, instance_id=self._instance_id
        )
        try:
            if not request.session_id:
                raise UnknownSessionError("session_id must be set", got="''")
            if request.forget:
                self._scheduler.forget(caller.session(request.session_id).key)
                return reply
            ticket = self._scheduler.submit(
                _request_from_proto(request, caller),
                _seconds(request.timeout_seconds),
                min(_seconds(request.wait_seconds), _MAX_WAIT_SECONDS),
            )
            current[:] = [ticket]
            self._scheduler.wait(ticket)
            current.clear()
            reply.busy = ticket.busy
            reply.length = ticket.length
            reply.compute_seconds = ticket.seconds
            if ticket.error is not None:
                raise ticket.error
            reply.draft.CopyFrom(wire.draft_to_proto(ticket.draft))
        except SuffixError as err:
            reply.error.CopyFrom(wire.detail_from_error(err))
        return reply


def _seconds(value: float) -> float:
    """A duration of a message; 0 if it is negative or not finite."""
    return value if 0.0 < value < math.inf else 0.0


def _request_from_proto(request: pb.WorkerDraftRequest, caller: Caller) -> DraftRequest:
    """Convert a request. Raises InvalidTokensError for a byte length that is not a multiple of an id's."""
    return DraftRequest(
        caller.session(request.session_id).key,
        request.keep,
        wire.unpack_tokens(request.new_token_ids),
        max(0, request.max_draft_tokens),
        request.p_min,
        max(0, request.top_k),
        wire.unpack_tokens(request.suggested_token_ids, "suggested_token_ids"),
        request.principal,
        caller.scope,
    )


class DraftWorkerServer:
    """A worker on one address. The caller closes the engine, after :meth:`stop`.

    Args:
        address: ``unix:PATH`` or ``HOST:PORT``, checked by the caller; port 0 takes a free one.
        edge: who may use it.

    Raises:
        ListenError: the address is in use.
        InvalidConfigError: a certificate is invalid.
    """

    def __init__(
        self,
        engine: DraftEngine,
        address: str,
        settings: WorkerSettings = WorkerSettings(),
        edge: WorkerEdge | None = None,
    ) -> None:
        edge = WorkerEdge() if edge is None else edge
        self.scheduler = Scheduler(
            engine, queue=settings.queue, busy_after_seconds=settings.busy_after_seconds
        )
        self._authentication = Authentication(edge.access)
        threads = settings.drivers + _SPARE_THREADS
        self._server = grpc.server(
            ThreadPoolExecutor(threads, thread_name_prefix="worker"),
            interceptors=[self._authentication],
            maximum_concurrent_rpcs=threads + _WAITING_CALLS,
            options=SERVER_OPTIONS,
        )
        # the interceptor passes callers
        servicer: Any = _Servicer(engine, self.scheduler, settings.drivers, edge.access)
        rpc.add_DraftWorkerServicer_to_server(servicer, self._server)
        self._server.add_generic_rpc_handlers((health_handler(),))
        self._identity: IdentitySocket | None = None
        try:
            if address.startswith("unix:"):
                with binding(socket_path(address), edge.access) as self._identity:
                    port = self._server.add_insecure_port(address)
            elif edge.tls is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, edge.tls.credentials())
        except RuntimeError as err:
            raise ListenError(f"cannot listen on {address}", expected="a free address", got=err) from None
        host = address.rpartition(":")[0]
        #: address for clients
        self.address = address if address.startswith("unix:") else f"{host}:{port}"

    def start(self) -> None:
        """Start serving."""
        self.scheduler.start()
        self._authentication.start()
        if self._identity is not None:
            self._identity.start()
        self._server.start()
        _log.info("draft worker ready", address=self.address)

    def stop(self) -> None:
        """Finish running requests and refuse further ones."""
        self.scheduler.stop(_STOP_GRACE_SECONDS)
        self._server.stop(_FINAL_REPLIES_SECONDS).wait()
        if self._identity is not None:
            self._identity.close()
        self._authentication.stop()
        with suppress(Exception):  # standard error may be a pipe that is closed
            _log.info("draft worker stopped", address=self.address, failures=self.scheduler.failures)
