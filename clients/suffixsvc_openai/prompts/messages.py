"""Messages of the OpenAI API in the form that chat templates take.

    {"role": "assistant", "refusal": "no"}
        ->  {"role": "assistant", "content": "no", "refusal": "no"}
    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\\"x\\": 1}"}, ..}]}
        ->  {.., "content": None, "tool_calls": [{"function": {.., "arguments": {"x": 1}}, ..}]}

Templates differ in what they take (:class:`MessageForm`). NUL and unpaired surrogates become U+FFFD: the
first ends a text in C, the others have no UTF-8.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from suffixsvc.errors import InvalidInputError

#: what no text may have: see the module
_FORBIDDEN: Final = re.compile("[\0\ud800-\udfff]")
_MISTRAL_ID: Final = re.compile(r"[A-Za-z0-9]{9}")


class MessageError(InvalidInputError):
    """A message cannot be rendered.

    Attributes:
        param: the part of the request, as ``messages[1].content[0]``.
    """

    param = ""

    def __init__(self, param: str, condition: str, **details: Any) -> None:
        self.param = param
        super().__init__(f"{param} must {condition}", **details)


@dataclass(frozen=True, slots=True)
class MessageForm:
    """What a template takes.

    Attributes:
        developer: the role "developer"; otherwise such messages have the role "system".
        null_content: None as the content of a message with tool calls; otherwise it is "".
        mapped_arguments: arguments of calls as mappings; otherwise as JSON text.
        short_ids: ids of calls must have nine letters and digits (Mistral).
    """

    developer: bool = False
    null_content: bool = True
    mapped_arguments: bool = True
    short_ids: bool = False


def template_messages(messages: Sequence[Mapping[str, Any]], form: MessageForm) -> list[dict[str, Any]]:
    """Convert messages; fields that are not mentioned above are kept.

    Raises:
        MessageError: a message is no object, has no role, or content that is neither a text nor None;
            arguments of a call are not a JSON object.
    """
    return [_message(one, f"messages[{i}]", form) for i, one in enumerate(messages)]


def clean(value: Any) -> Any:
    """Replace NUL and unpaired surrogates in all texts of data of JSON. RecursionError: nested too deep."""
    if isinstance(value, str):
        return _FORBIDDEN.sub("\ufffd", value) if _FORBIDDEN.search(value) else value
    if isinstance(value, Mapping):
        return {clean(key): clean(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(one) for one in value]
    return value


def _message(given: Any, param: str, form: MessageForm) -> dict[str, Any]:
    if not isinstance(given, Mapping) or not isinstance(given.get("role"), str):
        raise MessageError(f"{param}.role", "be a string", got=str(given)[:60])
    try:
        message: dict[str, Any] = clean(given)
    except RecursionError:
        raise MessageError(param, "be nested less deep") from None
    if message["role"] == "developer" and not form.developer:
        message["role"] = "system"
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise MessageError(f"{param}.content", "be a string", got=type(content).__name__)
    if message.get("tool_calls") is None:  # null, as clients send it, is not a list
        message.pop("tool_calls", None)
    calls = message.get("tool_calls", [])
    if not isinstance(calls, list):
        raise MessageError(f"{param}.tool_calls", "be a list", got=type(calls).__name__)
    if calls:
        message["tool_calls"] = [_call(c, f"{param}.tool_calls[{k}]", form) for k, c in enumerate(calls)]
        message["content"] = content or (None if form.null_content else "")
    else:
        message.pop("tool_calls", None)
        message["content"] = content or str(message.get("refusal") or "")
    if form.short_ids and isinstance(message.get("tool_call_id"), str):
        message["tool_call_id"] = _short_id(message["tool_call_id"])
    return message


def _call(given: Any, param: str, form: MessageForm) -> dict[str, Any]:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise MessageError(f"{param}.function.name", "be a string", got=str(given)[:60])
    mapping = _arguments(function.get("arguments"), f"{param}.function.arguments")
    arguments = mapping if form.mapped_arguments else json.dumps(mapping, ensure_ascii=False)
    call = {**given, "type": "function", "function": {**function, "arguments": arguments}}
    if form.short_ids and isinstance(call.get("id"), str):
        call["id"] = _short_id(call["id"])
    return call


def _arguments(given: Any, param: str) -> dict[str, Any]:
    value = given
    if isinstance(given, str):
        try:
            value = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError) as error:
            raise MessageError(param, "be JSON", got=str(error)[:80]) from None
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise MessageError(param, "be a JSON object", got=str(value)[:60])
    try:
        return dict(clean(value))
    except RecursionError:
        raise MessageError(param, "be nested less deep") from None


def _short_id(given: str) -> str:
    """Return nine letters and digits, the same ones for the same id."""
    if _MISTRAL_ID.fullmatch(given):
        return given
    return hashlib.sha256(given.encode()).hexdigest()[:9]
