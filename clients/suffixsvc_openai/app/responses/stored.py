"""``GET`` and ``DELETE /v1/responses/ID``, ``GET /v1/responses/ID/input_items``."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from suffixsvc_openai.app.http.body_memory import SHORT_BODY_BYTES
from suffixsvc_openai.app.service import Service
from suffixsvc_openai.protocol.errors import ApiError, invalid, of_validation, unsupported
from suffixsvc_openai.responses.stored import MissingResponseError, StoredResponse

_PAGE: Final = 20
_MAX_PAGE: Final = 100


class _Page(BaseModel):
    """Query of a list."""

    model_config = ConfigDict(extra="ignore")

    limit: Annotated[int, Field(ge=1, le=_MAX_PAGE)] = _PAGE
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


async def get_response(service: Service, request: Request) -> Response:
    """Return a stored response. Raises ApiError: 400, 401, 403 or 404."""
    principal = service.principal(request)
    if request.query_params.get("stream", "false") not in ("", "false"):
        raise unsupported("stream", "Only POST /v1/responses streams.")
    try:
        stored = service.responses.get(principal, request.path_params["id"])
    except MissingResponseError as error:
        raise _not_found(error) from None
    return Response(stored.response, media_type="application/json")


async def delete_response(service: Service, request: Request) -> Response:
    """Delete a stored response. Raises ApiError: 401, 403 or 404."""
    principal = service.principal(request)
    found = request.path_params["id"]
    try:
        service.responses.delete(principal, found)
    except MissingResponseError as error:
        raise _not_found(error) from None
    return JSONResponse({"id": found, "object": "response", "deleted": True})


async def list_input_items(service: Service, request: Request) -> Response:
    """Return a page of the input items of a stored response, without those of the responses before it.

    Raises:
        ApiError: 400, 401, 403 or 404.
    """
    principal = service.principal(request)
    try:
        page = _Page.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise of_validation(error) from None
    try:
        stored = service.responses.get(principal, request.path_params["id"])
    except MissingResponseError as error:
        raise _not_found(error) from None
    if len(stored.input_items) <= SHORT_BODY_BYTES:
        return _listed(stored, page)
    return await asyncio.to_thread(_listed, stored, page)  # other answers do not wait meanwhile


def _listed(stored: StoredResponse, page: _Page) -> Response:
    items = stored.inputs
    if page.order == "desc":
        items.reverse()
    return JSONResponse(_page_of(items, page))


def _page_of(items: list[dict[str, Any]], page: _Page) -> dict[str, Any]:
    ids = [item["id"] for item in items]
    if page.after is not None and page.after not in ids:
        raise invalid("after", "be the id of an input item", got=repr(page.after)[:80])
    begin = 0 if page.after is None else ids.index(page.after) + 1
    end = begin + page.limit
    shown = ids[begin:end]
    return {
        "object": "list",
        "data": items[begin:end],
        "first_id": shown[0] if shown else None,
        "last_id": shown[-1] if shown else None,
        "has_more": end < len(items),
    }


def _not_found(error: MissingResponseError) -> ApiError:
    return ApiError(HTTPStatus.NOT_FOUND, f"Response with id '{error.id[:100]}' not found.")
