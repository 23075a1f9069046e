"""Writer of a response: whole, or as the events of a stream.

    response.created, response.in_progress, (events of the output), response.completed

A stream that fails ends with ``error``, at which OpenAI's clients raise an exception, and
``response.failed``. It has no ``[DONE]``, as OpenAI's has none.

A response repeats the settings of its request, which may be megabytes of instructions and tools. The JSON of
such a response is made in a thread, so that other streams do not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import count
from typing import Any, TypeVar

import structlog
from fastapi.responses import Response

from suffixsvc_openai.app.answers.answer import Answer
from suffixsvc_openai.app.answers.responding import Events
from suffixsvc_openai.app.http.streaming import ENCODER, event
from suffixsvc_openai.chat.reader import AnswerReader
from suffixsvc_openai.engine.call import Event
from suffixsvc_openai.protocol.errors import of_exception
from suffixsvc_openai.responses.document import Document, status_of
from suffixsvc_openai.responses.output import Output, StreamEvent

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class ResponseWriter:
    """See :class:`suffixsvc_openai.app.answers.responding.Writer`.

    Args:
        answer: of the call.
        document: the response.
        reader: of the answer's text.
        keep: stores the response at its end; None if it is not stored.
    """

    def __init__(
        self,
        answer: Answer,
        document: Document,
        reader: AnswerReader,
        keep: Callable[[dict[str, Any]], None] | None,
    ) -> None:
        self._answer, self._document, self._reader, self._keep = answer, document, reader, keep
        self._output = Output()
        self._numbers = count()

    async def whole(self, events: Events) -> Response:
        """See the protocol."""
        async for each in events:
            self.read(each)
        response = await self._end()
        return Response(await self._json(response), media_type="application/json")

    async def stream(self, begun: list[StreamEvent], events: Events) -> AsyncIterator[str]:
        """See the protocol."""
        response = self._document.begun()
        for kind in ("response.created", "response.in_progress"):
            yield await self._sent_whole(kind, response)
        try:
            for data in begun:
                yield self._sent(data)
            async for each in events:
                for data in self.read(each):
                    yield self._sent(data)
            response = await self._end()
            yield await self._sent_whole(f"response.{response['status']}", response)
        except Exception as error:
            found = of_exception(error)
            if found is not error:
                _log.error("a stream failed", exc_info=error)
            shown = found.body["error"]
            fields = {name: shown[name] for name in ("code", "message", "param")}
            yield self._sent({"type": "error", **fields, "error": shown})
            failed = self._document.failed(found, self._output.items)
            yield await self._sent_whole("response.failed", failed)

    def read(self, event: Event) -> list[StreamEvent]:
        """See the protocol."""
        deltas = self._reader.feed(self._answer.add(event).text)
        if self._answer.reason is None:
            return self._output.add(deltas)
        events = self._output.add([*deltas, *self._reader.finish()])
        return events + self._output.end(status_of(self._answer.reason), cut=self._reader.cut)

    async def _end(self) -> dict[str, Any]:
        """Return the response, stored."""
        answer = self._answer
        assert answer.reason is not None and answer.result is not None  # noqa: S101, PT018  # at its end
        response = self._document.ended(answer.reason, self._output.items, answer.result)
        if self._keep is not None:
            await self._run(partial(self._keep, response))
        return response

    async def _run(self, function: Callable[[], T]) -> T:
        """Call a function that takes as long as the response is, in a thread if it is large."""
        return await asyncio.to_thread(function) if self._document.large else function()

    async def _json(self, value: dict[str, Any]) -> str:
        return await self._run(partial(ENCODER.encode, value))

    async def _sent_whole(self, kind: str, response: dict[str, Any]) -> str:
        """Return an event that has the response."""
        data = {"type": kind, "sequence_number": next(self._numbers), "response": response}
        return event(await self._json(data), kind)

    def _sent(self, data: StreamEvent) -> str:
        return event({"type": data["type"], "sequence_number": next(self._numbers), **data}, data["type"])
