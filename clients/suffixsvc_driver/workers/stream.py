"""A conversation with our own worker: one long-lived Draft stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import grpc
import numpy as np

from suffixsvc import wire
from suffixsvc.errors import ServiceUnavailableError, SuffixError
from suffixsvc.types import Draft
from suffixsvc.v1 import draft_worker_pb2 as pb
from suffixsvc.v1 import draft_worker_pb2_grpc as rpc
from suffixsvc_driver.workers.exchange import Answer, Exchange, Question

__all__ = ["DraftStream"]


class DraftStream(Exchange):
    """One stream.

    Args:
        open_stub: a stub to the worker that listens now, for as long as its block takes. Raises
            ServiceUnavailableError.
        admitted: makes sure that the worker's vocabulary fits and answers its instance id; "" where nobody
            has asked for that. Called on the stream's own thread.
    """

    def __init__(
        self,
        open_stub: Callable[[], AbstractContextManager[rpc.DraftWorkerStub]],
        admitted: Callable[[], str],
    ) -> None:
        super().__init__("draft-stream")
        self._open_stub = open_stub
        self._admitted = admitted
        self._lock = threading.Lock()
        self._call: Any = None  # grpc's calls have no public type that says what they can
        self._ended = False

    def give_up(self) -> None:
        """Nothing: our worker was told how long its driver waits, and has stopped drafting by itself."""

    def _converse(self) -> None:
        instance_id = self._admitted()
        with self._open_stub() as stub:
            self._converse_with(stub, instance_id)

    def _converse_with(self, stub: rpc.DraftWorkerStub, instance_id: str) -> None:
        try:
            with self._lock:
                if self._ended:
                    return
                self._call = stub.Draft(self._outgoing())
            for reply in self._call:
                if instance_id and reply.instance_id not in ("", instance_id):
                    raise ServiceUnavailableError(
                        "the draft worker restarted", expected=instance_id, got=reply.instance_id
                    )
                self._deliver(reply.seq, _answer_from_proto(reply))
        except grpc.RpcError as err:
            code = err.code().name if isinstance(err, grpc.Call) else "no status"
            raise ServiceUnavailableError("the stream to the draft worker broke", got=code) from None
        except ValueError as err:  # a channel that was closed
            raise ServiceUnavailableError("the connection was closed", got=err) from None
        finally:
            self._questions.put(None)  # ends what gRPC reads requests from
            self._hang_up()

    def _outgoing(self) -> Iterator[pb.WorkerDraftRequest]:
        while (question := self._next_question()) is not None:
            yield _request_to_proto(question)

    def _hang_up(self) -> None:
        with self._lock:
            self._ended = True
            if self._call is not None:
                self._call.cancel()


def _request_to_proto(question: Question) -> pb.WorkerDraftRequest:
    if question.forget:
        return pb.WorkerDraftRequest(seq=question.number, session_id=question.session_id, forget=True)
    return pb.WorkerDraftRequest(
        seq=question.number,
        session_id=question.session_id,
        keep=question.keep,
        new_token_ids=wire.pack_tokens(np.array(question.context[question.keep :], np.int32)),
        max_draft_tokens=question.max_draft_tokens,
        p_min=question.p_min,
        top_k=question.top_k,
        wait_seconds=question.wait_seconds,
        timeout_seconds=question.timeout_seconds,
        suggested_token_ids=wire.pack_tokens(np.array(question.suggested, np.int32)),
    )


def _answer_from_proto(reply: pb.WorkerDraftReply) -> Answer:
    """Hostile until it went through here."""
    if reply.HasField("error"):
        return Answer(Draft.empty(), error=wire.error_from_detail(reply.error))
    try:
        draft = wire.draft_from_proto(reply.draft)
    except SuffixError as err:
        return Answer(Draft.empty(), reply.length, error=err)
    return Answer(draft, reply.length, reply.busy)
