"""Responses over a socket with OpenAI's client: texts, calls, formats, conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import httpx
import pydantic
import pytest
from openai.types.responses import (
    Response,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseTextConfigParam,
)

import openai
from suffixsvc import SuffixCache
from suffixsvc_openai.responses.document import Document
from suffixsvc_openai.responses.request import ResponsesRequest
from support.openai_serving import client_of, cycle_text, running, settings_of
from support.response_tools import CHAT_TOOLS, TOOLS
from support.stored import stored_outputs

#: how the prompt of a chat ends
START = "\n"


def calls(response: Response) -> list[ResponseFunctionToolCall]:
    return [item for item in response.output if isinstance(item, ResponseFunctionToolCall)]


def test_a_response_has_openais_form(http: httpx.Client) -> None:
    body = {"model": "cycle", "input": "ab", "temperature": 0, "max_output_tokens": 5, "user": "u"}
    found = http.post("/v1/responses", json=body).json()
    response = Response.model_validate(found, strict=False)
    [item] = response.output
    assert isinstance(item, ResponseOutputMessage)
    assert (item.status, item.role, response.output_text) == ("incomplete", "assistant", cycle_text(START, 5))
    assert response.usage is not None
    assert response.usage.input_tokens + 5 == response.usage.total_tokens
    assert found["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}
    assert found["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    settings = ("background", "error", "instructions", "max_tool_calls", "metadata", "parallel_tool_calls")
    assert [found[name] for name in settings] == [False, None, None, None, {}, True]
    settings = ("previous_response_id", "service_tier", "store", "temperature", "tool_choice", "tools")
    assert [found[name] for name in settings] == [None, "default", True, 0.0, "auto", []]
    settings = ("text", "top_p", "truncation", "user", "max_output_tokens", "status", "incomplete_details")
    assert [found[name] for name in settings] == [
        {"format": {"type": "text"}, "verbosity": "medium"},
        1.0,
        "disabled",
        "u",
        5,
        "incomplete",
        {"reason": "max_output_tokens"},
    ]


def test_a_response_that_ends_is_completed(brief_client: openai.OpenAI) -> None:
    response = brief_client.responses.create(
        model="brief", input=[{"role": "user", "content": "hi"}], metadata={"a": "b"}, instructions="kind"
    )
    assert (response.output_text, response.status) == ("ok", "completed")
    assert response.completed_at is not None
    assert response.completed_at >= response.created_at
    assert (response.metadata, response.instructions) == ({"a": "b"}, "kind")


def test_an_answer_without_text_has_an_empty_message(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="cycle", input="x", temperature=0, extra_body={"stop": cycle_text(START, 1)}
    )
    [item] = response.output
    assert isinstance(item, ResponseOutputMessage)
    assert (response.status, item.status, response.output_text) == ("completed", "completed", "")


def test_text_and_calls_are_items_in_order(caller: openai.OpenAI) -> None:
    response = caller.responses.create(model="chatty", input="where?", tools=TOOLS, temperature=0)
    assert [item.type for item in response.output] == ["message", "function_call", "function_call"]
    assert response.output_text == "I will look."
    first, second = calls(response)
    assert (first.name, first.arguments, first.status) == ("look", '{"where": "here"}', "completed")
    assert (second.name, second.arguments) == ("wait", "{}")
    assert first.call_id != second.call_id
    assert first.id != first.call_id
    [tool, _] = response.tools
    assert (tool.type, response.parallel_tool_calls) == ("function", True)


def test_without_parallel_calls_the_first_one_counts(caller: openai.OpenAI) -> None:
    response = caller.responses.create(
        model="chatty", input="x", tools=TOOLS, parallel_tool_calls=False, temperature=0
    )
    assert [call.name for call in calls(response)] == ["look"]
    assert response.parallel_tool_calls is False


@pytest.mark.parametrize(
    ("fields", "parallel"),
    [
        ({}, True),
        ({"tool_choice": "required"}, False),
        ({"tool_choice": "required", "parallel_tool_calls": True}, True),
        ({"tool_choice": {"type": "function", "name": "look"}}, False),
        ({"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": TOOLS[:1]}}, False),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": TOOLS[:1]}}, True),
    ],
)
def test_parallel_calls_are_echoed_as_they_apply(fields: dict[str, Any], parallel: bool) -> None:
    request = ResponsesRequest.model_validate({"model": "m", "input": "x", "tools": TOOLS, **fields})
    assert Document.of(request).begun()["parallel_tool_calls"] is parallel


def test_tools_that_may_not_be_called_are_text(caller: openai.OpenAI) -> None:
    response = caller.responses.create(
        model="chatty", input="x", tools=TOOLS, tool_choice="none", temperature=0
    )
    assert not calls(response)
    assert '{"name": "look"' in response.output_text


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "wait"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "wait"}]},
    ],
)
def test_a_named_function_is_called(brief_client: openai.OpenAI, choice: Any) -> None:
    """Although the model would write "ok"."""
    response = brief_client.responses.create(
        model="brief", input="x", tools=TOOLS, tool_choice=choice, parallel_tool_calls=False
    )
    [call] = calls(response)
    assert call.name == "wait"
    assert response.status == "completed"
    assert response.model_dump()["tool_choice"] == choice


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_complete_has_a_result_though_the_answer_is_cut(
    caller: openai.OpenAI, stream: bool
) -> None:
    """The limit fell between the call's last brace and its closing marker; the result was then refused."""
    asked: dict[str, Any] = {
        "model": "chatty",
        "input": "hi",
        "tools": TOOLS,
        "max_output_tokens": 5,
        "temperature": 0,
    }
    if stream:
        *_, last = caller.responses.create(**asked, stream=True)
        response = last.response
    else:
        response = caller.responses.create(**asked)
    assert response.status == "incomplete"
    assert [(call.name, call.status) for call in calls(response)] == [
        ("look", "completed"),
        ("wait", "completed"),
    ]
    results: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
        for call in calls(response)
    ]
    assert caller.responses.create(**{**asked, "input": results}, previous_response_id=response.id).output


