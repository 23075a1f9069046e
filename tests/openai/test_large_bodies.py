"""Bodies that are large in every way that JSON allows: an error in little time and memory, over a socket."""

from __future__ import annotations

import json

import httpx
import pytest
from pydantic import BaseModel, ValidationError

from suffixsvc_openai.app.run import OpenAIServer
from suffixsvc_openai.protocol.chat_request import ChatRequest
from suffixsvc_openai.protocol.completion_request import CompletionRequest
from suffixsvc_openai.protocol.generation_request import MAX_MESSAGES, MAX_TOOLS
from suffixsvc_openai.responses.request import ResponsesRequest
from support.openai_serving import CONTEXT
from support.serving import PATIENCE_S

MANY = 50_000
CHAT = '"messages": [{"role": "user", "content": "ab"}]'
INPUT = '"input": "ab"'
PATHS = {
    ChatRequest: "/v1/chat/completions",
    CompletionRequest: "/v1/completions",
    ResponsesRequest: "/v1/responses",
}


def listed(element: str, count: int = MANY) -> str:
    return f"[{','.join([element] * count)}]"


def fields(element: str) -> str:
    return json.dumps(dict.fromkeys(map(str, range(MANY)), json.loads(element)))


LARGE = [
    (ChatRequest, "messages[0].role", f'"messages": {listed("{}")}'),
    (ChatRequest, "messages", '"messages": ' + listed('{"role": "user", "content": "a"}')),
    (
        ChatRequest,
        "messages[0].tool_calls[0]",
        f'"messages": [{{"role": "assistant", "tool_calls": {listed("1")}}}]',
    ),
    (ChatRequest, "tools[0]", f'{CHAT}, "tools": {listed("[]")}'),
    (ChatRequest, "tools", f'{CHAT}, "tools": {listed("{}")}'),
    (ChatRequest, "stop[0]", f'{CHAT}, "stop": {listed("1")}'),
    (ChatRequest, "stop", f'{CHAT}, "stop": {listed(chr(34) + "a" + chr(34))}'),
    (ChatRequest, "modalities[0]", f'{CHAT}, "modalities": {listed("1")}'),
    (ChatRequest, "metadata", f'{CHAT}, "metadata": {fields("1")}'),
    (ChatRequest, "metadata.a", f'{CHAT}, "metadata": {json.dumps({"a": "a" * 513})}'),
    (ChatRequest, "metadata." + "a" * 65, f'{CHAT}, "metadata": {json.dumps({"a" * 65: ""})}'),
    (ChatRequest, "logit_bias", f'{CHAT}, "logit_bias": {fields("1000")}'),
    (ChatRequest, "suffixsvc.reads[0]", f'{CHAT}, "suffixsvc": {{"reads": {listed("1")}}}'),
    (CompletionRequest, "prompt", f'"prompt": {listed("{}")}'),
    (CompletionRequest, "prompt", f'"prompt": [{listed("{}")}]'),
    (ResponsesRequest, "input[0]", f'"input": {listed("[]")}'),
    (ResponsesRequest, "input", f'"input": {listed("{}")}'),
    (ResponsesRequest, "include[0]", f'{INPUT}, "include": {listed("1")}'),
    (ResponsesRequest, "tools[0]", f'{INPUT}, "tools": {listed("1")}'),
]


@pytest.mark.parametrize(("kind", "param", "body"), LARGE)
def test_the_first_error_is_the_only_one(
    server: OpenAIServer, kind: type[BaseModel], param: str, body: str
) -> None:
    text = f'{{"model": "cycle", {body}}}'
    answer = httpx.post(f"http://{server.address}{PATHS[kind]}", content=text, timeout=PATIENCE_S)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert len(error["message"]) < 400
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(text)
    assert caught.value.error_count() <= 8  # each costs a hundred times what its element does


def test_as_many_as_are_allowed_are_not_too_many() -> None:
    message, tool = '{"role": "user", "content": "a"}', "{}"
    body = f'"messages": {listed(message, MAX_MESSAGES)}, "tools": {listed(tool, MAX_TOOLS)}'
    found = ChatRequest.model_validate_json(f'{{"model": "cycle", {body}, "logit_bias": {{"97": 1}}}}')
    assert len(found.messages) == MAX_MESSAGES
    assert found.logit_bias == {97: 1}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", {"prompt": "ab " * (1 << 20)}, "prompt"),
        ("completions", {"prompt": ["ab", "ab " * (1 << 20)]}, "prompt"),
        ("chat/completions", {"messages": [{"role": "user", "content": "ab " * (1 << 20)}]}, "messages"),
        ("responses", {"input": "ab " * (1 << 20)}, "input"),
        ("responses", {"input": "ab " * (1 << 20), "truncation": "auto"}, "input"),
    ],
)
def test_a_text_far_beyond_the_context_is_not_tokenized_to_its_end(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, object], param: str
) -> None:
    model, longest = server.service.engine.model, []
    tokenize = model.tokenize
    monkeypatch.setattr(
        model, "tokenize", lambda text, **flags: longest.append(len(text)) or tokenize(text, **flags)
    )
    url = f"http://{server.address}/v1/{path}"
    answer = httpx.post(url, json={"model": "cycle", **body}, timeout=PATIENCE_S)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["code"] == "context_length_exceeded"
    assert 0 < max(longest) < 64 * CONTEXT


def test_a_prediction_far_beyond_the_context_is_refused(server: OpenAIServer) -> None:
    body = {"model": "cycle", "messages": [{"role": "user", "content": "a"}]}
    predicted = {"type": "content", "content": "ab " * (1 << 20)}
    url = f"http://{server.address}/v1/chat/completions"
    answer = httpx.post(url, json={**body, "prediction": predicted}, timeout=PATIENCE_S)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prediction.content")
