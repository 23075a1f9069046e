"""Responses of a call: one body at its end, or a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Protocol

from fastapi import Request
from fastapi.responses import Response

from suffixsvc.errors import UnauthenticatedError
from suffixsvc_openai.app.http import streaming
from suffixsvc_openai.app.http.streaming import EventStream, while_connected
from suffixsvc_openai.engine.call import Call, Event
from suffixsvc_openai.engine.engine import Engine
from suffixsvc_openai.protocol.errors import of_exception

Events = AsyncIterator[Event]


async def _events(call: Call) -> Events:
    """The events of a call. Raises ApiError: its token was revoked."""
    try:
        async for event in call.events():
            yield event
    except UnauthenticatedError as error:
        raise of_exception(error) from None


class Writer(Protocol):
    """Writes the response of one call."""

    async def whole(self, events: Events) -> Response:
        """Return the response, at the end of the call. Raises ApiError: an answer failed."""

    def read(self, event: Event) -> list[dict[str, Any]]:
        """Return what a stream sends for an event of the call. Raises ApiError: an answer failed."""

    def stream(self, begun: list[dict[str, Any]], events: Events) -> AsyncIterator[str]:
        """Return the server-sent events of a stream; those that an error ends have it as the last one.

        Args:
            begun: what :meth:`read` returned for the first event, if there was one in time.
            events: the others.
        """


async def respond(engine: Engine, request: Request, call: Call, writer: Writer, *, stream: bool) -> Response:
    """Return the response of a call, once it is known that there is an answer.

    A stream begins after :data:`~suffixsvc_openai.app.http.streaming.QUIET_SECONDS` in any case.

    Raises:
        ApiError: an answer failed.
        ClientGone: the client has disconnected.
    """
    events = _events(call)
    try:
        if not stream:
            return await while_connected(request, writer.whole(events))
        # errors of the first step have a status of their own, before the headers are sent
        begun: list[dict[str, Any]] = []
        with suppress(TimeoutError):
            await while_connected(request, asyncio.wait_for(call.begun(), streaming.QUIET_SECONDS))
            begun = writer.read(await anext(events))
        return EventStream(engine, call, writer.stream(begun, events))
    except BaseException:
        engine.cancel(call)
        raise
