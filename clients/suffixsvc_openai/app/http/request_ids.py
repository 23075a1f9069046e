"""Ids of requests: the header ``x-request-id`` of every response, which OpenAI's clients report with errors.

A client may choose the id of its request by the same header, as with vLLM (``--enable-request-id-headers``),
to find it in the logs of several servers.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID: Final = "x-request-id"
#: ids of clients that are kept: visible characters, so that none can write lines of a log
_KEPT: Final = re.compile(r"[!-~]{1,128}")


def new_request_id() -> str:
    """Return an id of a request whose client chose none."""
    return f"req_{uuid.uuid4().hex}"


class RequestIds:
    """ASGI middleware that gives each request an id: ``request_id`` of its state."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, with its id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = Headers(scope=scope).get(REQUEST_ID, "")
        found = asked if _KEPT.fullmatch(asked) else new_request_id()
        scope.setdefault("state", {})["request_id"] = found

        async def identified(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = found
            await send(message)

        await self._app(scope, receive, identified)
