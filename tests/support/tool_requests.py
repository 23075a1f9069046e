"""Tools and messages of requests in tests."""

from __future__ import annotations

from typing import Any

ASK: Any = [{"role": "user", "content": "What is the weather in Rome?"}]


def function(name: str, parameters: dict[str, Any] | None = None) -> Any:
    """Definition of a tool."""
    given = {"name": name, "description": f"Function {name}."}
    return {
        "type": "function",
        "function": given if parameters is None else {**given, "parameters": parameters},
    }


def named(name: str) -> Any:
    """Reference to a tool in ``tool_choice``."""
    return {"type": "function", "function": {"name": name}}


WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS: Any = [function("get_weather", WEATHER), function("now")]
