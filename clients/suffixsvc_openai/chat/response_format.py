"""``response_format`` of the API as the structured-output value that binds the answer.

    {"type": "text"}                                                       None
    {"type": "json_object"}                                                JsonObject()
    {"type": "json_schema", "json_schema": {"name", "schema", "strict"}}   JsonSchema(schema, strict)

Without ``strict`` a schema binds the answer too, but keywords that no grammar enforces are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from suffixsvc.errors import GrammarError
from suffixsvc_driver.sampling.structured import JsonObject, JsonSchema
from suffixsvc_openai.protocol.errors import ApiError, invalid

_PARAM: Final = "response_format"
#: as OpenAI has it
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

Format = JsonObject | JsonSchema


def format_value(value: Mapping[str, Any] | None) -> Format | None:
    """Return the value; None for text. Raises ApiError."""
    kind = "text" if value is None else value.get("type")
    if value is None or kind == "text":
        return None
    if kind == "json_object":
        return JsonObject()
    if kind != "json_schema":
        raise invalid(f"{_PARAM}.type", 'be "text", "json_object" or "json_schema"', got=repr(kind)[:80])
    param = f"{_PARAM}.json_schema"
    given = value.get(kind)
    if not isinstance(given, Mapping):
        raise invalid(param, "be an object", got=type(given).__name__)
    name, schema, strict = given.get("name"), given.get("schema"), given.get("strict")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        condition = "have 1 to 64 letters, digits, underscores or hyphens"
        raise invalid(f"{param}.name", condition, got=repr(name)[:80])
    if strict is not None and not isinstance(strict, bool):
        raise invalid(f"{param}.strict", "be a boolean", got=repr(strict)[:80])
    if schema is None:
        return JsonObject()
    if not isinstance(schema, Mapping):
        raise invalid(f"{param}.schema", "be an object", got=type(schema).__name__)
    try:
        return JsonSchema(schema, strict=bool(strict))
    except GrammarError as error:
        raise unusable(error, f"{param}.schema") from None


def unusable(error: GrammarError, param: str) -> ApiError:
    """Return the error for a schema that cannot bind an answer."""
    return ApiError(HTTPStatus.BAD_REQUEST, f"{param}: {error}", param=param)
