"""Errors in the form of OpenAI's API: a status, and a body with message, type, param and code.

=========  =================================================  =======================================
status     when                                               code
=========  =================================================  =======================================
400        an invalid request; ``param`` names the field      context_length_exceeded, or null
400        an argument beyond a limit of the engine           limit_exceeded
401        a missing, unknown, revoked or expired token       invalid_api_key
403        a right that the principal does not have           permission_denied
403        a browser's page that is not of this machine       origin_not_allowed
404        an unknown model or URL                            model_not_found, or null
408        the body did not arrive in time                    request_timeout
413        the body is too large                              request_too_large
429        too many wait or are prepared; has Retry-After     rate_limit_exceeded
429        too many live pages are open                       too_many_viewers
500        a defect, or the model failed                      null
503        the server is stopping; has Retry-After            server_stopping
503        no memory for the body; has Retry-After            server_overloaded
503        too many connections; has Retry-After              too_many_connections
=========  =================================================  =======================================
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterable
from concurrent.futures import CancelledError
from http import HTTPStatus
from typing import Any, Final

from pydantic import ValidationError

from suffixsvc.errors import (
    AccessError,
    InvalidInputError,
    LimitExceededError,
    ServiceUnavailableError,
    SuffixError,
    TokenizerMismatchError,
    UnauthenticatedError,
    UnknownNamespaceError,
)
from suffixsvc_driver.decode.requests import QueueFullError

#: seconds after which a refused request may be sent again, at least and at most; OpenAI's clients wait that
#: long, and ignore more than 60
RETRY_SECONDS: Final = 1
_MAX_RETRY_SECONDS: Final = 60
#: what pydantic's messages put before a condition, and the number of elements that it repeats after one
_CONDITION: Final = re.compile(r"^(?:(?:Input|String|List|Dictionary) should|Value error,) ")
_COUNTED: Final = re.compile(r" after validation, not (?:more than )?\d+$")
#: characters of an invalid value that an error repeats
_SHOWN: Final = 80


class ApiError(SuffixError):
    """An error that is sent to the client.

    Args:
        status: HTTP status.
        message: see :class:`~suffixsvc.errors.SuffixError`, as are ``expected``, ``got`` and ``remedy``.
        param: the invalid field, as a path (``messages[0].role``).
        code: see the module.
    """

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        expected: object = None,
        got: object = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, expected=expected, got=got, remedy=remedy)
        self.status, self.param, self.code = status, param, code
        self.retry_seconds = RETRY_SECONDS

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body."""
        kind = "server_error" if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            kind = "requests"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response."""
        again = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
        if self.status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE):
            return {"Connection": "close"}  # or the server reads the rest of the body, however long it is
        if self.status == HTTPStatus.UNAUTHORIZED:
            return {"WWW-Authenticate": "Bearer"}
        return {"Retry-After": str(self.retry_seconds)} if self.status in again else {}


def invalid(param: str, condition: str, *, got: object = None, remedy: str | None = None) -> ApiError:
    """Return the error for an invalid field."""
    return ApiError(HTTPStatus.BAD_REQUEST, f"{param} must {condition}", param=param, got=got, remedy=remedy)


def unsupported(param: str, remedy: str | None = None) -> ApiError:
    """Return the error for a field that this server does not support."""
    return ApiError(
        HTTPStatus.BAD_REQUEST, f"{param} is not supported by this server", param=param, remedy=remedy
    )


def of_validation(error: ValidationError, at: str = "") -> ApiError:
    """Return the first error of an invalid body.

    Args:
        error: of the validation.
        at: path of what was validated; "" for the body.
    """
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return ApiError(HTTPStatus.BAD_REQUEST, f"the body must be JSON: {first['msg']}")
    param = path_of(first["loc"], at)
    text = str(first["msg"])
    shown = _repr(first["input"])
    if first["type"] == "missing":
        return ApiError(HTTPStatus.BAD_REQUEST, f"{param} must be given", param=param)
    if first["type"] == "extra_forbidden":
        return ApiError(HTTPStatus.BAD_REQUEST, f"{param} must be a known option", param=param)
    name = param or "the body"
    text = _CONDITION.sub(lambda _: f"{name} must ", _COUNTED.sub("", text))
    text = text if name in text else f"{name}: {text}"
    return ApiError(HTTPStatus.BAD_REQUEST, text, param=param or None, got=shown)


def _repr(value: Any) -> str:
    """Return the beginning of a value's repr, without making all of it."""
    short = reprlib.Repr()
    short.maxstring = short.maxlong = short.maxother = _SHOWN
    return short.repr(value)[:_SHOWN]


def path_of(parts: Iterable[int | str], at: str = "") -> str:
    """Return the path of a field, as ``messages[0].role``; ``at`` is that of what the parts lead into."""
    named = (part for part in parts if part != "[key]")  # pydantic's mark of a key of a mapping
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in named)
    return (at + path).removeprefix(".")


#: errors of a request -> status and code
_STATUSES: Final = (
    (UnauthenticatedError, HTTPStatus.UNAUTHORIZED, "invalid_api_key"),
    (AccessError, HTTPStatus.FORBIDDEN, "permission_denied"),
    (LimitExceededError, HTTPStatus.BAD_REQUEST, "limit_exceeded"),
    ((InvalidInputError, UnknownNamespaceError, TokenizerMismatchError), HTTPStatus.BAD_REQUEST, None),
)


def of_exception(error: BaseException) -> ApiError:
    """Return the error that a client receives for an exception of the engine.

    Exceptions that are not errors of the request become a 500 without details, which the caller logs.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, (ServiceUnavailableError, CancelledError)):
        return stopping()
    for kinds, status, code in _STATUSES:
        if isinstance(error, kinds):
            param: str | None = getattr(error, "param", None)  # of messages and tools
            return ApiError(status, str(error), param=param, code=code)
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed to process the request")


def queue_full(error: QueueFullError) -> ApiError:
    """Return the error for a request that found the queue full."""
    found = ApiError(HTTPStatus.TOO_MANY_REQUESTS, str(error), code="rate_limit_exceeded")
    found.retry_seconds = min(_MAX_RETRY_SECONDS, max(RETRY_SECONDS, math.ceil(error.retry_seconds)))
    return found


def stopping() -> ApiError:
    """Return the error for a request that a stopping server refused or ended."""
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "the server is stopping",
        code="server_stopping",
        remedy="Send the request again to its successor.",
    )


def overloaded() -> ApiError:
    """Return the error for a request whose body found no memory."""
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "the server receives too many large bodies at once",
        code="server_overloaded",
        remedy="Send the request again after the time in Retry-After.",
    )


def too_many_connections(limit: int) -> ApiError:
    """Return the error for a connection beyond the limit."""
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "the server has too many open connections",
        code="too_many_connections",
        expected=f"at most {limit}",
        remedy="Close idle ones, and try again after the time in Retry-After.",
    )
