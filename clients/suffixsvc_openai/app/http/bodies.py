"""Bodies of requests: read with a limit of size and time, and validated."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from suffixsvc_openai.protocol.errors import ApiError, of_validation

#: bytes of a body
MAX_BODY_BYTES: Final = 16 << 20
#: bytes of a larger body that are read and discarded, so that its sender can read the answer
_DISCARDED_BYTES: Final = 128 << 20
#: seconds in which a body must arrive
BODY_SECONDS: Final = 60.0

B = TypeVar("B", bound=BaseModel)


async def read_body(request: Request, kind: type[B]) -> B:
    """Read a body and validate it.

    Args:
        request: the request.
        kind: model of the body.

    Raises:
        ApiError: 400, 408 or 413.
        starlette.requests.ClientDisconnect: the client has gone.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS):
            data = await _read(request)
    except TimeoutError:
        raise ApiError(
            HTTPStatus.REQUEST_TIMEOUT,
            f"the body must arrive within {BODY_SECONDS:g} seconds",
            code="request_timeout",
        ) from None
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise of_validation(error) from None


async def _read(request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size <= MAX_BODY_BYTES:
            parts.append(part)
        else:
            parts.clear()
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
    return b"".join(parts)
