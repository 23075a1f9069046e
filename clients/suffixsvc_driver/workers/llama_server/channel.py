"""A channel to a llama-server: one completion at a time, over one persistent HTTP connection."""

from __future__ import annotations

import threading
from collections.abc import Callable

from suffixsvc.errors import InvalidInputError, LimitExceededError, ProtocolError, ServiceTimeoutError
from suffixsvc.types import Draft
from suffixsvc_driver.workers.client.channel import WorkerChannel, WorkerReply, WorkerRequest
from suffixsvc_driver.workers.llama_server.http_connection import HttpAddress, HttpConnection
from suffixsvc_driver.workers.llama_server.protocol import (
    completion_request,
    error_from_reply,
    parse_completion,
)


class HttpChannel(WorkerChannel):
    """One connection.

    Args:
        verify: checks the server's vocabulary; called on the channel's thread after every connect.
        vocab_size: returns the number of token ids, once connected.
    """

    def __init__(
        self, address: HttpAddress, verify: Callable[[HttpConnection], None], vocab_size: Callable[[], int]
    ) -> None:
        super().__init__("llama-server")
        self._verify = verify
        self._verifying = threading.Event()
        self._connection = HttpConnection(address, self._on_connect)
        self._vocab_size = vocab_size

    def abandon(self) -> None:
        """Close the connection, which makes the server stop the completion. The session's pause then keeps
        requests from piling up there. A vocabulary check takes longer than any draft and is not interrupted.
        """
        if not self._verifying.is_set():
            self._fail(ServiceTimeoutError(f"{self._connection.address} did not reply in time"))
            self._abort()

    def _on_connect(self, connection: HttpConnection) -> None:
        self._verifying.set()
        try:
            self._verify(connection)
        finally:
            self._verifying.clear()

    def _serve(self) -> None:
        try:
            while (request := self._requests.get()) is not None:
                # the server evicts its own state, the least recently used first
                reply = WorkerReply(Draft.empty()) if request.forget else self._complete(request)
                self._deliver(request.number, reply)
        finally:
            self._connection.close()

    def _complete(self, request: WorkerRequest) -> WorkerReply:
        count = request.max_draft_tokens
        body = completion_request(request.context, count, request.top_k)
        status, reply = self._connection.request("POST", "/completion", body)
        if status != 200:
            error = error_from_reply(status, reply, self._connection.address)
            if isinstance(error, (InvalidInputError, LimitExceededError)):
                return WorkerReply(Draft.empty(), error=error)
            raise error
        held = len(request.context)
        if not count:
            return WorkerReply(Draft.empty(), held)
        try:
            return WorkerReply(parse_completion(reply, count, request.p_min, self._vocab_size()), held)
        except ProtocolError as err:
            return WorkerReply(Draft.empty(), held, error=err)

    def _abort(self) -> None:
        self._connection.abort()
