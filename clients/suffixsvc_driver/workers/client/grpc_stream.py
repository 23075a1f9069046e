"""A channel to our own worker: one long-lived Draft stream over gRPC."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from suffixsvc import wire
from suffixsvc.errors import ProtocolError, ServiceUnavailableError, SuffixError, UnauthenticatedError
from suffixsvc.transport.identity import CallCredential
from suffixsvc.types import Draft
from suffixsvc.v1 import draft_worker_pb2 as pb
from suffixsvc.v1 import draft_worker_pb2_grpc as rpc
from suffixsvc_driver.workers.client.channel import WorkerChannel, WorkerReply, WorkerRequest


@dataclass(frozen=True, slots=True)
class ConnectedWorker:
    """A worker that listens now.

    Attributes:
        stub: makes calls.
        credential: returns what a call presents. Raises SuffixError.
    """

    stub: rpc.DraftWorkerStub
    credential: Callable[[], CallCredential]


class DraftStream(WorkerChannel):
    """One stream.

    Args:
        connect: context manager of the worker that listens now. Raises ServiceUnavailableError.
        verify: checks the worker's vocabulary and returns its instance id; "" if no check is required.
            Called on the stream's own thread.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[ConnectedWorker]],
        verify: Callable[[], str],
    ) -> None:
        super().__init__("draft-stream")
        self._connect, self._verify = connect, verify
        self._lock = threading.Lock()
        self._call: Any = None  # the public type of gRPC's calls lacks their methods
        self._ended = False

    def _serve(self) -> None:
        instance_id = self._verify()
        with self._connect() as worker:
            self._read_replies(worker, instance_id)

    def _read_replies(self, worker: ConnectedWorker, instance_id: str) -> None:
        credential = CallCredential(None)
        try:
            credential = worker.credential()
            with self._lock:
                if self._ended:
                    return
                requests = map(_request_to_proto, iter(self._requests.get, None))
                self._call = worker.stub.Draft(requests, metadata=credential.metadata)
            for reply in self._call:
                if instance_id and reply.instance_id not in ("", instance_id):
                    raise ServiceUnavailableError(
                        "the draft worker restarted", expected=instance_id, got=reply.instance_id
                    )
                self._deliver(reply.seq, _reply_from_proto(reply))
        except grpc.RpcError as err:
            sent = error_of_call(err)
            if sent is not None and credential.may_retry(sent):  # no refusal: the next stream has another one
                raise ServiceUnavailableError("the user ticket must be renewed", got=sent) from None
            if sent is not None:
                raise sent from None
            code = err.code().name if isinstance(err, grpc.Call) else "no status"
            raise ServiceUnavailableError("the stream to the draft worker broke", got=code) from None
        except ValueError as err:  # the gRPC channel was closed
            raise ServiceUnavailableError("the connection was closed", got=err) from None
        finally:
            self._requests.put(None)  # ends the iterator that gRPC reads requests from
            self._abort()

    def _abort(self) -> None:
        with self._lock:
            self._ended = True
            if self._call is not None:
                self._call.cancel()


def error_of_call(err: Exception) -> SuffixError | None:
    """The error that a worker sent for a call; None if it sent none."""
    if not isinstance(err, grpc.RpcError) or not isinstance(err, grpc.Call):
        return None
    try:
        sent = wire.error_from_metadata(err.trailing_metadata() or ())
    except DecodeError:
        return ProtocolError("an error of a draft worker cannot be parsed", got=err.code().name)
    if sent is None and err.code() is grpc.StatusCode.UNAUTHENTICATED:  # of a proxy
        return UnauthenticatedError("the caller must be authenticated", got=str(err.details())[:300])
    return sent


def _request_to_proto(request: WorkerRequest) -> pb.WorkerDraftRequest:
    if request.forget:
        return pb.WorkerDraftRequest(seq=request.number, session_id=request.session_id, forget=True)
    return pb.WorkerDraftRequest(
        seq=request.number,
        session_id=request.session_id,
        keep=request.keep,
        new_token_ids=wire.pack_tokens(np.array(request.context[request.keep :], np.int32)),
        max_draft_tokens=request.max_draft_tokens,
        p_min=request.p_min,
        top_k=request.top_k,
        wait_seconds=request.wait_seconds,
        timeout_seconds=request.timeout_seconds,
        suggested_token_ids=wire.pack_tokens(np.array(request.suggested, np.int32)),
        principal=request.principal,
    )


def _reply_from_proto(reply: pb.WorkerDraftReply) -> WorkerReply:
    """Convert a reply; malformed drafts become errors."""
    if reply.HasField("error"):
        return WorkerReply(Draft.empty(), error=wire.error_from_detail(reply.error))
    try:
        draft = wire.draft_from_proto(reply.draft)
    except SuffixError as err:
        return WorkerReply(Draft.empty(), reply.length, error=err)
    return WorkerReply(draft, reply.length, reply.busy)
