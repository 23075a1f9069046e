"""Conversion of logged prompts and responses (texts, token ids, messages, API objects) to text or ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from suffixsvc.errors import InvalidInputError, InvalidTokensError
from suffixsvc.types import TokenArray
from suffixsvc.values import as_token_array
from suffixsvc_caches.logs.base.json_text import parse_json
from suffixsvc_caches.logs.base.options import ReadOptions
from suffixsvc_caches.logs.calls.call import Content
from suffixsvc_caches.logs.calls.messages import completion_text, content_text
from suffixsvc_caches.logs.calls.prompts import PromptText
from suffixsvc_caches.logs.calls.response_items import as_messages, is_items


def unwrap_json(value: Any) -> Any:
    """Decode a string with the JSON of an API object, as exports have it.

    Other values are returned unchanged, including other JSON texts, such as structured outputs.
    """
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        inner = parse_json(value)
    except InvalidInputError:
        return value
    return inner if _is_api(inner) else value


def choices_of(value: Any) -> list[Any]:
    """Return the choices of an answer, for :func:`answer_content`; the answer itself if it has none."""
    if isinstance(value, dict) and isinstance(value.get("choices"), list):
        return list(value["choices"]) or [None]
    return [value]


def answer_content(value: Any, options: ReadOptions) -> Content:
    """Return the text or token ids that the model generated; "" if the request failed or there is no answer.

    Raises:
        InvalidInputError: the value is not a response.
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
    raise InvalidInputError("the response must be a string, token ids or a message", got=type(value).__name__)


def prompt_content(value: Any, options: ReadOptions) -> Content:
    """Return the prompt as text or token ids; "" if it is not known.

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
            return PromptText(options, messages).text()
        return "\n".join(one for one in value if isinstance(one, str))
    if isinstance(value, dict):
        return _request_prompt(value, options)
    return ""


def is_messages(value: Any) -> bool:
    """Whether a value is a list of chat messages."""
    return isinstance(value, list) and any(isinstance(one, dict) and "role" in one for one in value)


def _request_prompt(request: dict[str, Any], options: ReadOptions) -> Content:
    messages_or_text = next(
        (request[key] for key in ("messages", "input", "prompt") if request.get(key) is not None), ""
    )
    instructions = request.get("instructions", request.get("system"))
    if not instructions:
        return prompt_content(messages_or_text, options)
    # the system message is a separate field (OpenAI's Responses API, Anthropic)
    messages: list[Any] = [{"role": "system", "content": instructions}]
    if isinstance(messages_or_text, list):
        messages += as_messages(messages_or_text) if is_items(messages_or_text) else messages_or_text
    else:
        messages.append({"role": "user", "content": messages_or_text})
    return PromptText(options, messages).text()


def _is_ids(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return True
    return isinstance(value, list) and bool(value) and isinstance(value[0], int)


def _as_ids(value: Any, name: str) -> TokenArray:
    """Convert to token ids. InvalidTokensError: other numbers, or booleans, which numpy converts to ids."""
    ids = as_token_array(value, name)
    if isinstance(value, list) and ids.min() <= 1 and bool in map(type, value):
        raise InvalidTokensError(f"{name} must be token ids", got="true or false")
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
                "a list must have token ids or parts of a message",
                got=type(value[0]).__name__,
            )
        return content_text(value)
    turns = [one for one in value if isinstance(one, dict) and one.get("role") == "assistant"]
    return completion_text(turns[-1], options.tool_format, options.reasoning) if turns else ""


def _object_content(value: dict[str, Any], options: ReadOptions) -> Content:
    if not value or value.get("error"):
        return ""
    for key in ("choices", "message", "output", "body", "response"):  # envelopes of the APIs
        inner = value.get(key)
        if inner is not None and not (key == "message" and isinstance(inner, str)):  # of an error
            if key == "choices" and isinstance(inner, list):
                inner = inner[0] if inner else None
            return answer_content(inner, options)
    if "delta" in value:
        raise InvalidInputError(
            "the response must be complete",
            got="a chunk of a streamed answer",
            remedy="Join the chunks before they are logged.",
        )
    if any(key in value for key in ("content", "tool_calls", "function_call", "refusal")):
        return completion_text(value, options.tool_format, options.reasoning)
    if isinstance(value.get("text"), str):
        return str(value["text"])
    raise InvalidInputError(
        "the response must be an answer of a known API", got=f"an object with {', '.join(value)}"[:200]
    )
