"""A grammar for a JSON schema, by llama-cpp-python's converter."""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Mapping
from typing import Any, Final

from suffixsvc.errors import GrammarError, MissingExtraError
from suffixsvc_driver.gbnf import check_grammar

__all__ = ["grammar_of_schema"]

#: keywords that restrict values, and that the converter passes over without a word
_IGNORED: Final = frozenset(
    {
        "not", "if", "then", "else", "patternProperties", "propertyNames", "minProperties", "maxProperties",
        "dependentRequired", "dependentSchemas", "contains", "minContains", "maxContains", "uniqueItems",
        "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    }
)  # fmt: skip


def grammar_of_schema(schema: str | Mapping[str, Any]) -> str:
    """GBNF text for :attr:`Sampling.grammar`: what is written is JSON that fits the schema.

    Properties come in the order in which the schema names them, and none but these; an empty schema is an
    object.

    Args:
        schema: JSON text, or the same as Python data.

    Raises:
        MissingExtraError: llama-cpp-python is not installed.
        GrammarError: no JSON schema; one that the converter cannot do; or one with a keyword that it would
            pass over or get wrong, so that what is written need not fit the schema.
    """
    try:
        data = json.loads(schema) if isinstance(schema, str) else schema
        # through text, which refuses what no JSON can hold; the converter writes into what it is given
        copy = json.loads(json.dumps(data, allow_nan=False))
    except (ValueError, TypeError, RecursionError) as err:
        raise GrammarError("the schema is no JSON", got=str(err)[:120]) from err
    if not isinstance(data, Mapping):
        raise GrammarError("a JSON schema is an object", expected="{...}", got=type(data).__name__)
    wrong = _beyond(data)
    if wrong:
        raise GrammarError(
            "the schema says something else than a grammar made from it would",
            expected="a schema without these keywords",
            got=", ".join(sorted(wrong)),
            remedy="Leave them out and check the values once they are written.",
        )
    converter = _converter()
    try:
        converter.visit(converter.resolve_refs(copy, "schema"), "")
        converter.forbid_control_characters()
        grammar: str = converter.format_grammar()
    except Exception as err:  # it asserts and raises whatever comes
        reason = f"{type(err).__name__}: {err}"[:200]
        raise GrammarError("llama-cpp-python cannot make a grammar of this schema", got=reason) from err
    check_grammar(grammar)
    return grammar


def _converter() -> Any:
    try:
        module = importlib.import_module("llama_cpp.llama_grammar")
    except ImportError as err:
        raise MissingExtraError("llama", "llama_cpp") from err

    class Converter(module.SchemaConverter):  # type: ignore[misc, name-defined]  # imported when it is needed
        def _format_literal(self, literal: str) -> str:
            """A JSON value as a GBNF text. The converter's own leaves backslashes as they are, so that a
            value with a line break would have to be written with a bare one, which is no JSON."""
            value = json.dumps(json.loads(literal), ensure_ascii=False)
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

        def _resolve_ref(self, ref: str) -> str:
            """The rule of a definition. The converter's own takes any rule that has the definition's last
            name, be it that of a property."""
            known: dict[str, str] = self.__dict__.setdefault("_definitions", {})
            if ref not in known:
                known[ref] = next(f"def{n}" for n in itertools.count() if not self._is_taken(f"def{n}"))
                known[ref] = self.visit(self._refs[ref], known[ref])
            return known[ref]

        def forbid_control_characters(self) -> None:
            """Inside strings, where JSON does not have them and the converter does."""
            if "char" in self._rules:
                self._rules["char"] = self._rules["char"].replace(r'[^"\\]', r'[^"\\\x7F\x00-\x1F]')

        def _is_taken(self, name: str) -> bool:
            return name in self._rules or name in self.__dict__["_definitions"].values()

    return Converter(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)


def _beyond(schema: Any) -> set[str]:
    """What the converter would pass over or get wrong, in a schema and all inside it. Names of properties and
    values of enums are no keywords."""
    out: set[str] = set()
    todo = [schema]
    while todo:
        here = todo.pop()
        if isinstance(here, list):
            todo.extend(here)
        elif isinstance(here, Mapping):
            out |= here.keys() & _IGNORED
            if here.get("properties") and here.get("additionalProperties", False) is not False:
                # it leaves out the comma between the last property and the first further one
                out.add("additionalProperties beside properties")
            for key, value in here.items():
                if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
                    todo.extend(value.values())
                elif key not in ("enum", "const", "default", "examples"):
                    todo.append(value)
    return out
