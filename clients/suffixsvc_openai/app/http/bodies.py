"""Bodies of requests: received with limits of size, time and memory, parsed and validated."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from suffixsvc_openai.app.http.body_memory import SHORT_BODY_BYTES, HeldBody
from suffixsvc_openai.protocol.errors import ApiError, invalid, of_validation, overloaded, path_of
from suffixsvc_openai.protocol.json_values import count_values, non_finite, parsed_bytes

#: bytes of a body
MAX_BODY_BYTES: Final = 16 << 20
#: bytes of a body that is refused which are read and discarded, so that its sender can read the answer
_DISCARDED_BYTES: Final = 128 << 20
#: seconds in which a body must arrive
BODY_SECONDS: Final = 60.0
#: values of a body: more than MAX_MESSAGES messages have, and half a second to parse
MAX_VALUES: Final = 1 << 18

B = TypeVar("B", bound=BaseModel)


async def read_body(request: Request, kind: type[B], body: HeldBody) -> B:
    """Read a body and validate it, a long one in a thread.

    Args:
        request: the request.
        kind: model of the body.
        body: holds it; the caller drops it once what was read is not needed any more.

    Raises:
        ApiError: 400, 408, 413 or 503.
        starlette.requests.ClientDisconnect: the client has gone.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS):
            await _receive(request, body)
    except TimeoutError:
        raise ApiError(
            HTTPStatus.REQUEST_TIMEOUT,
            f"the body must arrive within {BODY_SECONDS:g} seconds",
            code="request_timeout",
        ) from None
    if len(body.data) <= SHORT_BODY_BYTES:
        _require_values(body, *_measured(body.data))
        found = _validated(body.data, kind)
    else:
        async with body.parsing:
            _require_values(body, *await asyncio.to_thread(_measured, body.data))
            found = await asyncio.to_thread(_validated, body.data, kind)
    body.parsed()
    return found


def _measured(data: bytearray) -> tuple[int, int]:
    """Return the number of values of a body, and the bytes that they take once they are parsed."""
    values = count_values(data, MAX_VALUES)
    return values, parsed_bytes(data, values)


def _require_values(body: HeldBody, values: int, size: int) -> None:
    """Raise ApiError unless a body has not too many values, and there is memory for them."""
    if values > MAX_VALUES:
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            f"the body must have at most {MAX_VALUES} commas and opening brackets outside of strings",
            remedy="Send prompts as text, or in several requests.",
        )
    if not body.add_parsed(size):
        raise overloaded()


async def _receive(request: Request, body: HeldBody) -> None:
    size, fits = 0, True
    async for part in request.stream():
        size += len(part)
        fits = fits and size <= MAX_BODY_BYTES and body.add(part)
        if not fits:
            body.drop()
        if size > _DISCARDED_BYTES:
            break
    if size > MAX_BODY_BYTES:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "the body is too large",
            code="request_too_large",
            expected=f"at most {MAX_BODY_BYTES} bytes",
            got=f"{size} bytes or more",
        )
    if not fits:
        raise overloaded()


def _validated(data: bytearray, kind: type[B]) -> B:
    try:
        found = kind.model_validate_json(data)
    except ValidationError as error:
        raise of_validation(error) from None
    path = non_finite(found)
    if path is not None:
        raise invalid(path_of(path), "be a finite number: JSON has no other")
    return found
