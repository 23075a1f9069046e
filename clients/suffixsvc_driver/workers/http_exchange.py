"""A conversation with a llama-server: one completion at a time, over one kept-alive connection."""

from __future__ import annotations

import threading
from collections.abc import Callable

from suffixsvc.errors import InvalidInputError, LimitExceededError, ProtocolError, ServiceTimeoutError
from suffixsvc.types import Draft
from suffixsvc_driver.workers.exchange import Answer, Exchange, Question
from suffixsvc_driver.workers.http_connection import HttpAddress, HttpConnection
from suffixsvc_driver.workers.llama_protocol import completion_request, error_from_reply, parse_completion

__all__ = ["HttpExchange"]


class HttpExchange(Exchange):
    """One connection.

    Args:
        admit: called on the conversation's thread whenever the connection was made: makes sure that the
            vocabulary of who answers fits.
        vocab_size: ids below it are tokens; asked once a connection is made.
    """

    def __init__(
        self, address: HttpAddress, admit: Callable[[HttpConnection], None], vocab_size: Callable[[], int]
    ) -> None:
        super().__init__("llama-server")
        self._admit = admit
        self._admitting = threading.Event()
        self._connection = HttpConnection(address, self._on_connect)
        self._vocab_size = vocab_size

    def give_up(self) -> None:
        """The server goes on drafting for nobody: hang up, which ends that. A pause follows, so that
        questions do not pile up there. Comparing its vocabulary takes longer than any draft and goes on."""
        if not self._admitting.is_set():
            self._fail(ServiceTimeoutError(f"{self._connection.address} did not answer in time"))
            self._hang_up()

    def _on_connect(self, connection: HttpConnection) -> None:
        self._admitting.set()
        try:
            self._admit(connection)
        finally:
            self._admitting.clear()

    def _converse(self) -> None:
        try:
            while (question := self._next_question()) is not None:
                # a server forgets by itself, the least recently used first
                answer = Answer(Draft.empty()) if question.forget else self._ask(question)
                self._deliver(question.number, answer)
        finally:
            self._connection.close()

    def _ask(self, question: Question) -> Answer:
        wanted = question.max_draft_tokens
        body = completion_request(question.context, wanted, question.top_k)
        status, reply = self._connection.ask("POST", "/completion", body)
        if status != 200:
            error = error_from_reply(status, reply, self._connection.address)
            if isinstance(error, (InvalidInputError, LimitExceededError)):
                return Answer(Draft.empty(), error=error)
            raise error
        held = len(question.context)
        if not wanted:
            return Answer(Draft.empty(), held)
        try:
            return Answer(parse_completion(reply, wanted, question.p_min, self._vocab_size()), held)
        except ProtocolError as err:
            return Answer(Draft.empty(), held, error=err)

    def _hang_up(self) -> None:
        self._connection.abort()
