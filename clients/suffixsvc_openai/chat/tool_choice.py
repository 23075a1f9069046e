"""Which tools a turn may or must call: ``tool_choice`` of the API.

"none" | "auto" | "required"
{"type": "function", "function": {"name": NAME}}
{"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required", "tools": [..]}}
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from suffixsvc_openai.tools.definitions import ToolError, ToolSet

_PARAM: Final = "tool_choice"


class ToolMode(enum.StrEnum):
    """Whether the model calls tools."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """A checked ``tool_choice``.

    Attributes:
        mode: whether the model calls tools.
        tools: those that it may call.
        named: the request named one function, which is called once.
    """

    mode: ToolMode
    tools: ToolSet
    named: bool = False

    @classmethod
    def of(cls, value: Any, tools: ToolSet) -> Self:
        """Read the value of a request; None is "auto" if there are tools.

        Raises:
            ToolError: a malformed value, an unknown tool, or a choice among no tools.
        """
        if value is None or (value == ToolMode.NONE and not tools):
            return cls(ToolMode.AUTO if value is None and tools else ToolMode.NONE, tools)
        if not tools:
            raise ToolError(_PARAM, "be left out of a request without tools", got=repr(value)[:80])
        if isinstance(value, str):
            return cls(_mode(value, _PARAM, ToolMode), tools)
        kind = value.get("type") if isinstance(value, Mapping) else None
        if kind == "function":
            param = f"{_PARAM}.function.name"
            return cls(ToolMode.REQUIRED, tools.only(_name(value, _PARAM), param), named=True)
        if kind == "allowed_tools":
            return cls._allowed(value.get(kind), tools)
        expected = 'be "none", "auto", "required", or an object of type "function" or "allowed_tools"'
        raise ToolError(_PARAM, expected, got=repr(value)[:80])

    @classmethod
    def _allowed(cls, value: Any, tools: ToolSet) -> Self:
        param = f"{_PARAM}.allowed_tools"
        listed = value.get("tools") if isinstance(value, Mapping) else None
        if not isinstance(listed, list) or not listed:
            raise ToolError(f"{param}.tools", "be a list of at least one tool", got=repr(listed)[:80])
        mode = _mode(value.get("mode"), f"{param}.mode", (ToolMode.AUTO, ToolMode.REQUIRED))
        chosen: dict[str, Mapping[str, Any]] = {}
        for i, tool in enumerate(listed):
            here = f"{param}.tools[{i}]"
            chosen.update(tools.only(_name(tool, here), f"{here}.function.name").schemas)
        return cls(mode, ToolSet(chosen))

    @property
    def binds(self) -> bool:
        """Whether a grammar binds the answer to calls."""
        return self.mode is ToolMode.REQUIRED


def _mode(value: Any, param: str, known: Any) -> ToolMode:
    if value not in tuple(known):
        names = ", ".join(f'"{mode}"' for mode in known)
        raise ToolError(param, f"be one of {names}", got=repr(value)[:80])
    return ToolMode(value)


def _name(value: Any, param: str) -> str:
    function = value.get("function") if isinstance(value, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise ToolError(f"{param}.function.name", "be a string", got=repr(name)[:80])
    return name
