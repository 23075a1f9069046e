"""Conversion of items of the OpenAI Responses API to chat messages.

reasoning, message, function_call, function_call  ->  one message of the assistant, since the model generated
                                                      them as one text
function_call_output                              ->  a message of the tool
"""

from __future__ import annotations

from typing import Any, Final

_CALLS: Final = ("function_call", "custom_tool_call")
_RESULTS: Final = ("function_call_output", "custom_tool_call_output")
_TYPES: Final = ("message", "reasoning", *_CALLS, *_RESULTS)


def is_items(value: list[Any]) -> bool:
    """Whether a list has items of the Responses API rather than plain messages."""
    return any(isinstance(item, dict) and item.get("type") in _TYPES for item in value)


def as_messages(items: list[Any]) -> list[dict[str, Any]]:
    """Convert items to chat messages; items of unknown types are skipped."""
    messages: list[dict[str, Any]] = []
    for item in items:
        if not isinstance(item, dict):
            continue
        kind = item.get("type", "message")
        if kind in _RESULTS:
            messages.append({"role": "tool", "content": item.get("output")})
        elif kind == "message" and item.get("role") != "assistant":
            messages.append({"role": item.get("role"), "content": item.get("content")})
        elif kind in _TYPES:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": [], "tool_calls": []})
            _append_item(messages[-1], kind, item)
    return messages


def _append_item(message: dict[str, Any], kind: str, item: dict[str, Any]) -> None:
    content = item.get("content")
    parts = content if isinstance(content, list) else [content]
    if kind in _CALLS:
        name = "custom" if kind == "custom_tool_call" else "function"
        message["tool_calls"].append({name: item})
    elif kind == "message":
        message["content"] += parts
    else:  # of reasoning the model generated the content, not the summaries
        message["content"] += [{**part, "type": "reasoning"} for part in parts if isinstance(part, dict)]
