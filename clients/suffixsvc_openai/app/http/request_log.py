"""One log line per request, at its end; never what a client or the model wrote, and no keys.

    request  generated_tokens=4 method=POST path=/v1/completions principal=local prompt_tokens=2
             request_id=req_4f0c... response_id=cmpl-9d31... seconds=0.031 status=200

The level is info, and debug for the paths that are probed and scraped.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any, Final

import structlog
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from suffixsvc_openai.engine.call import Call, Job

_log = structlog.get_logger(__name__)

#: paths that programs of operators ask for every few seconds
_QUIET: Final = ("/health", "/metrics")
#: characters of a path that a line has
_SHOWN: Final = 200
#: nginx's status of a request whose client went before the end of the response
_INCOMPLETE: Final = 499


def note_principal(request: Request, principal: str) -> None:
    """Name the principal in the line of a request."""
    request.state.principal = principal


def note_call(request: Request, call: Call) -> None:
    """Count the tokens of a call in the line of a request."""
    request.state.call = call


def note_response(request: Request, response_id: str) -> None:
    """Name the completion or response object that answers, in the line of a request."""
    request.state.response_id = response_id


class RequestLog:
    """ASGI middleware that writes the lines; inside of
    :class:`~suffixsvc_openai.app.http.request_ids.RequestIds`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, then write its line."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), HTTPStatus.INTERNAL_SERVER_ERROR.value
        complete = True
        state = scope.setdefault("state", {})

        async def observed(message: Message) -> None:
            nonlocal status, complete
            await send(message)
            status = message.get("status", status)
            complete = message["type"] == "http.response.body" and not message.get("more_body")

        try:
            await self._app(scope, receive, observed)
        finally:
            write = _log.debug if scope["path"] in _QUIET else _log.info
            write(
                "request",
                method=scope["method"],
                # as it was sent: without query, and no line breaks that percent signs stand for
                path=scope["raw_path"].decode("ascii", "replace")[:_SHOWN],
                status=int(status) if complete else _INCOMPLETE,
                seconds=round(time.perf_counter() - began, 3),
                **_details(state),
            )


def _details(state: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of a request besides HTTP."""
    names = ("request_id", "response_id", "principal")
    found: dict[str, Any] = {name: state[name] for name in names if name in state}
    if "call" in state:
        jobs: list[Job] = state["call"].jobs
        found["prompt_tokens"] = sum(len(job.plan.prompt_ids) for job in jobs)
        found["generated_tokens"] = sum(len(job.progress.token_ids) for job in jobs)
    return found
