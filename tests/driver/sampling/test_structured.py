"""Structured output: valid by another implementation, never changed by drafts."""

from __future__ import annotations

import json
import threading
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suffixsvc.errors import GrammarError
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.exactness import check_exactness
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.drafts.events import FinishReason
from suffixsvc_driver.layers.grammar import grammar_layers
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.sampling.structured import JsonObject, JsonSchema, Lark, Regex, Structured
from suffixsvc_driver.targets.llama import structured_compiler
from suffixsvc_driver.targets.single import LlamaTarget
from support.layers import ScriptedLayer, hostile_drafter
from support.long_form import rounds
from support.structured_states import after, ids, permitted

CARELESS = CostCurve.linear(0.001, 32)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "kind": {"enum": ["customer", "supplier", 'a "quoted" one\n']},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}


# -- texts are valid, and drafts do not change them

SCALARS = st.sampled_from(
    [
        {"type": "boolean"},
        {"type": "null"},
        {"type": "integer", "minimum": -5, "maximum": 1000},
        {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25},
        {"type": "string", "maxLength": 4},
        {"type": "string", "pattern": "^[a-c]{2,5}$"},
        {"type": "string", "minLength": 2, "maxLength": 3},
        {"enum": ["x", "y\\", 'z"', 4, None, [1]]},
        {"const": {"a": ["b"]}},
        {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"enum": ["no"]}]},
    ]
)
NAMES = st.lists(st.text('abn ame"\\é', min_size=1, max_size=5), min_size=1, max_size=3, unique=True)


def _objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def schema(names: list[str], values: list[dict[str, Any]], needed: list[bool]) -> dict[str, Any]:
        pairs = list(zip(names, values, strict=False))
        return {
            "type": "object",
            "properties": dict(pairs),
            "required": [name for (name, _), need in zip(pairs, needed, strict=False) if need],
            "additionalProperties": False,
        }

    size = {"min_size": 3, "max_size": 3}
    return st.builds(schema, NAMES, st.lists(inner, **size), st.lists(st.booleans(), **size))


