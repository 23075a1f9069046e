"""Two tools in the forms of OpenAI's two APIs."""

from __future__ import annotations

from typing import Any

_FUNCTIONS: list[Any] = [
    {
        "name": name,
        "description": "a tool",
        "parameters": {"type": "object", "properties": {"where": {"type": "string", "maxLength": 3}}},
        "strict": False,
    }
    for name in ("look", "wait")
]
TOOLS: list[Any] = [{"type": "function", **function} for function in _FUNCTIONS]
CHAT_TOOLS: list[Any] = [{"type": "function", "function": function} for function in _FUNCTIONS]
