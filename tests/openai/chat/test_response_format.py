"""Formats of answers over a socket: JSON that fits the schema, whatever the model would write."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import jsonschema
import pydantic
import pytest

import openai
from suffixsvc_driver.targets.llama import structured_compiler
from suffixsvc_openai.app.run import OpenAIServer
from support.openai_serving import NO_DRAFTS, client_of, running, settings_of
from support.serving import PATIENCE_S, eventually
from support.tiny_gguf import write_tiny_llama
from support.tiny_script import write_tiny_script
from support.tool_requests import ASK, function

PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Paris"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 14},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["city", "days", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAIServer]:
    """A model that writes noise."""
    path = write_tiny_llama(tmp_path_factory.mktemp("noisy") / "noisy.gguf", context=1 << 14, seed=3)
    with running(settings_of(path)) as server:
        yield server


@pytest.fixture(scope="module")
def noise(noisy: OpenAIServer) -> Iterator[openai.OpenAI]:
    with client_of(noisy) as client:
        yield client


def schema(value: dict[str, Any], **more: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "place", "schema": value, **more}}


def text_of(client: openai.OpenAI, response_format: Any, **fields: Any) -> str:
    given = {"model": "noisy", "messages": ASK, "max_tokens": 300, "temperature": 0, **fields}
    choice = client.chat.completions.create(**given, response_format=response_format).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content is not None
    return choice.message.content


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("strict", [True, False, None])
def test_an_answer_fits_the_schema(noise: openai.OpenAI, strict: bool | None, seed: int) -> None:
    sampled = {"temperature": 1.0 if seed else 0, "seed": seed}
    text = text_of(noise, schema(PLACE, strict=strict), **sampled)
    jsonschema.validate(json.loads(text), PLACE)
    if strict:
        assert text == json.dumps(json.loads(text), separators=(",", ":"))
    assert text == text_of(noise, schema(PLACE, strict=strict), **sampled, extra_body=NO_DRAFTS)


def test_a_stream_is_the_whole_answer(noise: openai.OpenAI) -> None:
    stream = noise.chat.completions.create(
        model="noisy", messages=ASK, max_tokens=300, temperature=0, response_format=schema(PLACE), stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == text_of(noise, schema(PLACE))


def test_openais_client_parses_pydantic_models(noise: openai.OpenAI) -> None:
    class Place(pydantic.BaseModel):
        city: Literal["Rome", "Paris"]
        rainy: bool
        size: Literal[1, 2, 3]

    given: dict[str, Any] = {"model": "noisy", "messages": ASK, "max_tokens": 300, "temperature": 0}
    found = noise.chat.completions.parse(**given, response_format=Place).choices[0].message.parsed
    assert isinstance(found, Place)
    with noise.chat.completions.stream(**given, response_format=Place) as stream:
        for _ in stream:
            pass
        [choice] = stream.get_final_completion().choices
    assert choice.message.parsed == found


def test_json_object_is_an_object(tmp_path: Path) -> None:
    """The model ends objects."""
    path = write_tiny_script(tmp_path / "object.gguf", {"\n": ('{"a', '": [1, ', "2]}")})
    with running(settings_of(path)) as server, client_of(server) as client:
        assert text_of(client, {"type": "json_object"}, model="object") == '{"a": [1, 2]}'
        text = client.chat.completions.create(
            model="object", messages=ASK, temperature=0, response_format={"type": "text"}
        )
        assert text.choices[0].message.content == '{"a": [1, 2]}'


def test_keywords_that_no_grammar_enforces_are_400_only_if_strict(noise: openai.OpenAI) -> None:
    unique = {"enum": ["Rome"], "unheardOf": 1, "contentEncoding": "base64"}
    loose = {**PLACE, "properties": {**PLACE["properties"], "city": {**unique, "not": {"type": "null"}}}}
    jsonschema.validate(json.loads(text_of(noise, schema(loose))), PLACE)
    with pytest.raises(openai.BadRequestError) as caught:
        text_of(noise, schema(loose, strict=True))
    assert caught.value.param == "response_format"


def test_an_answer_is_a_call_or_fits_the_format(tmp_path: Path) -> None:
    """In auto, with tools: the grammar leaves both, and an object without a marker is no call."""
    call = '{"name": "now", "arguments": {}}'
    either = {
        "a": ("<tool_call>\n", "Well,"),
        "b": ('{"name": "now", ', '"arguments": ', "{}}"),
        "c": ("Certainly!", "Here it is."),
    }
    template = "{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[-1].content }}"
    path = write_tiny_script(tmp_path / "either.gguf", either, template=template)
    open_schema = schema({"type": "object"}, strict=False)
    with running(settings_of(path)) as server, client_of(server) as client:

        def ask(ending: str) -> Any:
            return client.chat.completions.create(
                model="either",
                messages=[{"role": "user", "content": ending}],
                tools=[function("now")],
                parallel_tool_calls=False,
                response_format=open_schema,
                temperature=0,
                max_tokens=60,
            ).choices[0]

        called = ask("a")
        assert called.finish_reason == "tool_calls"
        assert [each.function.name for each in called.message.tool_calls] == ["now"]
        assert called.message.content is None
        assert (ask("b").message.content, ask("b").message.tool_calls) == (call, None)
        text = ask("c").message.content or "<tool_call>"
        assert text[0] in "{<", "bound from the first token"


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("response_format", "json"),
        ("response_format.type", {}),
        ("response_format.type", {"type": "xml"}),
        ("response_format.json_schema", {"type": "json_schema"}),
        ("response_format.json_schema.name", {"type": "json_schema", "json_schema": {"schema": PLACE}}),
        ("response_format.json_schema.name", {"type": "json_schema", "json_schema": {"name": "a b"}}),
        ("response_format.json_schema.strict", schema(PLACE, strict="yes")),
        ("response_format.json_schema.schema", schema([])),  # type: ignore[arg-type]
        ("response_format", schema({"type": "nothing"}, strict=True)),
        ("response_format", schema({"$ref": "#/$defs/none"}, strict=True)),
        ("response_format", schema({"$ref": "http://127.0.0.1:9/schema.json"}, strict=True)),
        (
            "response_format",
            schema({"type": "object", "properties": {"a": False}, "required": ["a"]}, strict=True),
        ),
    ],
)
def test_an_invalid_format_is_400(noisy: OpenAIServer, param: str, value: Any) -> None:
    error = refused(noisy, value)
    assert error["param"] == param, error


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        value = {"type": "array", "items": value}
    return value


@pytest.mark.parametrize(
    "value",
    [
        {"type": "string", "pattern": "^(a{1000}){1000}$"},
        {"type": "integer", "multipleOf": 999983},
        {"enum": [f"value {at}" for at in range(100_000)]},
        {"anyOf": [{"type": "object", "properties": {f"p{at}": {"type": "string"}}} for at in range(5000)]},
        nested(400),
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ],
    ids=["pattern", "multiple", "enum", "alternatives", "nested", "cycle"],
)
def test_a_hostile_schema_is_400_in_time_and_others_are_answered(noisy: OpenAIServer, value: Any) -> None:
    began = time.monotonic()
    refused(noisy, schema(value, strict=True))
    assert time.monotonic() - began < PATIENCE_S / 2
    with client_of(noisy) as client:
        jsonschema.validate(json.loads(text_of(client, schema(PLACE))), PLACE)


def refused(server: OpenAIServer, value: Any) -> dict[str, Any]:
    body = {"model": "noisy", "messages": ASK, "max_tokens": 50, "temperature": 0, "response_format": value}
    with httpx.Client(base_url=f"http://{server.address}", timeout=PATIENCE_S) as http:
        answer = http.post("/v1/chat/completions", content=json.dumps(body))
    assert answer.status_code == 400, answer.text[:300]
    error: dict[str, Any] = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error


def test_a_format_binds_the_text_where_tools_may_not_be_called(noise: openai.OpenAI) -> None:
    text = text_of(noise, schema(PLACE), tools=[function("now")], tool_choice="none")
    jsonschema.validate(json.loads(text), PLACE)


def test_grammars_that_compile_for_long_delay_no_other_answer(
    noisy: OpenAIServer, noise: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than threads, of which some wait for one; then 429, until they are compiled."""
    real, go_on = structured_compiler._start_of, threading.Event()

    def slow(value: Any, tokenizer: Any) -> Any:
        assert go_on.wait(PATIENCE_S)
        return real(value, tokenizer)

    monkeypatch.setattr(structured_compiler, "_start_of", slow)
    monkeypatch.setattr(noisy.service.engine._target.compiler, "time_limit", 0.5)
    found: list[int] = []

    def ask(at: int) -> None:
        body = {"model": "noisy", "messages": ASK, "response_format": schema({"enum": [at]})}
        answer = httpx.post(f"http://{noisy.address}/v1/chat/completions", json=body, timeout=PATIENCE_S)
        assert answer.json()["error"]["param"] == "response_format"
        found.append(answer.status_code)

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(8)]
    for each in threads:
        each.start()
    assert noise.chat.completions.create(model="noisy", messages=ASK, max_tokens=3).usage
    for each in threads:
        each.join()
    assert set(found) == {400, 429}
    assert found.count(429) >= 4
    assert noise.chat.completions.create(model="noisy", messages=ASK, max_tokens=3).usage
    go_on.set()
    eventually(lambda: not noisy.service.engine._target.compiler._left, "they are compiled")
    assert json.loads(text_of(noise, schema({"enum": ["after"]}))) == "after"


def test_the_tokenizer_of_grammars_is_made_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a large vocabulary that takes about a second, for which the first answer with a grammar waited."""
    made = threading.Event()
    prepare = structured_compiler.GrammarCompiler.prepare

    def recorded(compiler: structured_compiler.GrammarCompiler) -> None:
        prepare(compiler)
        made.set()

    monkeypatch.setattr(structured_compiler.GrammarCompiler, "prepare", recorded)
    model = tmp_path / "noise.gguf"
    write_tiny_llama(model)
    with running(settings_of(model)):
        assert made.wait(PATIENCE_S)
