"""Grammar that binds an answer to calls of tools, from its first token: Lark text for llguidance.

    start: "<tool_call>\\n" call "\\n</tool_call>" ("\\n<tool_call>\\n" call "\\n</tool_call>"){0,63}
    call: "{\\"name\\": \\"f\\", \\"arguments\\": " arguments_0 "}" | ...
    arguments_0: %json {...}

All but names and arguments is literal, as the model's chat template writes it, so that it can be drafted.
Syntax: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from suffixsvc_driver.sampling.structured import JsonObject, JsonSchema, embedded_json
from suffixsvc_openai.tools.definitions import ToolSet
from suffixsvc_openai.tools.formats import SYNTAX, ToolFormat

#: calls of one answer: small models repeat a call for as long as they may
_MAX_CALLS: Final = 64
#: texts of the formats that may be special tokens
_SPECIAL: Final = re.compile(r"(</?tool_call>|\[TOOL_CALLS\]|\[ARGS\])")
#: JSON as templates write it (json.dumps): one way to write a value
_JSON: Final = {
    "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True,
}  # fmt: skip
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
    special_ids: Mapping[str, int] = MappingProxyType({}),
    answer: JsonObject | JsonSchema | None = None,
) -> str:
    """Return the grammar of one or more calls.

    A schema that lists properties and says nothing about others allows the listed ones only.

    Args:
        tool_format: of the model.
        tools: the callable tools, at least one: :meth:`ToolSet.only` for a named choice.
        parallel: allow several calls.
        special_ids: ids of the tokens without text, by their spelling: llguidance matches those by their ids
            only.
        answer: what the answer may be instead of calls.
    """
    syntax = SYNTAX[tool_format]

    def fixed(text: str) -> str:
        return _fixed(text, special_ids)

    marker = fixed(syntax.marker)
    more = f"{{0,{_MAX_CALLS - 1}}}" if parallel else "{0}"
    match tool_format:
        case ToolFormat.HERMES:
            one = rf'{marker} "\n" call "\n" {fixed("</tool_call>")}'
            start = _repeated(one, rf'"\n" {one}', more)
        case ToolFormat.LLAMA3:
            start = _repeated("call", '"; " call', more)
        case ToolFormat.MISTRAL:
            calls = _repeated("call", '", " call', more)
            start = f'{marker} "[" {calls} "]"'
        case ToolFormat.MISTRAL_V13:
            start = _repeated(f"{marker} call", f"{marker} call", more)
    lines = [
        f"start: {start}" if answer is None else f"start: calls | answer\ncalls: {start}",
        "call: " + " | ".join(f"call_{i}" for i in range(len(tools))),
    ]
    for i, name in enumerate(tools.names):
        head = fixed(f"{name}[ARGS]") if syntax.named else _literal(_head(name, syntax.arguments_key))
        lines.append(f"call_{i}: {head} arguments_{i}" + ("" if syntax.named else ' "}"'))
        lines.append(f"arguments_{i}: %json {_schema(tools.schemas[name])}")
    if answer is not None:
        lines.append(f"answer: %json {embedded_json(answer)}")
    return "\n".join(lines) + "\n"


def _repeated(first: str, following: str, more: str) -> str:
    return first if more == "{0}" else f"{first} ({following}){more}"


def _head(name: str, arguments_key: str) -> str:
    return f'{{"name": {json.dumps(name)}, "{arguments_key}": '


def _fixed(text: str, special_ids: Mapping[str, int]) -> str:
    """Return a text of the format, in which special tokens are matched by their ids."""
    parts = (part for part in _SPECIAL.split(text) if part)
    return " ".join(
        f"<[{special_ids[part]}]>" if part in special_ids and _SPECIAL.fullmatch(part) else _literal(part)
        for part in parts
    )


def _schema(schema: Mapping[str, Any]) -> str:
    closed = dict(schema)
    if "type" not in closed and "properties" in closed:
        closed["type"] = "object"
    if not closed:
        closed["type"] = "object"
    if "properties" in closed and not any(key in closed for key in _OPEN):
        closed["additionalProperties"] = False
    closed["x-guidance"] = _JSON
    return json.dumps(closed)


def _literal(text: str) -> str:
    """A Lark string, whose escapes are those of JSON."""
    return json.dumps(text)