def _arrays(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    sizes = st.sampled_from([(0, 1), (1, 2), (2, 2)])
    return st.builds(
        lambda items, size: {"type": "array", "items": items, "minItems": size[0], "maxItems": size[1]},
        inner,
        sizes,
    )


SCHEMAS = _objects(st.recursive(SCALARS, lambda inner: _objects(inner) | _arrays(inner), max_leaves=4))


@settings(
    max_examples=rounds(10, full=30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(schema=SCHEMAS, seed=st.integers(0, 3), strict=st.booleans())
def test_texts_are_valid_and_drafts_do_not_change_them(
    target: LlamaTarget, schema: dict[str, Any], seed: int, strict: bool
) -> None:
    grammar = JsonSchema(schema, strict)
    sampling = Sampling(
        0.0 if seed == 0 else 1.0, seed=seed, grammar=grammar, top_p=0.95 if seed > 1 else 1.0
    )
    prompt = list(b"Write JSON:")
    plain = generate(target, prompt, max_tokens=250, sampling=sampling)
    if plain.finish is FinishReason.STOP:
        text = b"".join(map(target.model.token_bytes, plain.token_ids[:-1])).decode()
        value = json.loads(text)
        jsonschema.validate(value, schema)
        assert plain.token_ids[-1] in target.eog_ids
        if strict:
            assert list(value) == [name for name in schema["properties"] if name in value]
            assert b"\n" not in text.encode()
    else:
        assert not strict or len(plain.token_ids) == 250
    rng = np.random.default_rng(seed)
    hostile = ScriptedLayer(hostile_drafter(rng, [*prompt, *plain.token_ids], target.vocab_size))
    for layers in (
        grammar_layers(target, sampling),
        [*grammar_layers(target, sampling), hostile],
    ):
        drafted = generate(target, prompt, None, layers, 250, sampling=sampling, curve=CARELESS)
        assert drafted.token_ids == plain.token_ids
        assert drafted.finish == plain.finish
        assert drafted.stats.layer("grammar").failures == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forms_a_and_b_of_exactness_hold(target: LlamaTarget, temperature: float) -> None:
    sampling = Sampling(temperature, seed=2, grammar=JsonSchema(PERSON))
    layers = grammar_layers(target, sampling)
    result = generate(target, list(b"JSON: "), None, layers, 200, sampling=sampling, curve=CARELESS)
    assert result.stats.layer("grammar").sent.accepted > 10
    report = check_exactness(target, result)
    assert report.ok, report.describe()
    assert report.flips == ()


@pytest.mark.parametrize(
    ("value", "pattern"),
    [
        (
            Lark('start: greeting " " NAME "!"\ngreeting: "hello" | "bye"\nNAME: /[a-z]{3}/'),
            "(hello|bye) [a-z]{3}!",
        ),
        (Regex("(yes|no)[0-9]{2}"), "(yes|no)[0-9]{2}"),
    ],
)
def test_grammars_in_lark_and_regular_expressions(
    target: LlamaTarget, value: Structured, pattern: str
) -> None:
    import re

    for seed in range(4):
        sampling = Sampling(1.0, seed=seed, grammar=value)
        result = generate(target, list(b"say:"), max_tokens=40, sampling=sampling)
        text = b"".join(map(target.model.token_bytes, result.token_ids[:-1])).decode()
        assert re.fullmatch(pattern, text)


# -- states


def test_blanks_only_in_flexible_json(target: LlamaTarget) -> None:
    assert b" " not in permitted(target, after(target, JsonSchema(PERSON), '{"name":'))
    flexible = after(target, JsonSchema(PERSON, strict=False), '{"name":')
    assert {b" ", b"\n", b'"'} <= permitted(target, flexible)
    for token in ids(target, " " * 40):
        flexible.accept(token)
    assert {token[:1] for token in permitted(target, flexible)} == {b'"'}, "blanks must end"
    assert b"[" not in permitted(target, after(target, JsonObject()))


def test_end_tokens_are_permitted_only_at_the_end(target: LlamaTarget) -> None:
    value = Regex("ab?")
    ends = sorted(target.eog_ids)
    assert len(ends) > 1
    for text, complete in (("", False), ("a", True), ("ab", True)):
        sampler = after(target, value, text)
        assert sampler.permitted(np.array(ends)).tolist() == [complete] * len(ends)
        assert all(sampler.allowed([end, 97]) == int(complete) for end in ends)
        for end in ends:
            if complete:
                sampler.accept(end)
            else:
                with pytest.raises(GrammarError, match="must permit the token"):
                    sampler.accept(end)
    assert after(target, value).allowed([97, 98, ends[0], 97]) == 3
    assert after(target, value).allowed([97, 97, ends[0]]) == 1


def test_control_tokens_are_not_text(target: LlamaTarget) -> None:
    """<|im_start|> spelled out is text of a string, but the control token that spells it is not."""
    sampler = after(target, JsonSchema(PERSON), '{"name":"')
    control = target.model.tokenize("<|im_start|>", parse_special=True)
    assert len(control) == 1
    assert not sampler.permitted(np.array(control))[0]
    assert sampler.allowed(ids(target, "<|im_start|>")) == len("<|im_start|>")
    unused = np.arange(target.vocab_size - 5, target.vocab_size)
    assert not sampler.permitted(unused).any()


def test_a_refused_token_changes_nothing(target: LlamaTarget) -> None:
    sampler = after(target, JsonSchema(PERSON), '{"name":"x"')
    before = permitted(target, sampler)
    for wrong in (ord("}"), target.vocab_size + 5, min(target.eog_ids)):
        with pytest.raises(GrammarError):
            sampler.accept(wrong)
        assert permitted(target, sampler) == before
    assert sampler.allowed([*ids(target, ',"age":12'), ord("x")]) == len(ids(target, ',"age":12'))
    assert permitted(target, sampler) == before


@settings(
    max_examples=rounds(10, full=25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_rollback_and_copies(target: LlamaTarget, data: st.DataObject) -> None:
    """A state after rollback, and a copy, are those of the text, whatever was drafted in between."""
    text = ids(target, '{"name":"ab","age":7,"kind":"customer","tags":["x"]}')
    cut = data.draw(st.integers(0, len(text)))
    sampler = after(target, JsonSchema(PERSON))
    for at, token in enumerate(text):
        if data.draw(st.booleans()):
            sampler.allowed([*text[at : at + 3], data.draw(st.integers(0, 255))])
        sampler.accept(token)
    sampler.rollback(len(text) - cut)
    fresh = after(target, JsonSchema(PERSON))
    for token in text[:cut]:
        fresh.accept(token)
    assert permitted(target, sampler) == permitted(target, fresh)
    copy = sampler.forcing()
    assert copy is not None
    if cut < len(text):
        copy.accept(text[cut])
    assert permitted(target, sampler) == permitted(target, fresh)
    assert sampler.forcing().forced() == fresh.forcing().forced()  # type: ignore[union-attr]


def test_compiled_grammars_are_cached_but_not_shared(
    target: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = JsonSchema({"const": "only here"})
    first, second = (
        after(target, value),
        after(target, JsonSchema('{ "const":"only here" }')),
    )
    monkeypatch.setattr(structured_compiler, "_start_of", lambda *_: pytest.fail("compiled again"))
    third = after(target, value)
    first.accept(ord('"'))
    assert permitted(target, second) == permitted(target, third) == {b'"'}
    assert permitted(target, first) == {b"o"}


def test_threads_compile_at_the_same_time(target: LlamaTarget) -> None:
    found: list[int] = []

    def work(number: int) -> None:
        for i in range(10):
            state = target.compiler.compile(Regex(f"{number}x{i % 3}"))
            found.append(state.allowed(list(f"{number}x{i % 3}".encode())))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [3] * 40