def test_a_call_that_is_cut_is_incomplete(brief_client: openai.OpenAI) -> None:
    def asked(**fields: Any) -> Response:
        return brief_client.responses.create(
            model="brief", input="x", tools=TOOLS, tool_choice="required", temperature=0, **fields
        )

    [call] = calls(asked())
    written = f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}'  # a token each
    whole, cut = (asked(max_output_tokens=len(written) - less) for less in (0, 1))
    assert (whole.status, cut.status) == ("incomplete", "incomplete")
    assert (calls(whole)[-1].status, calls(cut)[-1].status) == ("completed", "incomplete")
    again = brief_client.responses.create(model="brief", input="go on", previous_response_id=cut.id)
    assert again.output_text == "ok"


class Answer(pydantic.BaseModel):
    """A form of an answer."""

    kind: Literal["a", "b"]


def test_an_answer_is_parsed_with_pydantic(brief_client: openai.OpenAI) -> None:
    response = brief_client.responses.parse(model="brief", input="x", text_format=Answer)
    assert response.output_parsed is not None
    assert response.output_parsed.kind in ("a", "b")
    assert response.text is not None
    assert response.text.format is not None
    assert response.text.format.type == "json_schema"
    assert response.text.format.strict is True


def test_a_json_object_is_one(brief_client: openai.OpenAI) -> None:
    form: ResponseTextConfigParam = {"format": {"type": "json_object"}}
    response = brief_client.responses.create(model="brief", input="x", text=form, max_output_tokens=20)
    assert response.output_text.startswith("{")
    assert response.text is not None
    assert response.text.verbosity == "medium"


def test_a_conversation_goes_on_as_if_it_were_sent_whole(caller: openai.OpenAI) -> None:
    first = caller.responses.create(model="chatty", input="where?", tools=TOOLS, temperature=0)
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "fine"} for call in calls(first)
    ]
    second = caller.responses.create(
        model="chatty", input=outputs, tools=TOOLS, temperature=0, previous_response_id=first.id
    )
    items: list[Any] = [{"role": "user", "content": "where?"}, *first.output, *outputs]
    whole = caller.responses.create(model="chatty", input=items, tools=TOOLS, temperature=0, store=False)
    assert second.previous_response_id == first.id
    assert second.usage is not None
    assert whole.usage is not None
    assert second.usage.input_tokens == whole.usage.input_tokens
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens
    # all but its last token is known: of the first prompt, or computed for the second response
    assert whole.usage.input_tokens_details.cached_tokens >= whole.usage.input_tokens - 1
    messages: list[Any] = [
        {"role": "user", "content": "where?"},
        {
            "role": "assistant",
            "content": "I will look.",
            "tool_calls": [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in calls(first)
            ],
        },
        *({"role": "tool", "tool_call_id": each["call_id"], "content": each["output"]} for each in outputs),
    ]
    chat = caller.chat.completions.create(
        model="chatty",
        messages=messages,
        tools=CHAT_TOOLS,
        temperature=0,
    )
    assert chat.usage is not None
    assert chat.usage.prompt_tokens == second.usage.input_tokens


def test_items_are_found_by_reference(caller: openai.OpenAI) -> None:
    first = caller.responses.create(model="chatty", input="where?", tools=TOOLS, temperature=0)
    asked = caller.responses.input_items.list(first.id).data[0]
    references: list[Any] = [{"type": "item_reference", "id": item.id} for item in (asked, *first.output)]
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "fine"} for call in calls(first)
    ]
    second = caller.responses.create(model="chatty", input=[*references, *outputs], temperature=0)
    third = caller.responses.create(
        model="chatty", input=outputs, previous_response_id=first.id, temperature=0
    )
    assert second.usage is not None
    assert third.usage is not None
    assert second.usage.input_tokens == third.usage.input_tokens
    assert [item.type for item in caller.responses.input_items.list(second.id, order="asc").data] == [
        "message",
        "message",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
    ]


def test_the_agent_of_a_response_is_that_of_the_chat(brief: Path, tmp_path: Path) -> None:
    with running(settings_of(brief, data=tmp_path / "data")) as server, client_of(server) as client:
        client.responses.create(model="brief", input="hi", instructions="You are kind.", tools=TOOLS)
        client.chat.completions.create(
            model="brief",
            messages=[{"role": "system", "content": "You are kind."}, {"role": "user", "content": "again"}],
            tools=CHAT_TOOLS[::-1],
        )
        client.responses.create(model="brief", input="no", extra_body={"suffixsvc": {"no_store": True}})
        client.responses.create(
            model="brief", input="yes", store=False, metadata={"agent": "x", "namespace": "other"}
        )
    with SuffixCache(tmp_path / "data", background=False) as cache:
        labels = {
            record.path.split("/")[1]: [
                found.output.labels["agent"] for found in stored_outputs(cache, record.path)
            ]
            for record in cache.namespaces()
        }
    [first, second] = labels["default"]
    assert first == second
    assert labels["other"] == ["x"]
