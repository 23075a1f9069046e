"""Structured output: values of :attr:`Sampling.grammar` that llguidance compiles, and their limits.

A value is checked here without llguidance, so that a hostile schema is refused before the compiler sees it.
llguidance has limits of its own, but compiles some small schemas for minutes (1.9.1):

    multipleOf: 999983                 more than 25 s
    pattern: ^(a{1000}){1000}$         more than 12 s at the first token
    enum of 100,000 values             3 s

:mod:`suffixsvc_driver.targets.llama.structured_grammar` compiles the values against a model's vocabulary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from suffixsvc.errors import GrammarError

#: characters of a schema or a grammar
MAX_LENGTH: Final = 1 << 17
#: nested repetitions of a pattern, multiplied
MAX_REPETITIONS: Final = 10_000
#: blanks between two symbols of flexible JSON; without a bound, a model may write nothing else
_BLANKS: Final = r"[\x20\x0A\x0D\x09]{1,40}"
#: range of multipleOf
MULTIPLES: Final = (1e-6, 1e4)

_BOUNDS: Final = re.compile(r"\{([0-9]{1,9})(,?)([0-9]{0,9})\}")
_CLASS: Final = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*+\]?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """JSON values of a schema.

    Attributes:
        schema: JSON text, or the equivalent Python data, an object; stored as text. The order of
            ``properties`` is that of the output.
        strict: compact JSON, and a keyword that cannot be enforced is an error. If False, up to 40 blanks and
            line feeds may stand between two symbols, and such keywords are ignored.

    Raises:
        GrammarError: ``schema`` is not a JSON object, or exceeds one of the limits of this module.
    """

    schema: str | Mapping[str, Any]
    strict: bool = True

    def __post_init__(self) -> None:
        given = self.schema
        _check_length("the JSON schema", given if isinstance(given, str) else "")
        try:
            data = json.loads(given) if isinstance(given, str) else given
            text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
            data = json.loads(text)
            text.encode()
        except (ValueError, TypeError, RecursionError) as err:
            raise GrammarError("the JSON schema must be JSON", got=str(err)[:120]) from err
        if not isinstance(data, dict):
            raise GrammarError("the JSON schema must be an object", got=type(data).__name__)
        if not isinstance(self.strict, bool):
            raise GrammarError("strict must be a bool", got=repr(self.strict)[:40])
        _check_length("the JSON schema", text)
        for key, value in _keywords(data):
            _check_keyword(key, value)
        object.__setattr__(self, "schema", text)


@dataclass(frozen=True, slots=True)
class JsonObject:
    """Any JSON object, with up to 40 blanks and line feeds between two symbols."""


@dataclass(frozen=True, slots=True)
class Lark:
    """Texts of a grammar in llguidance's dialect of Lark, from rule ``start`` on.

    Attributes:
        text: the grammar.

    Raises:
        GrammarError: ``text`` is not a string, or exceeds one of the limits of this module.
    """

    text: str

    def __post_init__(self) -> None:
        _check_text("the Lark grammar", self.text)


@dataclass(frozen=True, slots=True)
class Regex:
    """Texts that a regular expression (of Rust's ``regex``) matches as a whole.

    Attributes:
        pattern: the expression.

    Raises:
        GrammarError: ``pattern`` is not a string, or exceeds one of the limits of this module.
    """

    pattern: str

    def __post_init__(self) -> None:
        _check_text("the regular expression", self.pattern)
        _check_keyword("the regular expression", self.pattern)


def json_options(value: JsonSchema | JsonObject) -> dict[str, Any]:
    """Return llguidance's options of a value."""
    strict = isinstance(value, JsonSchema) and value.strict
    return {
        "whitespace_flexible": not strict,
        "whitespace_pattern": None if strict else _BLANKS,
        "item_separator": ",",
        "key_separator": ":",
        "coerce_one_of": False,
        "lenient": isinstance(value, JsonSchema) and not strict,
    }


def json_schema(value: JsonSchema | JsonObject) -> str:
    """Return the schema of a value, as JSON text."""
    return str(value.schema) if isinstance(value, JsonSchema) else '{"type":"object"}'


def embedded_json(value: JsonSchema | JsonObject) -> str:
    """Return the JSON text that stands for a value after ``%json`` in a :class:`Lark` grammar."""
    return json.dumps({**json.loads(json_schema(value)), "x-guidance": json_options(value)})


#: what llguidance compiles
Structured = JsonSchema | JsonObject | Lark | Regex


def _check_text(name: str, text: str) -> None:
    if not isinstance(text, str):
        raise GrammarError(f"{name} must be a string", got=type(text).__name__)
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise GrammarError(f"{name} must be UTF-8", got=f"a surrogate at {err.start}") from None
    _check_length(name, text)


def _check_length(name: str, text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise GrammarError(f"{name} must have at most {MAX_LENGTH} characters", got=len(text))


def _keywords(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the numbers and strings of a schema with their keywords; property names count as keywords."""
    todo: list[Any] = [schema]
    while todo:
        here = todo.pop()
        if isinstance(here, list):
            todo.extend(here)
        elif isinstance(here, dict):
            for key, value in here.items():
                yield key, value
                if key == "patternProperties" and isinstance(value, dict):
                    yield from (("pattern", pattern) for pattern in value)
                if key not in ("enum", "const", "default", "examples"):
                    todo.append(value)


def _check_keyword(key: str, value: Any) -> None:
    if key == "multipleOf" and isinstance(value, (int, float)):
        low, high = MULTIPLES
        if not low <= value <= high:
            raise GrammarError(
                "multipleOf must be small", expected=f"{low:g} .. {high:g}", got=str(value)[:40]
            )
    elif key in ("pattern", "the regular expression") and isinstance(value, str):
        count = _nested_repetitions(value)
        if count > MAX_REPETITIONS:
            raise GrammarError(
                f"nested repetitions of {key} must multiply to at most {MAX_REPETITIONS}",
                got=min(count, 10**18),
                remedy="Repeat fewer times, or check the length after the text is generated.",
            )


def _nested_repetitions(pattern: str) -> int:
    """Return the largest product of nested bounded repetitions of a regular expression."""
    groups = [1]  # largest product in each open group
    unit, at = 1, 0  # product in the last unit
    while at < len(pattern):
        char = pattern[at]
        bounds = _BOUNDS.match(pattern, at) if char == "{" else None
        if bounds:
            unit *= max(1, int(bounds[1]), int(bounds[3] or 0))
            groups[-1] = max(groups[-1], unit)
            at = bounds.end()
            continue
        if char == "(":
            groups.append(1)
        unit = 1
        if char == ")" and len(groups) > 1:
            unit = groups.pop()
            groups[-1] = max(groups[-1], unit)
        found = _CLASS.match(pattern, at) if char == "[" else None
        at = found.end() if found else at + (2 if char == "\\" else 1)
    return max(groups)
