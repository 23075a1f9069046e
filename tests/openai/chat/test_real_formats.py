"""Formats and required calls of a small language model, which writes no JSON of its own accord."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import openai
from suffixsvc_driver.decode.exactness import MAX_GAP
from support.openai_serving import NO_DRAFTS, client_of, running, settings_of
from support.tool_requests import function, named

PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "country": {"enum": ["Italy", "France", "Spain"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 14},
        "stops": {
            "type": "array",
            "maxItems": 1,
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 6}, "museum": {"type": "boolean"}},
                "required": ["name", "museum"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["city", "country", "days", "stops"],
    "additionalProperties": False,
}
SCHEMAS = {"plan_trip": PLACE, "set_mode": {"type": "object", "properties": {"on": {"type": "boolean"}}}}
TOOLS = [function(name, schema) for name, schema in SCHEMAS.items()]
QUESTIONS = ("Plan a trip to Rome.", "Tell me a joke about 3 cats in Paris!")


@pytest.fixture(scope="module")
def client(real_model: Path) -> Iterator[openai.OpenAI]:
    with running(settings_of(real_model)) as server, client_of(server) as client:
        yield client


@pytest.fixture
def model(real_model: Path) -> str:
    return real_model.stem


def ask(client: openai.OpenAI, model: str, question: str, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": question}]
    given: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": 250, "logprobs": True}
    return client.chat.completions.create(**given, **fields)


def assert_same(one: Any, other: Any) -> None:
    """The tokens of two greedy answers are the same, up to one that rounding may change: a near-tie."""
    pairs = zip(one.logprobs.content, other.logprobs.content, strict=False)
    differing = next(((a, b) for a, b in pairs if a.token != b.token), None)
    if differing is not None:
        assert abs(differing[0].logprob - differing[1].logprob) <= MAX_GAP, differing


def format_of(strict: bool) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE, "strict": strict}}


@pytest.mark.parametrize(
    ("question", "strict"), [(QUESTIONS[0], True), (QUESTIONS[1], True), (QUESTIONS[0], False)]
)
def test_an_answer_fits_the_schema(client: openai.OpenAI, model: str, question: str, strict: bool) -> None:
    given: dict[str, Any] = {"response_format": format_of(strict), "temperature": 0}
    answer = ask(client, model, question, **given)
    [choice] = answer.choices
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content), PLACE)
    if strict:
        assert answer.model_extra["metrics"]["speculative_decoding"]["tokens_by_source"]["grammar"] > 0
    plain = ask(client, model, question, **given, extra_body=NO_DRAFTS).choices[0]
    jsonschema.validate(json.loads(plain.message.content), PLACE)
    assert_same(choice, plain)


def test_sampled_answers_fit_the_schema(client: openai.OpenAI, model: str) -> None:
    answer = ask(client, model, QUESTIONS[1], response_format=format_of(True), temperature=1.5, seed=5, n=3)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), PLACE)


@pytest.mark.parametrize("choice", ["required", "plan_trip", "set_mode"])
def test_a_required_call_fits_its_schema(client: openai.OpenAI, model: str, choice: str) -> None:
    given: dict[str, Any] = {
        "tools": TOOLS,
        "tool_choice": choice if choice == "required" else named(choice),
        "parallel_tool_calls": False,
        "temperature": 0,
    }
    drafted = ask(client, model, QUESTIONS[1], **given).choices[0]
    plain = ask(client, model, QUESTIONS[1], **given, extra_body=NO_DRAFTS).choices[0]
    for answer in (drafted, plain):
        assert answer.finish_reason == ("tool_calls" if choice == "required" else "stop")
        assert answer.message.content is None
        [call] = answer.message.tool_calls
        assert choice in ("required", call.function.name)
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    assert_same(drafted, plain)
