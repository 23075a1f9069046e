"""Checks of arguments by the schemas of clients: what fits, and that hostile schemas cost little."""

from __future__ import annotations

import json
from typing import Any

import pytest

from suffixsvc_openai.tools import schema_check
from suffixsvc_openai.tools.definitions import ToolSet
from suffixsvc_openai.tools.deltas import assemble
from suffixsvc_openai.tools.formats import ToolFormat
from suffixsvc_openai.tools.parser import ToolCallParser
from suffixsvc_openai.tools.schema_check import SchemaChecks

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}},
    "required": ["city"],
    "$defs": {"city": {"enum": ["Rome", "Oslo"]}},
}


def fits(schema: dict[str, Any], value: dict[str, Any]) -> bool:
    return ToolSet.of([{"function": {"name": "f", "parameters": schema}}]).fits("f", value, SchemaChecks())


def test_arguments_are_checked_by_the_schema() -> None:
    assert fits(WEATHER, {"city": "Rome"})
    assert not fits(WEATHER, {"city": "Paris"})
    assert not fits(WEATHER, {})
    assert fits({"patternProperties": {"^x": {}}, "additionalProperties": False}, {"x": 1})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}},
        {"properties": {"a": {"$ref": "#/nowhere"}}},
        {"$ref": "#"},
        {
            "$defs": {
                str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}, {"$ref": f"#/$defs/{i + 1}"}]}
                for i in range(60)
            }
            | {"60": {}},
            "$ref": "#/$defs/0",
        },
        {"properties": {"a": {"type": 7}}},
        {"properties": 7},
        {"$defs": {"b": {"$anchor": "b"}}, "properties": {"a": {"$ref": "#b"}}},
        {"properties": {"a": {"$id": "b", "$defs": {"b": {}}, "$ref": "#/$defs/b"}}},
    ],
    ids=["remote", "dangling", "endless", "exponential", "no type", "no properties", "anchor", "identifier"],
)
def test_a_hostile_schema_fits_nothing_and_ends(schema: dict[str, Any]) -> None:
    assert not fits(schema, {"a": "aaaa"})


@pytest.mark.parametrize(
    ("items", "count"),
    [({"anyOf": [{"const": "x"}] * 2000 + [True]}, 200), ({"oneOf": [False] * 2000 + [True]}, 200)],
    ids=["any of many", "one of many"],
)
def test_a_costly_schema_fits_nothing(items: dict[str, Any], count: int) -> None:
    schema = {"properties": {"a": {"items": items}}}
    assert fits(schema, {"a": [1] * 2})
    assert not fits(schema, {"a": [1] * count})


def test_unknown_keywords_are_counted() -> None:
    """jsonschema looks at each of them, at every evaluation of their schema."""

    def chained(keywords: int) -> dict[str, Any]:
        definitions: dict[str, Any] = {"d0": {f"x{i}": 0 for i in range(keywords)}}
        for i in range(1, 7):
            definitions[f"d{i}"] = {"allOf": [{"$ref": f"#/$defs/d{i - 1}"}] * 2}
        return {"$defs": definitions, "$ref": "#/$defs/d6"}

    assert SchemaChecks().fits({"q": 1}, chained(10))
    assert not SchemaChecks().fits({"q": 1}, chained(4000))


def test_a_costly_comparison_fits_nothing() -> None:
    schema = {"properties": {"a": {"uniqueItems": True}}}
    assert fits(schema, {"a": [{"x": i} for i in range(100)]})
    assert not fits(schema, {"a": [{"x": i} for i in range(1000)]})


def test_rows_of_a_table_fit_their_schema() -> None:
    row = {"type": "object", "properties": {str(i): {"type": "integer"} for i in range(8)}, "required": ["1"]}
    value = [{str(i): i for i in range(8)}] * 200
    assert fits({"properties": {"a": {"type": "array", "items": row}}}, {"a": value})


def test_expressions_of_exponential_time_are_not_evaluated() -> None:
    assert fits({"properties": {"a": {"pattern": "^(a+)+$"}}}, {"a": "a" * 64 + "!"})
    assert fits({"patternProperties": {"^(a+)+$": {}}, "unevaluatedProperties": False}, {"a" * 64 + "!": 1})


def test_a_large_schema_of_a_real_tool_is_checked() -> None:
    place = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in ("street", "city", "zip", "country")},
        "required": ["street"],
        "additionalProperties": False,
    }
    names = [f"p{i}" for i in range(40)]
    schema = {
        "$id": "https://example.org/orders",
        "type": "object",
        "$defs": {"place": place},
        "properties": {
            **{name: {"enum": [str(i) for i in range(40)], "description": "x" * 80} for name in names},
            "places": {"items": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]}},
        },
        "required": names,
        "additionalProperties": False,
    }
    values = dict.fromkeys(names, "3")
    places = [{"street": "a", "city": "b", "zip": "c", "country": "d"}] * 50
    assert fits(schema, {**values, "places": places})
    assert not fits(schema, {**values, "places": [*places, {"city": "b"}]})


def doubling(depth: int) -> dict[str, Any]:
    """A schema that takes 2 ** depth evaluations."""
    steps = {str(i): {"anyOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(depth)}
    return {"$defs": {**steps, str(depth): {"type": "string"}}, "$ref": "#/$defs/0"}


def test_all_checks_of_an_answer_have_one_budget() -> None:
    checks = SchemaChecks()
    assert not checks.fits({}, doubling(5))
    assert checks.fits({"city": "Rome"}, WEATHER)
    assert not any(checks.fits({}, doubling(5)) for _ in range(200))
    assert not checks.fits({"city": "Rome"}, WEATHER)


def test_the_texts_that_errors_would_show_are_counted() -> None:
    long = {"properties": {"a": {"anyOf": [{"$ref": "#/$defs/long"}] * 20 + [True]}}}
    assert fits({**long, "$defs": {"long": {"enum": ["x"]}}}, {"a": 1})
    assert not fits({**long, "$defs": {"long": {"enum": ["x" * 1_000_000]}}}, {"a": 1})


def test_a_malformed_schema_leaves_the_other_tools() -> None:
    checks = SchemaChecks()
    assert not checks.fits({"a": 1}, {"properties": {"a": {"$ref": "#/nowhere"}}})
    assert checks.fits({"city": "Rome"}, WEATHER)


def test_an_answer_of_many_objects_costs_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bare object once had a budget of its own: seconds, in which no other request was answered."""
    begun: list[Any] = []
    validator = schema_check._Validator

    def counted(*args: Any, **kwargs: Any) -> Any:
        begun.append(args)
        return validator(*args, **kwargs)

    monkeypatch.setattr(schema_check, "_Validator", counted)
    parameters = {"type": "object", **doubling(30)}
    tools = ToolSet.of([{"function": {"name": "f", "parameters": parameters}}, {"function": {"name": "g"}}])
    text = "".join(json.dumps({"name": "f", "arguments": {}}) + "\n" for _ in range(100))
    parser = ToolCallParser(ToolFormat.HERMES, tools)
    answer = assemble([*parser.feed(text), *parser.finish()])
    assert answer.content == text
    assert not answer.calls
    assert len(begun) == 1
