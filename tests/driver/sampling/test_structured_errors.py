"""Structured output: schemas and grammars that are refused, and limits."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixsvc.errors import (
    GrammarError,
    InvalidConfigError,
    LimitExceededError,
    MissingExtraError,
    ModelError,
)
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.sampling.structured import JsonObject, JsonSchema, Lark, Regex, Structured
from suffixsvc_driver.targets.llama import structured_compiler
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.llama.structured_compiler import GrammarCompiler
from suffixsvc_driver.targets.single import LlamaTarget
from support.structured_states import after, permitted

BAD_SCHEMAS: list[tuple[Any, str]] = [
    ("{", "must be JSON"),
    ([1], "must be an object; got list"),
    ({"a": math.nan}, "must be JSON"),
    ({"a": {1}}, "must be JSON"),
    ({"a": "\ud800"}, "must be JSON"),
    ({"enum": ["x" * 200_000]}, "at most 131072 characters"),
    (json.dumps({"enum": ["x" * 200_000]}), "at most 131072 characters"),
    ({"multipleOf": 999_983}, "multipleOf must be small; expected 1e-06 .. 10000; got 999983"),
    ({"items": [{"pattern": "^(a{1000}){1000}$"}]}, "at most 10000; got 1000000"),
    ({"patternProperties": {"((a{99}){99}){99}": {}}}, "at most 10000; got 970299"),
]


@pytest.mark.parametrize(("schema", "message"), BAD_SCHEMAS)
def test_hostile_schemas_are_refused_at_once(schema: Any, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        JsonSchema(schema)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "banana"}, "Invalid type: banana"),
        ({"type": "object", "if": {}, "then": {}}, "Unimplemented keys"),
        ({"$ref": "#"}, "JSON schema"),
        ({"$ref": "http://localhost/x"}, "not present in a registry"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "string", "pattern": "(" * 900}, "JSON schema"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "Unsatisfiable"),
        ({"type": "object", "x-guidance": {"lenient": True}, "if": {}}, "Unimplemented keys"),
        (json.loads('{"items":' * 300 + "{}" + "}" * 300), "recursion limit"),
        (
            {"allOf": [{"anyOf": [{"properties": {f"{i}_{j}": {}}} for j in range(10)]} for i in range(10)]},
            "large",
        ),
    ],
)
def test_schemas_that_cannot_be_enforced_are_errors(target: LlamaTarget, schema: Any, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        target.sampler(Sampling(grammar=JsonSchema(schema)), [1])


def test_keywords_that_cannot_be_enforced_are_ignored_unless_strict(target: LlamaTarget) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"const": 1}, "enum": [1, 2]}}, "required": ["a"]}
    with pytest.raises(GrammarError, match="Unimplemented"):
        target.sampler(Sampling(grammar=JsonSchema(schema)), [1])
    assert permitted(target, after(target, JsonSchema(schema, strict=False), '{"a":')) >= {b"1", b"2"}


@pytest.mark.parametrize("text", ["start", "start: x", "start: /(/", "start: start", "other: 'a'", "%json {"])
def test_malformed_lark_grammars_are_errors(target: LlamaTarget, text: str) -> None:
    with pytest.raises(GrammarError, match="the Lark grammar must"):
        target.sampler(Sampling(grammar=Lark(text)), [1])


def test_values_of_the_wrong_type_are_errors() -> None:
    for wrong in (3, b"root", {"type": "object"}, ["x"]):
        with pytest.raises(InvalidConfigError, match="JsonSchema, JsonObject, Lark or Regex"):
            Sampling(grammar=wrong)  # type: ignore[arg-type]  # the wrong type
    for make in (lambda: Lark(3), lambda: Regex(None), lambda: JsonSchema({}, strict=1)):  # type: ignore[arg-type]  # the wrong type
        with pytest.raises(GrammarError, match="must be"):
            make()
    with pytest.raises(GrammarError, match="nested repetitions"):
        Regex("(a{200}){200}")
    Regex(r"[({]{9999}\{5000}\({5000}")  # literals are no groups


def test_a_compilation_that_takes_too_long_is_left(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets an error in time, further grammars are refused meanwhile, and compiled afterwards."""
    real, go_on = structured_compiler._start_of, threading.Event()

    def slow(value: Structured, tokenizer: Any) -> Any:
        if value == Regex("slow"):
            go_on.wait(60)
        return real(value, tokenizer)

    monkeypatch.setattr(structured_compiler, "_start_of", slow)
    with LlamaModel(tiny_model, vocab_only=True) as model:
        compiler = GrammarCompiler(model)
        compiler.compile(Regex("quick"))
        compiler.time_limit = 0.05
        for _ in range(2):
            with pytest.raises(GrammarError, match=r"within 0\.05 s"):
                compiler.compile(Regex("slow"))
        compiler.time_limit = 60
        with pytest.raises(LimitExceededError, match="2 of them"):
            compiler.compile(Regex("other"))
        assert compiler.compile(Regex("quick")).allowed(list(b"quick")) == 5, "those in the cache are served"
        left = [thread for thread in threading.enumerate() if thread.name == "suffixsvc-grammar"]
        go_on.set()
        for thread in left:
            thread.join()
        assert compiler.compile(Regex("other")).allowed(list(b"other")) == 5


def test_a_grammar_in_use_is_not_compiled_again(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler takes it from the cache however many others were compiled since the request was queued."""
    real, compiled = structured_compiler._start_of, list[Structured]()

    def counted(value: Structured, tokenizer: Any) -> Any:
        compiled.append(value)
        return real(value, tokenizer)

    monkeypatch.setattr(structured_compiler, "_start_of", counted)
    monkeypatch.setattr(structured_compiler, "_CACHED", 2)
    with LlamaModel(tiny_model, vocab_only=True) as model:
        compiler = GrammarCompiler(model)
        used = compiler.compile(Regex("used"))
        for text in "abc":
            compiler.compile(Regex(text))
        assert compiler.compile(Regex("used")).allowed(list(b"used")) == 4
        assert compiled == [Regex(text) for text in ("used", "a", "b", "c")]
        del used
        for text in "abc":
            compiler.compile(Regex(text))
        compiler.compile(Regex("used"))
        assert compiled.count(Regex("used")) == 2, "the cache is bounded"


def test_a_text_beyond_the_limits_is_an_error_and_no_end(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an error state, the mask of llguidance permits the end token, which would end an invalid text."""
    monkeypatch.setitem(structured_compiler._LIMITS, "max_lexer_states", 200)
    text = list(np.random.default_rng(1).choice([97, 98], 400))

    def write_all() -> None:
        for token in text:
            assert state.permits_one(int(token))
            assert not state.permits_one(256)
            state.accept(int(token))

    with LlamaModel(tiny_model, vocab_only=True) as model:
        state = GrammarCompiler(model).compile(Regex("[ab]*a[ab]{12}c"))
        with pytest.raises(GrammarError, match="limits of llguidance after"):
            write_all()
        assert state.allowed([256]) == 0


def test_a_missing_library_is_named(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with (
        LlamaModel(tiny_model, vocab_only=True) as model,
        pytest.raises(MissingExtraError, match="structured"),
    ):
        GrammarCompiler(model).compile(JsonObject())


def test_a_closed_model_is_an_error(tiny_model: Path) -> None:
    model = LlamaModel(tiny_model, vocab_only=True)
    compiler = GrammarCompiler(model)
    state = compiler.compile(Regex("abc"))
    model.close()
    for call in (lambda: state.permits_one(97), state.forced, lambda: compiler.compile(Regex("x"))):
        with pytest.raises(ModelError, match="closed"):
            call()
