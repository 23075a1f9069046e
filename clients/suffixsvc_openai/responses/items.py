"""Items of ``input`` as messages of chat completions.

    {"type": "message", "role": "user", "content": "a"}            {"role": "user", "content": "a"}
    {"type": "message", "role": "assistant", "content": "b"},  \\   {"role": "assistant", "content": "b",
    {"type": "function_call", "name": "f", "call_id": "c", ..} /    "tool_calls": [{"id": "c", ..}]}
    {"type": "function_call_output", "call_id": "c", ..}           {"role": "tool", "tool_call_id": "c", ..}

What the model wrote in one turn is one message. Items of type reasoning are dropped, as chat templates drop
the reasoning of earlier answers.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from suffixsvc_openai.protocol.content import PartError, joined_text
from suffixsvc_openai.protocol.errors import ApiError, invalid, of_validation
from suffixsvc_openai.protocol.generation_request import Body

_TEXT_PARTS: Final = ("input_text", "output_text", "text", "refusal")
_TEXT_ONLY: Final = "This server reads text only."


class Message(Body):
    """A message. ``content`` is a text, or a list of parts."""

    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Any


class FunctionCall(Body):
    """A call that the model wrote."""

    id: str | None = None
    call_id: str
    name: str
    arguments: str
    status: str | None = None


class FunctionCallOutput(Body):
    """The result of a call: a text, or a list of parts."""

    id: str | None = None
    call_id: str
    output: Any


class ItemReference(Body):
    """An item of a stored response, or of its input."""

    id: str = Field(min_length=1)


_KINDS: Final[Mapping[str, type[Body]]] = {
    "message": Message,
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
    "item_reference": ItemReference,
}
_PREFIXES: Final = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def new_id(prefix: str) -> str:
    """Return a random id: ``msg_..``."""
    return f"{prefix}_{secrets.token_hex(24)}"


def checked_items(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Check items of a request; return them with their ids and types.

    Raises:
        ApiError: 400; ``param`` names the part of an item, as ``input[0].content[1]``.
    """
    return [_checked(item, f"input[{i}]") for i, item in enumerate(items)]


def _checked(item: Mapping[str, Any], param: str) -> dict[str, Any]:
    kind = item.get("type", "message" if "role" in item else None)
    if kind == "reasoning":
        return _named(item, kind)
    model = _KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        expected = f"be one of {', '.join(_KINDS)}"
        raise invalid(f"{param}.type", expected, got=repr(kind)[:80])
    try:
        found = model.model_validate(item)
    except ValidationError as error:
        raise of_validation(error, param) from None
    match found:
        case Message():
            content = _parts(found.content, f"{param}.content", found.role == "assistant")
            return {**_named(item, kind), "content": content, "status": "completed"}
        case FunctionCall() if found.status != "incomplete":
            _check_arguments(found.arguments, f"{param}.arguments")
        case FunctionCallOutput():
            text_of(found.output, f"{param}.output")
    return _named(item, kind)


def _named(item: Mapping[str, Any], kind: str) -> dict[str, Any]:
    given = item.get("id")
    if not isinstance(given, str) or not given:
        given = new_id(_PREFIXES[kind])
    return {**item, "id": given, "type": kind}


def _parts(content: Any, param: str, assistant: bool) -> list[dict[str, Any]]:
    """Return a content as parts, as OpenAI lists the items of an input."""
    text_of(content, param)
    if not isinstance(content, str):
        return list(content)
    if assistant:
        return [{"type": "output_text", "text": content, "annotations": []}]
    return [{"type": "input_text", "text": content}]


def text_of(content: Any, param: str) -> str:
    """Return the text of a content: a string, or parts of text, which are joined.

    Raises:
        ApiError: 400 for another type, or a part that is not text.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(param, "be a string or a list of parts", got=repr(content)[:80])
    try:
        return joined_text(content, _TEXT_PARTS)
    except PartError as error:
        at, got = f"{param}[{error.index}]", repr(error.got)[:80]
        if error.field:
            raise invalid(f"{at}.{error.field}", "be a string", got=got) from None
        condition = "be a part of type input_text or output_text"
        raise invalid(at, condition, got=got, remedy=_TEXT_ONLY) from None


def _check_arguments(arguments: str, param: str) -> None:
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError) as error:
        raise invalid(param, "be JSON", got=str(error)[:80]) from None
    if not isinstance(value, dict):
        raise invalid(param, "be a JSON object", got=arguments[:80])


def messages_of(items: Iterable[Mapping[str, Any]], instructions: str | None = None) -> list[dict[str, Any]]:
    """Return the messages of checked items without references, the instructions first.

    Raises:
        ApiError: 400: a result without its call, or a call without its result.
    """
    kept = [item for item in items if item["type"] != "reasoning" and not _is_cut(item)]
    _check_pairs(kept)
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    follows: str | None = None  # type of the item before
    for item in kept:
        kind = item["type"]
        if kind == "message":
            messages.append({"role": item["role"], "content": text_of(item["content"], "input")})
        elif kind == "function_call":
            calls = _turn_of(messages, follows).setdefault("tool_calls", [])
            function = {"name": item["name"], "arguments": item["arguments"]}
            calls.append({"id": item["call_id"], "type": "function", "function": function})
        else:
            content = text_of(item["output"], "input")
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        follows = kind
    return messages


def _turn_of(messages: list[dict[str, Any]], follows: str | None) -> dict[str, Any]:
    """Return the assistant's message to which a call belongs."""
    if follows in ("message", "function_call") and messages[-1]["role"] == "assistant":
        return messages[-1]
    messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _is_cut(item: Mapping[str, Any]) -> bool:
    """Whether an item is a call whose arguments end early: no client can answer it."""
    return item["type"] == "function_call" and item.get("status") == "incomplete"


def _check_pairs(items: Sequence[Mapping[str, Any]]) -> None:
    calls = [item["call_id"] for item in items if item["type"] == "function_call"]
    results = [item["call_id"] for item in items if item["type"] == "function_call_output"]
    for found, others, text in (
        (results, set(calls), "No tool call found for function call output with call_id"),
        (calls, set(results), "No tool output found for function call"),
    ):
        for call_id in found:
            if call_id not in others:
                raise ApiError(HTTPStatus.BAD_REQUEST, f"{text} {call_id[:80]}.", param="input")
