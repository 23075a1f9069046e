"""Responses that repeat long settings or inputs: their JSON is made in a thread, and is the same."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest

from suffixsvc_openai.app.run import OpenAIServer
from suffixsvc_openai.responses import stored
from suffixsvc_openai.responses.stored import ResponseStore

HTTP = "suffixsvc-http"
LONG = "a\u4e2d" * 60_000
TOOLS = [{"type": "function", "name": f"f{i}", "parameters": {"type": "object"}} for i in range(1_000)]


@pytest.fixture
def threads(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Names of the threads that store responses and make the JSON of their parts."""
    found: dict[str, set[str]] = {"add": set(), "encoded": set()}
    add, encoded = ResponseStore.add, stored._json

    def watched(*given: Any) -> None:
        found["add"].add(threading.current_thread().name)
        add(*given)

    def watched_encoded(*given: Any) -> bytes:
        found["encoded"].add(threading.current_thread().name)
        return encoded(*given)

    monkeypatch.setattr(ResponseStore, "add", watched)
    monkeypatch.setattr(stored, "_json", watched_encoded)
    return found


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("field", [{"instructions": LONG}, {"tools": TOOLS, "tool_choice": "none"}])
def test_other_streams_do_not_wait_for_a_long_response(
    http: httpx.Client, threads: dict[str, set[str]], field: dict[str, Any], stream: bool, small_prompt: None
) -> None:
    body = {"model": "cycle", "input": "a", "max_output_tokens": 4, "stream": stream, **field}
    answer = http.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    if stream:
        lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
        events = [json.loads(line.removeprefix("data: ")) for line in lines]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        response = events[-1]["response"]
        assert events[0]["response"]["instructions"] == response["instructions"]
    else:
        response = answer.json()
    assert response["instructions"] == field.get("instructions")
    assert len(response["tools"]) == len(field.get("tools", []))
    assert http.get(f"/v1/responses/{response['id']}").json() == response
    assert HTTP not in threads["add"] | threads["encoded"]


def test_a_short_response_needs_no_thread(http: httpx.Client, threads: dict[str, set[str]]) -> None:
    body = {"model": "cycle", "input": "a", "max_output_tokens": 4}
    assert http.post("/v1/responses", json=body).status_code == 200
    assert threads["add"] == {HTTP}


@pytest.fixture
def small_prompt(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The template leaves long instructions out, so that they fit in the context."""
    chat = server.service.chat
    prompt = chat.prompt

    def without_system(turn: Any) -> Any:
        return prompt(replace(turn, messages=[m for m in turn.messages if m["role"] != "system"]))

    monkeypatch.setattr(chat, "prompt", without_system)
