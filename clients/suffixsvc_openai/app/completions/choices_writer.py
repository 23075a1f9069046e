"""Writer of completions: ``choices`` of a body, or in chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from fastapi.responses import JSONResponse, Response

from suffixsvc_driver.decode.generation import Result
from suffixsvc_openai.app.answers.answer import Addition, Answer
from suffixsvc_openai.app.answers.responding import Events
from suffixsvc_openai.app.http.streaming import event, with_end
from suffixsvc_openai.engine.call import Call, Ended, Event
from suffixsvc_openai.engine.engine import Engine
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


class ChoicesWriter:
    """See :class:`suffixsvc_openai.app.answers.responding.Writer`.

    Args:
        engine: detokenizes.
        call: its answers.
        body: the request, which is not kept.
        envelope: of the response.
        choices: of each answer.
        chunk: suffix of the object's name in a stream.
    """

    def __init__(
        self,
        engine: Engine,
        call: Call,
        body: GenerationRequest,
        envelope: Envelope,
        choices: Sequence[Choice],
        *,
        chunk: str = "",
    ) -> None:
        self._answers = [Answer(engine, plan) for plan in call.plans]
        self._envelope, self._choices, self._chunk = envelope, choices, chunk
        self._n, self._usage = body.n or 1, body.include_usage

    async def whole(self, events: Events) -> Response:
        """See the protocol."""
        async for each in events:
            self._answers[each.index].add(each)
        bodies = []
        for choice, answer in zip(self._choices, self._answers, strict=True):
            bodies.append(choice.whole(Addition(answer.text, answer.tokens), answer.reason or "stop"))
            await asyncio.sleep(0)  # calls in a long answer take a while to find
        return JSONResponse(self._envelope.wrap(bodies, **self._totals()))

    def read(self, event: Event) -> list[dict[str, Any]]:
        """See the protocol: chunks of one choice."""
        answer, choice = self._answers[event.index], self._choices[event.index]
        new = answer.add(event)
        chunks = choice.add(new) if new.text or new.tokens else []
        if isinstance(event, Ended):
            chunks += choice.end(answer.reason or "stop")
        return chunks

    def stream(self, begun: list[dict[str, Any]], events: Events) -> AsyncIterator[str]:
        """See the protocol."""
        return with_end(self._chunks(begun, events))

    async def _chunks(self, begun: list[dict[str, Any]], events: Events) -> AsyncIterator[str]:
        for choice in self._choices:
            for chunk in choice.begin():
                yield self._event(chunk)
        for chunk in begun:
            yield self._event(chunk)
        async for each in events:
            for chunk in self.read(each):
                yield self._event(chunk)
        if self._usage:
            yield event(self._envelope.wrap([], chunk=self._chunk, **self._totals()))

    def _event(self, chunk: dict[str, Any]) -> str:
        usage = {"usage": None} if self._usage else {}
        return event(self._envelope.wrap([chunk], chunk=self._chunk, **usage))

    def _totals(self) -> dict[str, Any]:
        results = [answer.result for answer in self._answers if isinstance(answer.result, Result)]
        accepted = sum(answer.predicted for answer in self._answers)
        rejected = sum(answer.rejected for answer in self._answers)
        usage = usage_of(results, self._n, accepted, rejected)
        return {"usage": usage, "metrics": metrics_of(results)}
