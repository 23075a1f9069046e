"""Grammar that binds an answer to calls of tools, from its first token: Lark text for llguidance.

    start: "<tool_call>\\n" call "\\n</tool_call>" ("\\n<tool_call>\\n" call "\\n</tool_call>"){0,63}
    call: "{\\"name\\": \\"f\\", \\"arguments\\": " arguments_0 "}" | ...
    arguments_0: %json {...}

All but names and arguments is literal, as the model's chat template writes it, so that it can be drafted.
Syntax: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from suffixsvc_openai.tools.definitions import ToolSet
from suffixsvc_openai.tools.formats import SYNTAX, Syntax, ToolFormat

#: calls of one answer: small models repeat a call for as long as they may
_MAX_CALLS: Final = 64
#: JSON as templates write it (json.dumps): one way to write a value
_WHITESPACE: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
#: keywords beside which additional properties are left open: they may allow some
_OPEN: Final = (
    "additionalProperties", "unevaluatedProperties", "patternProperties", "allOf", "anyOf", "oneOf", "not",
    "if", "dependentSchemas", "$ref", "$dynamicRef",
)  # fmt: skip


def tool_grammar(
    tool_format: ToolFormat,
    tools: ToolSet,
    *,
    parallel: bool = True,
    marker_token: int | None = None,
) -> str:
    """Return the grammar of one or more calls.

    A schema that lists properties and says nothing about others allows the listed ones only.

    Args:
        tool_format: of the model.
        tools: the callable tools, at least one: :meth:`ToolSet.only` for a named choice.
        parallel: allow several calls.
        marker_token: id of the format's marker (``SYNTAX[tool_format].marker``), if that is a special token:
            llguidance matches those by their ids only.
    """
    syntax = SYNTAX[tool_format]
    marker = f"<[{marker_token}]>" if marker_token is not None and syntax.marker else _literal(syntax.marker)
    more = f"{{0,{_MAX_CALLS - 1}}}" if parallel else "{0}"
    match tool_format:
        case ToolFormat.HERMES:
            one = rf'{marker} "\n" call "\n</tool_call>"'
            start = _repeated(one, rf'"\n" {one}', more)
        case ToolFormat.LLAMA3:
            start = _repeated("call", '"; " call', more)
        case ToolFormat.MISTRAL:
            calls = _repeated("call", '", " call', more)
            start = f'{marker} "[" {calls} "]"'
        case ToolFormat.MISTRAL_V13:
            start = _repeated(f"{marker} call", f"{marker} call", more)
    lines = [f"start: {start}", "call: " + " | ".join(f"call_{i}" for i in range(len(tools)))]
    for i, name in enumerate(tools.names):
        lines.append(f"call_{i}: {_call(syntax, name, f'arguments_{i}')}")
        lines.append(f"arguments_{i}: %json {_schema(tools.schemas[name])}")
    return "\n".join(lines) + "\n"


def _repeated(first: str, following: str, more: str) -> str:
    return first if more == "{0}" else f"{first} ({following}){more}"


def _call(syntax: Syntax, name: str, arguments: str) -> str:
    if syntax.named:
        return f"{_literal(f'{name}[ARGS]')} {arguments}"
    head = f'{{"name": {json.dumps(name)}, "{syntax.arguments_key}": '
    return f'{_literal(head)} {arguments} "}}"'


def _schema(schema: Mapping[str, Any]) -> str:
    closed = dict(schema)
    if "type" not in closed and "properties" in closed:
        closed["type"] = "object"
    if not closed:
        closed["type"] = "object"
    if "properties" in closed and not any(key in closed for key in _OPEN):
        closed["additionalProperties"] = False
    closed["x-guidance"] = _WHITESPACE
    return json.dumps(closed)


def _literal(text: str) -> str:
    """A Lark string, whose escapes are those of JSON."""
    return json.dumps(text)
