"""Conversion of JSON schemas to GBNF grammars by llama-cpp-python's converter, with its errors corrected."""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Mapping
from typing import Any, Final

from suffixsvc.errors import GrammarError, MissingExtraError
from suffixsvc_driver.sampling.gbnf import check_grammar

#: keywords that restrict values and that the converter silently ignores
_IGNORED: Final = frozenset(
    {
        "not", "if", "then", "else", "patternProperties", "propertyNames", "minProperties", "maxProperties",
        "dependentRequired", "dependentSchemas", "contains", "minContains", "maxContains", "uniqueItems",
        "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    }
)  # fmt: skip


def grammar_of_schema(schema: str | Mapping[str, Any]) -> str:
    """Return GBNF text for :attr:`Sampling.grammar` that matches JSON values of the schema.

    Properties appear in the order of the schema, without additional ones; an empty schema stands
    for an object.

    Args:
        schema: JSON text, or the equivalent Python data.

    Raises:
        MissingExtraError: llama-cpp-python is not installed.
        GrammarError: ``schema`` is not a JSON schema, the converter fails, or the schema has a keyword that
            the converter ignores or converts incorrectly.
    """
    try:
        data = json.loads(schema) if isinstance(schema, str) else schema
        # the round trip refuses data that is not JSON; the converter modifies its argument
        copy = json.loads(json.dumps(data, allow_nan=False))
    except (ValueError, TypeError, RecursionError) as err:
        raise GrammarError("the schema must be JSON", got=str(err)[:120]) from err
    if not isinstance(data, Mapping):
        raise GrammarError("the JSON schema must be an object", got=type(data).__name__)
    unsupported = _unsupported(data)
    if unsupported:
        raise GrammarError(
            "the schema must not use keywords that the grammar would not enforce",
            got=", ".join(sorted(unsupported)),
            remedy="Leave them out and check the values after they are generated.",
        )
    converter = _converter()
    try:
        converter.visit(converter.resolve_refs(copy, "schema"), "")
        converter.forbid_control_characters()
        grammar: str = converter.format_grammar()
    except Exception as err:  # the converter asserts, and raises exceptions of many types
        reason = f"{type(err).__name__}: {err}"[:200]
        raise GrammarError("llama-cpp-python cannot convert this schema", got=reason) from err
    check_grammar(grammar)
    return grammar


def _converter() -> Any:
    try:
        module = importlib.import_module("llama_cpp.llama_grammar")
    except ImportError as err:
        raise MissingExtraError("llama", "llama_cpp") from err

    class Converter(module.SchemaConverter):  # type: ignore[misc, name-defined]  # imported on first use
        def _format_literal(self, literal: str) -> str:
            """Return a JSON value as a GBNF literal.

            The base class does not escape backslashes, so that a value with a line break would match a bare
            line break, which is not JSON.
            """
            value = json.dumps(json.loads(literal), ensure_ascii=False)
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

        def _resolve_ref(self, ref: str) -> str:
            """Return the rule of a definition.

            The base class uses any rule of the definition's last name, that of a property included.
            """
            known: dict[str, str] = self.__dict__.setdefault("_definitions", {})
            if ref not in known:
                known[ref] = next(f"def{n}" for n in itertools.count() if not self._is_taken(f"def{n}"))
                known[ref] = self.visit(self._refs[ref], known[ref])
            return known[ref]

        def forbid_control_characters(self) -> None:
            """Forbid control characters in strings, which the base class allows and JSON does not."""
            if "char" in self._rules:
                self._rules["char"] = self._rules["char"].replace(r'[^"\\]', r'[^"\\\x7F\x00-\x1F]')

        def _is_taken(self, name: str) -> bool:
            return name in self._rules or name in self.__dict__["_definitions"].values()

    return Converter(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)


def _unsupported(schema: Any) -> set[str]:
    """Return the keywords of a schema that the converter ignores or converts incorrectly.

    Nested schemas are included. Names of properties and values of enums are not keywords.
    """
    out: set[str] = set()
    todo = [schema]
    while todo:
        here = todo.pop()
        if isinstance(here, list):
            todo.extend(here)
        elif isinstance(here, Mapping):
            out |= here.keys() & _IGNORED
            if here.get("properties") and here.get("additionalProperties", False) is not False:
                # the converter omits the comma between the last property and the first additional one
                out.add("additionalProperties beside properties")
            for key, value in here.items():
                if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
                    todo.extend(value.values())
                elif key not in ("enum", "const", "default", "examples"):
                    todo.append(value)
    return out
