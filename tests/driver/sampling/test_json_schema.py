"""Grammars of JSON schemas: they match the values of the schema, and unsupported schemas are refused."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixsvc.errors import GrammarError
from suffixsvc_driver.sampling.json_schema import grammar_of_schema
from suffixsvc_driver.targets.llama.grammar import LlamaGrammar
from suffixsvc_driver.targets.llama.model import LlamaModel

NODE = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}
#: schema -> matching values, and others
SCHEMAS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "object": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "required": ["a"],
        },
        [{"a": 1}, {"a": -20, "b": "x"}],
        [{}, {"b": "x"}, {"a": 1.5}, {"a": "1"}, {"a": 1, "c": 2}, [1]],
    ),
    "any properties": (
        {"type": "object", "additionalProperties": {"type": "null"}},
        [{}, {"a": None}, {"a": None, "b": None}],
        [{"z": 1}],
    ),
    "array": (
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        [[True], [False, True, True]],
        [[], [True] * 4, [1]],
    ),
    "enum": ({"enum": ["x", 1, None, {"k": []}]}, ["x", 1, None], ["y", 2, {}]),
    "spelled oddly": (
        {"type": "object", "properties": {'a"é\\\n': {"const": 'x\n"\\ü'}}, "required": ['a"é\\\n']},
        [{'a"é\\\n': 'x\n"\\ü'}],
        [{"a": "x"}, {'a"é\\\n': "x"}],
    ),
    "any": ({"anyOf": [{"type": "null"}, {"type": "number"}]}, [None, 1, -2.5, 1e9], ["1", [], True]),
    "length": ({"type": "string", "minLength": 1, "maxLength": 3}, ["a", "äöü", '"\\\n'], ["", "abcd"]),
    "pattern": (
        {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"},
        ["AB-1", "XY-123"],
        ["A-1", "AB-", "ab-1"],
    ),
    "date": ({"type": "string", "format": "date"}, ["2024-02-29"], ["2024-13-01", "24-01-01"]),
    "recursive": (
        {"type": "object", "properties": {"head": {"$ref": "#/$defs/node"}}, "$defs": {"node": NODE}},
        [{}, {"head": {}}, {"head": {"v": 1, "next": {"v": 2, "next": {}}}}],
        [{"head": 1}, {"head": {"next": 1}}],
    ),
    "one name twice": (
        {
            "type": "object",
            "properties": {
                "a": {"type": "object", "properties": {"x": {"type": "integer"}}},
                "b": {"$ref": "#/$defs/a"},
                "c": {"$ref": "#/$defs/string"},
            },
            "$defs": {"a": {"type": "boolean"}, "string": {"type": "integer"}},
        },
        [{"a": {"x": 1}, "b": True, "c": 3}, {"b": False}],
        [{"b": {"x": 1}}, {"a": True}, {"c": "3"}],
    ),
    "anything": ({}, [{"a": [1, {"b": None}]}, {}], ["x", 1]),
}

BAD: dict[str, tuple[Any, str]] = {
    "not JSON": ("{", "the schema must be JSON"),
    "a set": ({"enum": {1, 2}}, "the schema must be JSON"),
    "infinity": ({"const": math.inf}, "the schema must be JSON"),
    "a list": ([1], "the JSON schema must be an object"),
    "a text of a list": ("[1]", "the JSON schema must be an object"),
    "no such type": ({"type": "text"}, "cannot convert this schema"),
    "elsewhere": ({"$ref": "https://example.org/x"}, "cannot convert this schema"),
    "open pattern": ({"type": "string", "pattern": "a+"}, "cannot convert this schema"),
    "further properties": (
        {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
        "additionalProperties beside properties",
    ),
    "a minimum": (
        {"type": "object", "properties": {"a": {"minimum": 3}}},
        "must not use keywords that the grammar would not enforce; got minimum",
    ),
    "uniqueness": ({"type": "array", "items": {}, "uniqueItems": True}, "got uniqueItems"),
    "too many": (
        {"type": "array", "items": {"type": "null"}, "maxItems": 5000},
        "brackets must be nested at most",
    ),
    "half a character": ({"const": "\ud800"}, "invalid character"),
}


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Iterator[LlamaModel]:
    with LlamaModel(tiny_model, vocab_only=True) as model:
        yield model


def fits(grammar: LlamaGrammar, value: Any) -> bool:
    """Return whether a value matches, as compact JSON with characters of any script."""
    text = list(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    return grammar.allowed([*text, 256]) == len(text) + 1


@pytest.mark.parametrize("name", SCHEMAS)
def test_values_of_the_schema(model: LlamaModel, name: str) -> None:
    schema, good, bad = SCHEMAS[name]
    before = json.dumps(schema)
    grammar = LlamaGrammar(model, grammar_of_schema(schema))
    assert [value for value in good if not fits(grammar, value)] == []
    assert [value for value in bad if fits(grammar, value)] == []
    assert json.dumps(schema) == before, "it is the caller's"
    assert grammar_of_schema(before) == grammar_of_schema(schema)


@pytest.mark.parametrize("name", [name for name in SCHEMAS if name != "pattern"])
def test_permitted_texts_are_json(model: LlamaModel, name: str) -> None:
    """Random walks to the end; bare control characters in a string, say, would not be JSON."""
    text = grammar_of_schema(SCHEMAS[name][0])
    everything = np.arange(model.vocab_size)
    ended = 0
    for seed in range(40):
        chance = random.Random(seed)
        grammar = LlamaGrammar(model, text)
        written = bytearray()
        for _ in range(300):
            permitted = everything[grammar.permits(everything)].tolist()
            if 256 in permitted:
                json.loads(written.decode())
                ended += 1
                break
            # llama.cpp permits bytes that are not UTF-8: these are avoided unless nothing else is permitted
            plain = [t for t in permitted if t < 128] or [t for t in permitted if t < 256]
            # prefer closing brackets and quotes, so that the walk ends
            closing = [t for t in plain if chr(t) in '"}]'] if chance.random() < 0.3 else []
            token = chance.choice(closing or plain)
            grammar.accept(token)
            written.append(token)
    assert ended > 10


@pytest.mark.parametrize("name", BAD)
def test_unsupported_schemas_are_refused(name: str) -> None:
    schema, message = BAD[name]
    with pytest.raises(GrammarError) as caught:
        grammar_of_schema(schema)
    assert message in str(caught.value)


def test_names_and_values_are_not_keywords() -> None:
    grammar_of_schema({"type": "object", "properties": {"minimum": {"enum": ["not", {"if": 1}]}}})
