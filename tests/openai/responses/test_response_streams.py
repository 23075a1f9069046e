"""Streams of responses: OpenAI's events in order, the same response as without a stream, and their ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pydantic
import pytest
from openai.types.responses import ResponseStreamEvent

import openai
from support.openai_serving import NO_DRAFTS, client_of, cycle_text, running, settings_of
from support.response_tools import TOOLS
from support.serving import PATIENCE_S, eventually
from support.tiny_script import write_tiny_script

EVENT: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponseStreamEvent)
ENDLESS: dict[str, Any] = {
    "model": "cycle",
    "input": "ab",
    "max_output_tokens": 12_000,
    "temperature": 0,
    "stream": True,
}


def read(lines: Any) -> list[dict[str, Any]]:
    """The events of a stream; each is checked against the types of OpenAI's client."""
    events: list[dict[str, Any]] = []
    kind = None
    for line in lines:
        if line.startswith("event: "):
            kind = line[7:]
        elif line:
            assert line.startswith("data: ")
            data = json.loads(line[6:])
            assert data["type"] == kind
            assert data["sequence_number"] == len(events)
            EVENT.validate_python(data)
            events.append(data)
    return events


def streamed(client: openai.OpenAI, **fields: Any) -> list[dict[str, Any]]:
    with httpx.Client(base_url=str(client.base_url), timeout=PATIENCE_S) as http:
        body = {"temperature": 0, **fields, "stream": True}
        with http.stream("POST", "responses", json=body) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            return read(response.iter_lines())


def without_ids(value: Any) -> Any:
    """A response without what differs between two of them."""
    if isinstance(value, list):
        return [without_ids(each) for each in value]
    if not isinstance(value, dict):
        return value
    different = ("id", "call_id", "created_at", "completed_at", "usage", "metrics")
    return {name: without_ids(each) for name, each in value.items() if name not in different}


def test_a_text_has_openais_events_in_order(client: openai.OpenAI) -> None:
    events = streamed(client, model="cycle", input="ab", max_output_tokens=20)
    kinds = [each["type"] for each in events]
    deltas = kinds.count("response.output_text.delta")
    assert deltas > 1
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = cycle_text("\n", 20)
    assert "".join(each["delta"] for each in events if "delta" in each) == text
    assert events[-4]["text"] == text
    assert events[-3]["part"]["text"] == text
    assert events[-1]["response"]["output"] == [events[-2]["item"]]
    assert events[-2]["item"]["status"] == "incomplete"
    assert {each["item_id"] for each in events if "item_id" in each} == {events[-2]["item"]["id"]}
    assert events[0]["response"]["status"] == "in_progress"
    assert {each["response"]["id"] for each in events if "response" in each} == {events[0]["response"]["id"]}


def test_calls_have_openais_events_in_order(caller: openai.OpenAI) -> None:
    events = streamed(caller, model="chatty", input="x", tools=TOOLS)
    kinds = [each["type"].removeprefix("response.") for each in events if not each["type"].endswith("delta")]
    call = ["output_item.added", "function_call_arguments.done", "output_item.done"]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        *call,
        *call,
        "completed",
    ]
    done = [each for each in events if each["type"] == "response.output_item.done"]
    assert [each["output_index"] for each in done] == [0, 1, 2]
    assert [each["item"] for each in done] == events[-1]["response"]["output"]
    for index in (1, 2):
        deltas = [each["delta"] for each in events if each.get("output_index") == index and "delta" in each]
        assert "".join(deltas) == done[index]["item"]["arguments"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": {"type": "function", "name": "look"}},
        {"tools": TOOLS, "max_output_tokens": 4},
        {"tools": TOOLS, "parallel_tool_calls": False},
        {"stop": "look", "instructions": "x", "metadata": {"a": "b"}},
        {"text": {"format": {"type": "json_object"}}, "max_output_tokens": 12},
    ],
)
def test_a_stream_is_the_response_without_a_stream(caller: openai.OpenAI, fields: dict[str, Any]) -> None:
    body = {"model": "chatty", "input": "x", "temperature": 0, **fields}
    whole = httpx.post(f"{caller.base_url}responses", json=body, timeout=PATIENCE_S).json()
    last = streamed(caller, **body)[-1]["response"]
    assert without_ids(last) == without_ids(whole)
    assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert caller.responses.retrieve(last["id"]).to_dict() == last


