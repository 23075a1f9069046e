"""Conversion of chat messages to the text that the model generated.

API servers parse tool calls and reasoning out of the generated text. This module puts them back in the format
of the model family's chat template, so that a cache built from a log of API answers has the tokens that the
model emits.

    {"reasoning_content": "r", "content": "c", "tool_calls": [..]}
        ->  <think>\nr\n</think>\n\nc\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>

Arguments that are strings in the log are copied byte for byte: they are the model's own JSON. Null content is
empty. Text parts of a content are joined, images and audio are ignored. A refusal is used if there is no
content.

Mistral's tool calls follow mistral-common 1.13.1 (``tokens/tokenizers/instruct.py``,
https://mistralai.github.io/mistral-common/code_reference/mistral_common/tokens/tokenizers/instruct):
versions 2 to 7 have one list of calls after the token [TOOL_CALLS], after which SentencePiece adds a space
and Tekken none; version 13 has each call as [TOOL_CALLS]name[ARGS]{..}, without an id. With Tekken the calls
follow the text directly.
"""

from __future__ import annotations

import json
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs.base.options import ToolFormat

#: types of content parts that are calls of tools (Anthropic) and reasoning (Anthropic, Mistral)
_TOOL_PARTS: Final = ("tool_use", "tool_call")
_THINKING_PARTS: Final = ("thinking", "reasoning")
#: formats whose calls follow the text without a newline
_DIRECT: Final = (ToolFormat.MISTRAL_TEKKEN, ToolFormat.MISTRAL_V13)


def completion_text(message: dict[str, Any], tools: ToolFormat, reasoning: bool) -> str:
    """Return the text that the model generated for a message of the assistant.

    Args:
        message: the message.
        tools: format of tool calls.
        reasoning: include the reasoning, in <think> tags.

    Raises:
        InvalidInputError: the format of the message is not known.
    """
    content = message.get("content")
    text = content_text(content) or _string(message.get("refusal"), "refusal")
    calls = "" if tools is ToolFormat.NONE else _calls_text(_tool_calls(message), tools)
    between = "" if tools in _DIRECT else "\n"
    body = f"{text}{between}{calls}" if text and calls else text or calls
    thoughts = _thoughts(message) if reasoning else ""
    return f"<think>\n{thoughts}\n</think>\n\n{body}" if thoughts else body


def content_text(content: Any) -> str:
    """Return the text of a content: a string, null, or parts. InvalidInputError: another type."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        raise InvalidInputError(
            "the content of a message must be a string, null or a list of parts",
            got=type(content).__name__,
        )
    return "".join(map(_part_text, content))


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or part.get("type") in _THINKING_PARTS:
        return ""
    for key in ("text", "refusal"):
        text = part.get(key)
        if isinstance(text, str):
            return text
    return ""


def _thoughts(message: dict[str, Any]) -> str:
    for key in ("reasoning_content", "reasoning", "thinking"):
        thoughts = message.get(key)
        if isinstance(thoughts, str) and thoughts:
            return thoughts
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return "".join(
        content_text(part.get("thinking", part.get("text")))
        for part in parts
        if isinstance(part, dict) and part.get("type") in _THINKING_PARTS
    )


def _tool_calls(message: dict[str, Any]) -> list[tuple[str, str]]:
    """(name, arguments as JSON text) of each call, in order."""
    calls = message.get("tool_calls")
    if calls is None:
        calls = [message["function_call"]] if message.get("function_call") else []
    if not isinstance(calls, list):
        raise InvalidInputError("tool_calls must be a list", got=type(calls).__name__)
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    calls = calls + [part for part in parts if isinstance(part, dict) and part.get("type") in _TOOL_PARTS]
    return [_tool_call(call) for call in calls]


def _tool_call(call: Any) -> tuple[str, str]:
    inner = call
    if isinstance(call, dict):
        inner = call.get("function") or call.get("custom") or call
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise InvalidInputError("a tool call must have a name", got=str(call)[:80])
    arguments: Any = next(
        (inner[key] for key in ("arguments", "input", "parameters", "args") if inner.get(key) is not None), {}
    )
    # the input of a custom tool is text, not JSON
    if not isinstance(arguments, str) or inner is call.get("custom"):
        arguments = _dump(arguments)
    return inner["name"], arguments or "{}"


def _calls_text(calls: list[tuple[str, str]], tools: ToolFormat) -> str:
    if tools is ToolFormat.MISTRAL_V13:
        return "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in calls)
    key = "parameters" if tools is ToolFormat.LLAMA3 else "arguments"
    texts = [f'{{"name": {_dump(name)}, "{key}": {arguments}}}' for name, arguments in calls]
    if not texts:
        return ""
    match tools:
        case ToolFormat.HERMES:
            return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)
        case ToolFormat.LLAMA3:
            return "; ".join(texts)
        case ToolFormat.MISTRAL | ToolFormat.MISTRAL_TEKKEN:
            space = " " if tools is ToolFormat.MISTRAL else ""
            return f"[TOOL_CALLS]{space}[{', '.join(texts)}]"
        case _:
            return "\n".join(texts)


def _string(value: Any, name: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    raise InvalidInputError(f"{name} must be a string", got=type(value).__name__)


def _dump(value: Any) -> str:
    """JSON as chat templates write it: a space after commas and colons, non-ASCII characters unescaped."""
    return json.dumps(value, ensure_ascii=False)
