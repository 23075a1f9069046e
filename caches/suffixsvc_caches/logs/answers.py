"""Values that logs keep as what was asked and what was answered: texts, token ids, messages, API objects."""

from __future__ import annotations

from typing import Any

import numpy as np

from suffixsvc.errors import InvalidInputError, InvalidTokensError
from suffixsvc.types import TokenArray
from suffixsvc.values import as_token_array
from suffixsvc_caches.logs.call import Content
from suffixsvc_caches.logs.json_text import parse_json
from suffixsvc_caches.logs.messages import content_text, written_text
from suffixsvc_caches.logs.options import ReadOptions
from suffixsvc_caches.logs.prompts import render_messages
from suffixsvc_caches.logs.response_items import as_messages, is_items

__all__ = ["answer_content", "choices_of", "is_messages", "prompt_content", "unpacked"]


def unpacked(value: Any) -> Any:
    """Exports keep objects as JSON in a string: the object, where it is one of an API. A text that merely is
    JSON, such as a structured answer, stays a text."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        inner = parse_json(value)
    except InvalidInputError:
        return value
    return inner if _is_api(inner) else value


def choices_of(value: Any) -> list[Any]:
    """The alternatives in an answer, each for :func:`answer_content`; the answer itself where it has none."""
    if isinstance(value, dict) and isinstance(value.get("choices"), list):
        return list(value["choices"]) or [None]
    return [value]


def answer_content(value: Any, options: ReadOptions) -> Content:
    """What the model wrote; "" where the request failed or nothing came.

    Raises:
        InvalidInputError: the value is nothing that a model wrote.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if _is_ids(value):
        return _as_ids(value, options.response_field or "response_token_ids")
    if isinstance(value, list):
        return _list_text(value, options)
    if isinstance(value, dict):
        return _object_content(value, options)
    raise InvalidInputError(
        "the response is no text", expected="a string, token ids or a message", got=type(value).__name__
    )


def prompt_content(value: Any, options: ReadOptions) -> Content:
    """What the model was told; "" where that cannot be known.

    Raises:
        InvalidInputError: messages or token ids are malformed.
    """
    if isinstance(value, str):
        return value
    if _is_ids(value):
        return _as_ids(value, options.prompt_field or "prompt_token_ids")
    if isinstance(value, dict) and "role" in value:
        value = [value]
    if isinstance(value, list):
        messages = as_messages(value) if is_items(value) else value
        if is_messages(messages):
            return render_messages(messages, options)
        return "\n".join(one for one in value if isinstance(one, str))
    if isinstance(value, dict):
        return _request_prompt(value, options)
    return ""


def is_messages(value: Any) -> bool:
    """Whether a value is a list of chat messages."""
    return isinstance(value, list) and any(isinstance(one, dict) and "role" in one for one in value)


def _request_prompt(request: dict[str, Any], options: ReadOptions) -> Content:
    asked = next(
        (request[key] for key in ("messages", "input", "prompt") if request.get(key) is not None), ""
    )
    instructions = request.get("instructions", request.get("system"))
    if not instructions:
        return prompt_content(asked, options)
    # the system message stands apart (OpenAI's Responses API, Anthropic)
    messages: list[Any] = [{"role": "system", "content": instructions}]
    if isinstance(asked, list):
        messages += as_messages(asked) if is_items(asked) else asked
    else:
        messages.append({"role": "user", "content": asked})
    return render_messages(messages, options)


def _is_ids(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return True
    return isinstance(value, list) and bool(value) and isinstance(value[0], int)


def _as_ids(value: Any, name: str) -> TokenArray:
    """Token ids. InvalidTokensError: other numbers, or true and false, which numpy takes for 1 and 0."""
    ids = as_token_array(value, name)
    if isinstance(value, list) and ids.min() <= 1 and bool in map(type, value):
        raise InvalidTokensError(f"{name} must be token ids", expected="numbers", got="true or false")
    return ids


def _is_api(value: Any) -> bool:
    if isinstance(value, dict):
        return "choices" in value or "messages" in value or "role" in value
    return is_messages(value) or (isinstance(value, list) and is_items(value))


def _list_text(value: list[Any], options: ReadOptions) -> str:
    if is_items(value):
        value = as_messages(value)
    if not is_messages(value):
        if value and not any(isinstance(part, (str, dict)) for part in value):
            raise InvalidInputError(
                "a list is neither text nor token ids",
                expected="ids, or parts of a message",
                got=type(value[0]).__name__,
            )
        return content_text(value)
    turns = [one for one in value if isinstance(one, dict) and one.get("role") == "assistant"]
    return written_text(turns[-1], options.tool_format, options.reasoning) if turns else ""


def _object_content(value: dict[str, Any], options: ReadOptions) -> Content:
    if not value or value.get("error"):
        return ""
    for key in ("choices", "message", "output", "body", "response"):  # the envelopes of the APIs
        inner = value.get(key)
        if inner is not None and not (key == "message" and isinstance(inner, str)):  # that is an error's
            if key == "choices" and isinstance(inner, list):
                inner = inner[0] if inner else None
            return answer_content(inner, options)
    if "delta" in value:
        raise InvalidInputError(
            "a piece of a streamed answer",
            expected="whole answers",
            remedy="Join the pieces before they are logged.",
        )
    if any(key in value for key in ("content", "tool_calls", "function_call", "refusal")):
        return written_text(value, options.tool_format, options.reasoning)
    if isinstance(value.get("text"), str):
        return str(value["text"])
    raise InvalidInputError(
        "the response is no answer of a known API", got=f"an object with {', '.join(value)}"[:200]
    )
