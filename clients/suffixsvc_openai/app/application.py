"""The FastAPI application: routes, and errors in OpenAI's form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from suffixsvc.errors import SuffixError
from suffixsvc_openai.app.completions.chat import chat_completions
from suffixsvc_openai.app.completions.text import completions
from suffixsvc_openai.app.http.request_ids import RequestIds
from suffixsvc_openai.app.http.request_log import RequestLog
from suffixsvc_openai.app.http.streaming import ClientGone
from suffixsvc_openai.app.live import live_events, live_page
from suffixsvc_openai.app.responses.create import create_response
from suffixsvc_openai.app.responses.stored import delete_response, get_response, list_input_items
from suffixsvc_openai.app.service import Service
from suffixsvc_openai.protocol.errors import ApiError, of_exception

_log = structlog.get_logger(__name__)

Handler = Callable[[Service, Request], Awaitable[Response]]


def create_application(service: Service) -> ASGIApp:
    """Return the application that serves ``service``; the caller closes its engine."""
    app = FastAPI(title="suffixsvc", docs_url=None, redoc_url=None, openapi_url=None)

    def add(method: str, path: str, handler: Handler) -> None:
        async def route(request: Request) -> Response:
            return await handler(service, request)

        app.add_api_route(path, route, methods=[method], response_model=None, name=path)

    add("GET", "/", live_page)
    add("GET", "/live", live_events)
    add("GET", "/health", _health)
    add("GET", "/metrics", _metrics)
    add("GET", "/v1/models", _models)
    add("GET", "/v1/models/{name:path}", _model)
    add("POST", "/v1/completions", completions)
    add("POST", "/v1/chat/completions", chat_completions)
    add("POST", "/v1/responses", create_response)
    add("POST", "/v1/responses/compact", _not_served)  # else it were an id with another method
    add("GET", "/v1/responses/{id}", get_response)
    add("DELETE", "/v1/responses/{id}", delete_response)
    add("GET", "/v1/responses/{id}/input_items", list_input_items)
    for kind in (ApiError, SuffixError, Exception):
        app.add_exception_handler(kind, partial(_on_error, service))
    app.add_exception_handler(HTTPException, partial(_on_http_error, service))
    for gone in (ClientGone, ClientDisconnect):
        app.add_exception_handler(gone, _on_gone)
    # around the whole of it: the middleware of an application does not see its responses to defects
    return RequestIds(RequestLog(app))


async def _health(service: Service, _request: Request) -> Response:
    if service.draining:
        return JSONResponse({"status": "stopping"}, HTTPStatus.SERVICE_UNAVAILABLE)
    reason = service.engine.failure
    if reason is not None:
        return JSONResponse({"status": "failed", "reason": reason}, HTTPStatus.SERVICE_UNAVAILABLE)
    return JSONResponse({"status": "ok"})


async def _metrics(service: Service, request: Request) -> Response:
    service.authentication.require_all(service.sender(request), "the metrics")
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


async def _models(service: Service, request: Request) -> Response:
    service.principal(request)
    return JSONResponse({"object": "list", "data": [service.describe_model()]})


async def _model(service: Service, request: Request) -> Response:
    service.principal(request)
    service.require_model(request.path_params["name"])
    return JSONResponse(service.describe_model())


async def _not_served(_service: Service, _request: Request) -> Response:
    raise HTTPException(HTTPStatus.NOT_FOUND)


async def _on_error(service: Service, _request: Request, error: Exception) -> Response:
    found = of_exception(error)
    service.metrics.refused(found)
    if found.status == HTTPStatus.INTERNAL_SERVER_ERROR and isinstance(error, SuffixError):
        _log.error("a request failed", error=repr(error))  # others are logged with their traceback
    return JSONResponse(found.body, found.status, headers=found.headers)


async def _on_http_error(service: Service, request: Request, error: Exception) -> Response:
    """An unknown URL, or a method that it does not have."""
    status, headers = HTTPStatus.NOT_FOUND, None
    if isinstance(error, HTTPException):
        status, headers = HTTPStatus(error.status_code), error.headers
    path = f"{request.method} {request.url.path}"[:200]
    text = "this URL does not exist" if status == HTTPStatus.NOT_FOUND else status.phrase
    remedy = None if request.url.path.startswith("/v1/") else "The paths of the API begin with /v1/."
    found = ApiError(status, f"{text}: {path}", remedy=remedy)
    service.metrics.refused(found)
    return JSONResponse(found.body, status, headers=headers)


async def _on_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # nginx's status for it; nothing is sent
