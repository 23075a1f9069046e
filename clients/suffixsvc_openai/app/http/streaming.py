"""Answers to clients that may be slow or go away at any time.

A client that disconnects cancels its call: the lanes are free within one step. A slow client does not delay
its lanes; the text waits here, in the memory that the call's tokens need. The client of a stream that
takes nothing for a minute is disconnected.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final, TypeVar

import structlog
from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from suffixsvc_openai.engine.call import Call
from suffixsvc_openai.engine.engine import Engine
from suffixsvc_openai.protocol.errors import ApiError, of_exception

_log = structlog.get_logger(__name__)

#: seconds after which a client that takes no data is disconnected
STALL_SECONDS: Final = 60.0
#: json.dumps makes an encoder per call
_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

T = TypeVar("T")


class ClientGone(Exception):
    """The client has disconnected; nothing can be sent."""


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` as long as the client is connected.

    Raises:
        ClientGone: it has disconnected; ``work`` was cancelled.
    """
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnection(request.receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        watcher.cancel()
        task.cancel()  # if it is still running: the client or the server has gone


async def _disconnection(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def event(data: dict[str, Any], kind: str | None = None) -> str:
    """Return a server-sent event; ``kind`` is its type, if its clients expect one."""
    head = "" if kind is None else f"event: {kind}\n"
    return f"{head}data: {_encode(data)}\n\n"


async def with_end(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """Append the end of a stream of completions, or the error that ended it."""
    try:
        async for each in events:
            yield each
        yield "data: [DONE]\n\n"
    except ApiError as error:
        yield event(error.body)
    except Exception as error:
        _log.exception("a stream failed")
        yield event(of_exception(error).body)


class TimedStream(StreamingResponse):
    """A stream of server-sent events to a client that takes data in time, or is disconnected.

    Args:
        events: texts of the events.
    """

    def __init__(self, events: AsyncIterator[str]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(STALL_SECONDS):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except* TimeoutError:  # the server closes the connection of a response that is incomplete
            _log.warning("a client took no data and was disconnected", seconds=STALL_SECONDS)


class EventStream(TimedStream):
    """The events of a call, which is cancelled when the response ends, however it does.

    Args:
        engine: cancels the call.
        call: source of the events.
        events: texts of the events.
    """

    def __init__(self, engine: Engine, call: Call, events: AsyncIterator[str]) -> None:
        super().__init__(events)
        self._engine, self._call = engine, call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._engine.cancel(self._call)
