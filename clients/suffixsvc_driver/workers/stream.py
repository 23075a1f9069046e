"""A long-lived Draft stream with a timer of its own.

A gRPC deadline covers a whole stream, so it cannot bound one answer. Here one request is outstanding at a
time; whoever asks waits on a condition, gives up after its own time and goes on. The late answer still
arrives, frees the stream for the next request, and its draft is dropped.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import grpc

from suffixsvc.v1 import draft_worker_pb2 as pb
from suffixsvc.v1 import draft_worker_pb2_grpc as rpc

__all__ = ["DraftStream"]


class DraftStream:
    """One stream. Used by one thread at a time; answers arrive on a thread of its own.

    Attributes:
        failed: the stream ended; make a new one.
    """

    def __init__(self, stub: rpc.DraftWorkerStub) -> None:
        self._requests: queue.SimpleQueue[pb.WorkerDraftRequest | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._sent_seq = 0
        self._answered: pb.WorkerDraftReply | None = None
        self.failed = False
        self._call = stub.Draft(self._outgoing())
        self._reader = threading.Thread(target=self._read, name="draft-stream", daemon=True)
        self._reader.start()

    @property
    def outstanding(self) -> bool:
        """The last request was not answered yet."""
        with self._changed:
            return self._sent_seq > 0 and not self._has_answer()

    def take_answer(self) -> pb.WorkerDraftReply | None:
        """The answer to the last request, if it has come; once."""
        with self._changed:
            if not self._has_answer():
                return None
            answer, self._answered, self._sent_seq = self._answered, None, 0
            return answer

    def send(self, request: pb.WorkerDraftRequest) -> None:
        """Send a request; only when none is outstanding and the last answer was taken."""
        with self._changed:
            self._sent_seq = request.seq
            self._answered = None
        self._requests.put(request)

    def wait(self, seconds: float) -> bool:
        """Wait for the answer to the last request, no longer than this. Whether it came."""
        with self._changed:
            self._changed.wait_for(lambda: self.failed or self._has_answer(), timeout=seconds)
            return self._has_answer()

    def close(self) -> None:
        """End the stream and its thread."""
        self._requests.put(None)
        self._call.cancel()
        self._reader.join(timeout=5.0)

    def _has_answer(self) -> bool:
        return self._answered is not None and self._answered.seq == self._sent_seq

    def _outgoing(self) -> Iterator[pb.WorkerDraftRequest]:
        while (request := self._requests.get()) is not None:
            yield request

    def _read(self) -> None:
        try:
            for reply in self._call:
                with self._changed:
                    if reply.seq == self._sent_seq:
                        self._answered = reply
                        self._changed.notify_all()
        except grpc.RpcError:
            pass  # the worker went away; `failed` says so
        finally:
            with self._changed:
                self.failed = True
                self._changed.notify_all()
            self._requests.put(None)