def test_reasoning_is_an_item(tmp_path: Path) -> None:
    answers = {"Q": ("<think>", "I think", " so.", "</think>\n", "It is.")}
    template = "{# </think> #}{{ messages[-1].content }}Q"
    path = write_tiny_script(tmp_path / "thinker.gguf", answers, template=template)
    with running(settings_of(path)) as server, client_of(server) as client:
        body = {"model": "thinker", "input": "x", "temperature": 0}
        events = streamed(client, **body)
        kinds = [each["type"].removeprefix("response.") for each in events]
        assert [kind for kind in kinds if kind.startswith("reasoning")][-1] == "reasoning_text.done"
        reasoning, message = events[-1]["response"]["output"]
        assert reasoning["content"] == [{"type": "reasoning_text", "text": "I think so."}]
        assert (reasoning["type"], reasoning["summary"], reasoning["status"]) == (
            "reasoning",
            [],
            "completed",
        )
        assert message["content"][0]["text"] == "It is."
        whole = client.responses.create(**body)
        assert without_ids(whole.to_dict()) == without_ids(events[-1]["response"])
        [cut] = client.responses.create(**body, max_output_tokens=2).output
        assert (cut.type, cut.status) == ("reasoning", "incomplete")


def test_openais_client_accumulates_a_stream(caller: openai.OpenAI) -> None:
    with caller.responses.stream(model="chatty", input="x", tools=TOOLS, temperature=0) as stream:
        kinds = [each.type for each in stream]
        response = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert response.output_text == "I will look."
    assert [item.type for item in response.output] == ["message", "function_call", "function_call"]


def test_a_stream_that_the_server_ends_says_so(cycle: Path) -> None:
    settings = settings_of(cycle, context=1 << 14)
    with running(settings) as server, httpx.Client(timeout=PATIENCE_S) as http:
        with http.stream(
            "POST", f"http://{server.address}/v1/responses", json={**ENDLESS, **NO_DRAFTS}
        ) as response:
            lines = response.iter_lines()
            first = [next(lines) for _ in range(30)]
            server.service.engine.stop()
            events = read([*first, *lines])
        assert [each["type"] for each in events[-2:]] == ["error", "response.failed"]
        assert events[-2]["code"] == "server_stopping"
        failed = events[-1]["response"]
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert "stopping" in failed["error"]["message"]
    with running(settings) as server, client_of(server) as client:
        found = client.responses.create(**ENDLESS, extra_body=NO_DRAFTS)
        next(found)
        server.service.engine.stop()
        with pytest.raises(openai.APIError, match="stopping"):
            list(found)


def test_a_client_that_disconnects_frees_its_lane_and_nothing_is_kept(cycle: Path) -> None:
    with running(settings_of(cycle, context=1 << 14)) as server, client_of(server) as client:
        stream = client.responses.create(**ENDLESS, extra_body=NO_DRAFTS)
        created = next(iter(stream))
        eventually(lambda: server.service.engine.load.running == 1, "the lane is in use")
        stream.close()
        eventually(lambda: server.service.engine.load == (0, 0), "the lane is free")
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(created.response.id)


def test_an_answer_that_fails_at_once_has_a_status(client: openai.OpenAI) -> None:
    """The first token of the format is banned: the model cannot begin."""
    for stream in (True, False):
        with pytest.raises(openai.BadRequestError, match="permits none"):
            client.responses.create(
                model="cycle",
                input="x",
                stream=stream,
                temperature=0,
                text={
                    "format": {"type": "json_schema", "name": "x", "strict": True, "schema": {"const": {}}}
                },
                extra_body={"logit_bias": {str(ord("{")): -100}},
            )
