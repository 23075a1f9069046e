"""Ids of requests: the header ``x-request-id`` of every response, which OpenAI's clients report with errors.

A client may choose the id of its request by the same header, as with vLLM (``--enable-request-id-headers``),
to find it in the logs of several servers.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from suffixsvc.runtime.request_ids import REQUEST_ID, request_id


class RequestIds:
    """ASGI middleware that gives each request an id: ``request_id`` of its state."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, with its id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        found = request_id(Headers(scope=scope).get(REQUEST_ID, ""))
        scope.setdefault("state", {})["request_id"] = found

        async def identified(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = found
            await send(message)

        await self._app(scope, receive, identified)
