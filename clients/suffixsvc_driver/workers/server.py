"""gRPC in front of a :class:`DraftEngine`.

One model computes one request at a time. A request that finds it busy waits a moment and is then told so
with nothing done: a draft that comes late is worth nothing, and the driver goes on without it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc
import structlog

from suffixsvc import wire
from suffixsvc.errors import ListenError, SuffixError, UnknownSessionError
from suffixsvc.lifecycle import SERVER_OPTIONS
from suffixsvc.types import Draft
from suffixsvc.v1 import draft_worker_pb2 as pb
from suffixsvc.v1 import draft_worker_pb2_grpc as rpc
from suffixsvc_driver.workers.engine import DraftEngine

__all__ = ["DraftWorkerServer"]

_log = structlog.get_logger(__name__)
_VOCAB_CHUNK: Final = 8192
_THREADS: Final = 32
_STOP_GRACE_SECONDS: Final = 0.5
_BUSY_AFTER_SECONDS: Final = 0.005


class _Servicer(rpc.DraftWorkerServicer):
    def __init__(self, engine: DraftEngine, busy_after_seconds: float) -> None:
        self._engine = engine
        self._busy_after = busy_after_seconds
        self._model_lock = threading.Lock()
        self._vocabulary = engine.model.vocabulary
        self._instance_id = uuid.uuid4().hex

    def Describe(  # noqa: N802  # the generated base class names it
        self, request: pb.DescribeRequest, context: grpc.ServicerContext
    ) -> pb.DescribeReply:
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
        )

    def GetVocab(  # noqa: N802  # the generated base class names it
        self, request: pb.GetVocabRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GetVocabReply]:
        vocabulary = self._vocabulary
        if request.fingerprint and request.fingerprint != vocabulary.fingerprint:
            context.abort(grpc.StatusCode.NOT_FOUND, f"this worker's vocabulary is {vocabulary.fingerprint}")
        for first in range(0, vocabulary.size, _VOCAB_CHUNK):
            yield pb.GetVocabReply(first_id=first, texts=vocabulary.texts[first : first + _VOCAB_CHUNK])

    def Draft(  # noqa: N802  # the generated base class names it
        self, request_iterator: Iterator[pb.WorkerDraftRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.WorkerDraftReply]:
        for request in request_iterator:
            reply = pb.WorkerDraftReply(seq=request.seq, session_id=request.session_id)
            if self._model_lock.acquire(timeout=self._busy_after):
                try:
                    self._answer(request, reply)
                finally:
                    self._model_lock.release()
            else:
                reply.busy = True
            yield reply

    def _answer(self, request: pb.WorkerDraftRequest, reply: pb.WorkerDraftReply) -> None:
        before = time.perf_counter()
        try:
            if not request.session_id:
                raise UnknownSessionError("a request without a session", expected="a session id", got="''")
            if request.forget:
                self._engine.forget(request.session_id)
                draft = Draft.empty()
            else:
                draft = self._engine.draft(
                    request.session_id,
                    request.keep,
                    wire.unpack_tokens(request.new_token_ids),
                    max(0, request.max_draft_tokens),
                    p_min=request.p_min,
                    top_k=max(0, request.top_k),
                )
            reply.draft.CopyFrom(wire.draft_to_proto(draft))
        except SuffixError as err:
            reply.error.CopyFrom(wire.detail_from_error(err))
        reply.length = self._engine.length(request.session_id)
        reply.compute_seconds = time.perf_counter() - before


class DraftWorkerServer:
    """A worker on one address. The engine is the caller's to close, after :meth:`stop`.

    Args:
        address: ``unix:PATH`` or ``HOST:PORT``, checked by the caller; port 0 takes a free one.
        busy_after_seconds: how long a request waits for the model before it is told "busy".
    """

    def __init__(
        self, engine: DraftEngine, address: str, *, busy_after_seconds: float = _BUSY_AFTER_SECONDS
    ) -> None:
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix="worker"),
            maximum_concurrent_rpcs=_THREADS,
            options=SERVER_OPTIONS,
        )
        rpc.add_DraftWorkerServicer_to_server(_Servicer(engine, busy_after_seconds), self._server)
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as err:
            raise ListenError(f"cannot listen on {address}", expected="a free address", got=err) from None
        host = address.rpartition(":")[0]
        #: as clients connect to it
        self.address = address if address.startswith("unix:") else f"{host}:{port}"

    def start(self) -> None:
        """Answer from now on."""
        self._server.start()
        _log.info("draft worker ready", address=self.address)

    def stop(self) -> None:
        """Finish what runs, refuse the rest."""
        self._server.stop(_STOP_GRACE_SECONDS).wait()
