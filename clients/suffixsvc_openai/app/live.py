"""``GET /``, the live page, and ``GET /live``, the server-sent events that it shows.

The page holds nothing secret, so a server with tokens sends it to every browser. The events need a token,
which the page sends in the header Authorization: a URL would appear in logs and histories.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from http import HTTPStatus
from typing import Final

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from starlette.types import Receive, Scope, Send

from suffixsvc.access.caller import Caller
from suffixsvc.errors import LimitExceededError
from suffixsvc_openai.app.http.streaming import TimedStream, event
from suffixsvc_openai.app.service import Service
from suffixsvc_openai.live.page import headers, page
from suffixsvc_openai.live.viewer import Viewer
from suffixsvc_openai.protocol.errors import ApiError

#: seconds between two checks for news
_TICK: Final = 0.1


async def live_page(service: Service, request: Request) -> Response:
    """Answer a browser. Raises ApiError, 403."""
    if not service.authentication.required:
        service.principal(request)
    return HTMLResponse(page(key=service.authentication.required), headers=headers())


async def live_events(service: Service, request: Request) -> Response:
    """Stream events until the viewer or the server goes. Raises ApiError: 401, 403 or 429."""
    sender = service.sender(request)
    principal = sender.principal
    _require_same_site(request)
    try:
        service.viewers.add(principal)
    except LimitExceededError as error:
        raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, str(error), code="too_many_viewers") from None
    sees_all = partial(service.authentication.sees_all, sender)
    viewer = Viewer(service.feed, service.engine, principal, service.model, sees_all)
    return _LiveStream(service, viewer, principal, _events(service, request, viewer, sender))


def _require_same_site(request: Request) -> None:
    """Raise ApiError for a page of another site: it could not read the events, but take a viewer's place."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none"):
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            "the live events must be requested by the page of this server",
            code="origin_not_allowed",
            got=site[:80],
        )


async def _events(service: Service, request: Request, viewer: Viewer, sender: Caller) -> AsyncIterator[str]:
    yield event(viewer.begin())
    while not service.feed.closed and not await request.is_disconnected():
        if not service.authentication.is_valid(sender):
            return  # the page connects again, and is refused
        for message in viewer.news():
            yield event(message)
        await asyncio.sleep(_TICK)


class _LiveStream(TimedStream):
    """The events of a viewer, whose place is free when the response ends, however it does."""

    def __init__(self, service: Service, viewer: Viewer, principal: str, events: AsyncIterator[str]) -> None:
        super().__init__(events)
        self._service, self._viewer, self._principal = service, viewer, principal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._viewer.close()
            self._service.viewers.remove(self._principal)
