"""Responses of a call: one body at its end, or a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from suffixsvc_driver.decode.generation import Result
from suffixsvc_openai.app.choices import Addition, Answer
from suffixsvc_openai.app.service import Service
from suffixsvc_openai.app.streaming import EventStream, event, while_connected
from suffixsvc_openai.engine.call import Call, Ended, Event
from suffixsvc_openai.protocol.envelope import Envelope
from suffixsvc_openai.protocol.generation_request import GenerationRequest
from suffixsvc_openai.protocol.usage import metrics_of, usage_of


class Choice(Protocol):
    """An element of ``choices``, whole or in chunks."""

    def begin(self) -> list[dict[str, Any]]:
        """Return the chunks before the first text."""

    def add(self, new: Addition) -> list[dict[str, Any]]:
        """Return the chunks of new text."""

    def end(self, reason: str) -> list[dict[str, Any]]:
        """Return the last chunks."""

    def whole(self, answer: Addition, reason: str) -> dict[str, Any]:
        """Return the element of a body."""


class Responder:
    """Makes the response of one call.

    Args:
        service: the server's parts.
        body: the request.
        envelope: of the response.
        chunk: suffix of the object's name in a stream.
    """

    def __init__(
        self, service: Service, body: GenerationRequest, envelope: Envelope, *, chunk: str = ""
    ) -> None:
        self._service, self._body, self._envelope, self._chunk = service, body, envelope, chunk

    async def respond(self, request: Request, call: Call, choices: Sequence[Choice]) -> Response:
        """Return the response, once it is known that there is an answer.

        Raises:
            ApiError: an answer failed.
            ClientGone: the client has disconnected.
        """
        answers = [Answer(self._service.engine, plan) for plan in call.plans]
        events = call.events()
        try:
            if not self._body.stream:
                return await while_connected(request, self._whole(events, answers, choices))
            # errors of the first step have a status of their own, before the headers are sent
            first = await while_connected(request, _first(events))
            begun = answers[first.index].add(first)
            stream = self._stream(events, first, begun, answers, choices)
            return EventStream(self._service.engine, call, stream)
        except BaseException:
            self._service.engine.cancel(call)
            raise

    async def _whole(
        self, events: AsyncIterator[Event], answers: Sequence[Answer], choices: Sequence[Choice]
    ) -> Response:
        async for each in events:
            answers[each.index].add(each)
        bodies = [
            choice.whole(Addition(answer.text, answer.tokens), answer.reason or "stop")
            for choice, answer in zip(choices, answers, strict=True)
        ]
        return JSONResponse(self._envelope.wrap(bodies, **self._totals(answers)))

    async def _stream(
        self,
        events: AsyncIterator[Event],
        first: Event,
        begun: Addition,
        answers: Sequence[Answer],
        choices: Sequence[Choice],
    ) -> AsyncIterator[str]:
        for choice in choices:
            for chunk in choice.begin():
                yield self._event([chunk])
        for chunk in self._chunks(first, begun, answers, choices):
            yield self._event([chunk])
        async for each in events:
            new = answers[each.index].add(each)
            for chunk in self._chunks(each, new, answers, choices):
                yield self._event([chunk])
        if self._body.include_usage:
            yield event(self._envelope.wrap([], chunk=self._chunk, **self._totals(answers)))

    @staticmethod
    def _chunks(
        each: Event, new: Addition, answers: Sequence[Answer], choices: Sequence[Choice]
    ) -> list[dict[str, Any]]:
        choice = choices[each.index]
        chunks = choice.add(new) if new.text or new.tokens else []
        if isinstance(each, Ended):
            chunks += choice.end(answers[each.index].reason or "stop")
        return chunks

    def _event(self, choices: list[dict[str, Any]]) -> str:
        usage = {"usage": None} if self._body.include_usage else {}
        return event(self._envelope.wrap(choices, chunk=self._chunk, **usage))

    def _totals(self, answers: Sequence[Answer]) -> dict[str, Any]:
        results = [answer.result for answer in answers if isinstance(answer.result, Result)]
        return {"usage": usage_of(results, self._body.n or 1), "metrics": metrics_of(results)}


async def _first(events: AsyncIterator[Event]) -> Event:
    return await anext(events)
