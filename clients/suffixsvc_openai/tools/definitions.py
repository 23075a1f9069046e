"""Definitions of the tools of a request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from suffixsvc.errors import InvalidInputError
from suffixsvc_openai.tools.schema_check import SchemaChecks

#: as OpenAI has it; dots are common names of MCP servers
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class ToolError(InvalidInputError):
    """A definition of a tool is invalid, or a name is that of no tool.

    Attributes:
        param: the part of the request, as ``tools[1].function.name``.
    """

    param = ""

    def __init__(self, param: str, condition: str, **details: Any) -> None:
        self.param = param
        super().__init__(f"{param} must {condition}", **details)


@dataclass(frozen=True, slots=True)
class ToolSet:
    """The tools of a request.

    Attributes:
        schemas: JSON schema of the arguments of each tool, by name.
    """

    schemas: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]]) -> Self:
        """Read the definitions of the API: ``{"type": "function", "function": {"name", "parameters"}}``.

        Raises:
            ToolError: a name is missing, malformed or given twice; the parameters are not a schema
                of an object.
        """
        schemas: dict[str, Mapping[str, Any]] = {}
        for i, tool in enumerate(tools):
            function = tool.get("function") if isinstance(tool, Mapping) else None
            if isinstance(tool, Mapping) and tool.get("type", "function") != "function":
                raise ToolError(f"tools[{i}].type", 'be "function"', got=repr(tool["type"])[:60])
            if not isinstance(function, Mapping):
                raise ToolError(f"tools[{i}].function", "be an object", got=str(function)[:60])
            name, schema = function.get("name"), function.get("parameters")
            param = f"tools[{i}].function.name"
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                condition = "have 1 to 64 letters, digits, underscores, hyphens or dots"
                raise ToolError(param, condition, got=repr(name)[:80])
            if name in schemas:
                raise ToolError(param, "be given once", got=repr(name))
            if schema is None:  # no arguments
                schema = {"type": "object", "properties": {}, "additionalProperties": False}
            if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
                condition = "be a JSON schema of an object"
                raise ToolError(f"tools[{i}].function.parameters", condition, got=str(schema)[:60])
            schemas[name] = schema
        return cls(schemas)

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order of the request."""
        return tuple(self.schemas)

    def only(self, name: str, param: str = "tool_choice") -> ToolSet:
        """Return the set of one tool.

        Args:
            name: its name.
            param: field that names it, for the error.

        Raises:
            ToolError: there is no such tool.
        """
        if name not in self.schemas:
            known = ", ".join(self.schemas) or "no tool"
            raise ToolError(param, f"be one of: {known}"[:200], got=repr(name)[:80])
        return ToolSet({name: self.schemas[name]})

    def __contains__(self, name: object) -> bool:
        return name in self.schemas

    def __len__(self) -> int:
        return len(self.schemas)

    def fits(self, name: str, arguments: Mapping[str, Any], checks: SchemaChecks) -> bool:
        """Whether arguments fit the schema of a known tool, in one of the checks of an answer."""
        return checks.fits(arguments, self.schemas[name])
