"""Answers to clients that may be slow or go away at any time.

A client that disconnects cancels its call: the lanes are free within one step. A slow client does not delay
its lanes; the text waits here, in the memory that the call's tokens need. The client of a stream that
takes nothing for a minute is disconnected. A stream that has nothing to send has comments, or proxies and
clients would take it for dead.
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
#: seconds without data after which a stream has a comment; clients and proxies wait 60 s or less for data
QUIET_SECONDS: Final = 10.0
_COMMENT: Final[Message] = {"type": "http.response.body", "body": b": waiting\n\n", "more_body": True}
#: of what is sent; json.dumps makes an encoder per call
ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

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


def event(data: dict[str, Any] | str, kind: str | None = None) -> str:
    """Return a server-sent event of data, or of their JSON; ``kind`` is its type, if clients expect one."""
    head = "" if kind is None else f"event: {kind}\n"
    text = data if isinstance(data, str) else ENCODER.encode(data)
    return f"{head}data: {text}\n\n"


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
    """A stream of server-sent events, with comments where there are none for a while, to a client that takes
    data in time, or is disconnected.

    Args:
        events: texts of the events.
    """

    def __init__(self, events: AsyncIterator[str]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        sender = _Sender(send)
        comments = asyncio.create_task(sender.fill_silence())
        try:
            await super().__call__(scope, receive, sender.send)
        except* TimeoutError:  # the server closes the connection of a response that is incomplete
            _log.warning("a client took no data and was disconnected", seconds=STALL_SECONDS)
        finally:
            comments.cancel()


class _Sender:
    """Sends the messages of one response, and comments between them."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = asyncio.Lock()  # a comment that waits for a slow client must not follow the last message
        self._open = False
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()

    async def send(self, message: Message) -> None:
        """Send a message. Raises TimeoutError: the client takes no data."""
        async with asyncio.timeout(STALL_SECONDS), self._lock:
            await self._send(message)
            self._open = message["type"] == "http.response.start" or message.get("more_body", False)
            self._last = self._loop.time()

    async def fill_silence(self) -> None:
        """Send comments until it is cancelled."""
        while True:
            quiet = self._loop.time() - self._last
            if quiet < QUIET_SECONDS:
                await asyncio.sleep(QUIET_SECONDS - quiet)
                continue
            async with self._lock:
                if self._open:
                    await self._send(_COMMENT)
                self._last = self._loop.time()


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
