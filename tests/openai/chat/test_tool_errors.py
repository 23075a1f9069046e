"""Invalid tools, choices and conversations over a socket: 400 with the name of the field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from suffixsvc_openai.app.run import OpenAIServer
from support.serving import PATIENCE_S
from support.tool_requests import ASK, TOOLS, function, named

CALL = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
CALLED = [*ASK, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "noon"}


@pytest.fixture(scope="module")
def http(server: OpenAIServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{server.address}", timeout=PATIENCE_S) as http:
        yield http


def post(http: httpx.Client, fields: dict[str, Any]) -> httpx.Response:
    body = {"model": "cycle", "messages": ASK, "max_tokens": 4, "temperature": 0, **fields}
    return http.post("/v1/chat/completions", json=body)


def allowed(**value: Any) -> dict[str, Any]:
    return {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": value}}


def called(**fields: Any) -> dict[str, Any]:
    """A conversation whose call has other fields."""
    return {"messages": [*ASK, {"role": "assistant", "tool_calls": [{**CALL, **fields}]}, RESULT]}


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tool_choice": "auto", "tools": []}),
        ("tool_choice", {"tool_choice": named("now")}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": "any"}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": 5}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "wish"}}),
        ("tool_choice.function.name", {"tools": TOOLS, "tool_choice": named("other")}),
        ("tool_choice.function.name", {"tools": TOOLS, "tool_choice": {"type": "function", "name": "now"}}),
        ("tool_choice.allowed_tools.tools", allowed(mode="auto", tools=[])),
        ("tool_choice.allowed_tools.mode", allowed(mode="none", tools=[named("now")])),
        (
            "tool_choice.allowed_tools.tools[1].function.name",
            allowed(mode="auto", tools=[named("now"), named("x")]),
        ),
        ("tools", {"tools": {}}),
        ("tools[0]", {"tools": ["now"]}),
        ("tools[0].type", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}),
        ("tools[0].function", {"tools": [{"type": "function"}]}),
        ("tools[0].function.name", {"tools": [function("a b")]}),
        ("tools[1].function.name", {"tools": [function("a"), function("a")]}),
        ("tools[0].function.parameters", {"tools": [function("a", {"type": "string"})]}),
        ("parallel_tool_calls", {"tools": TOOLS, "parallel_tool_calls": "no"}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"messages": []}}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"self": 1, "tools": 1}}),
        ("messages[0].role", {"messages": [{"role": "function", "content": "x"}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": []}]}),
        ("messages[1].tool_call_id", {"messages": [*ASK, {"role": "tool", "content": "noon"}]}),
        ("messages[1].tool_call_id", {"messages": [*ASK, RESULT]}),
        ("messages[1].tool_call_id", {"messages": [*ASK, RESULT, *CALLED[1:]]}),
        ("messages[2].tool_call_id", {"messages": [*CALLED, {**RESULT, "tool_call_id": "call_2"}]}),
        ("messages[2].content", {"messages": [*CALLED, {**RESULT, "content": None}]}),
        ("messages[1].content", {"messages": [*ASK, {"role": "assistant"}]}),
        ("messages[1].content", {"messages": [*ASK, {"role": "assistant", "tool_calls": []}]}),
        (
            "messages[1].content",
            {"messages": [*ASK, {"role": "assistant", "content": None, "refusal": None}]},
        ),
        ("messages[1].content", {"messages": [*ASK, {"role": "user", "content": None, "refusal": "no"}]}),
        ("messages[1].refusal", {"messages": [*ASK, {"role": "assistant", "refusal": 7}]}),
        ("messages[1].tool_calls", {"messages": [*ASK, {"role": "assistant", "tool_calls": "now"}]}),
        ("messages[1].tool_calls[0].id", called(id=None)),
        ("messages[1].tool_calls[0].type", called(type="custom")),
        ("messages[1].tool_calls[0].function", called(function=None)),
        ("messages[1].tool_calls[0].function.name", called(function={"arguments": "{}"})),
        ("messages[1].tool_calls[0].function.arguments", called(function={"name": "now", "arguments": {}})),
        ("messages[1].tool_calls[0].function.arguments", called(function={"name": "now", "arguments": "{"})),
        ("messages[1].tool_calls[0].function.arguments", called(function={"name": "now", "arguments": "[]"})),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_invalid_field_is_named(
    http: httpx.Client, param: str, fields: dict[str, Any], stream: bool
) -> None:
    answer = post(http, {**fields, "stream": stream})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param.rpartition(".")[2] in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None, "tool_choice": None},
        {"tools": []},
        {"tool_choice": "none"},
        {"tools": TOOLS, "parallel_tool_calls": None},
        {"tools": TOOLS, "tool_choice": "auto"},
        {"messages": [*CALLED, RESULT]},
        {"messages": [*CALLED, {**RESULT, "content": ""}], "tools": TOOLS},
        {"messages": [*CALLED, RESULT, {"role": "assistant", "content": "", "tool_calls": None}]},
        {"messages": [{"role": "developer", "content": [{"type": "text", "text": "x"}]}, *ASK]},
        {"messages": [{"role": "user", "name": "ann", "content": "x"}]},
        {"messages": [*ASK, {"role": "assistant", "content": None, "refusal": "no"}, *ASK]},
        {"messages": [*ASK, {"role": "assistant", "refusal": "no"}, *ASK]},
        {"chat_template_kwargs": {"enable_thinking": False, "self": 1, "name": [{"a": None}]}},
    ],
)
def test_a_valid_request_is_answered(http: httpx.Client, fields: dict[str, Any]) -> None:
    answer = post(http, fields)
    assert answer.status_code == 200, answer.text


def test_tools_that_cannot_be_bound_are_400(http: httpx.Client) -> None:
    """Only where a grammar binds the answer: in auto the schemas are not compiled."""
    hostile = {"type": "object", "properties": {"x": {"type": "string", "pattern": "((a{99}){99}){99}"}}}
    fields: dict[str, Any] = {"tools": [function("now"), function("f", hostile)]}
    answer = post(http, {**fields, "tool_choice": "required"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tools[1].function.parameters"
    assert post(http, {**fields, "tool_choice": named("now")}).status_code == 200
    assert post(http, fields).status_code == 200
    many = [function(f"f{at}", {"type": "object", "description": "x" * 3000}) for at in range(100)]
    answer = post(http, {"tools": many, "tool_choice": "required"})
    assert answer.status_code == 400, "the grammar is too large"


def test_the_tool_whose_schema_is_malformed_is_named(http: httpx.Client) -> None:
    """And not the grammar of all tools, which the request does not have."""
    misspelt = function("f", {"type": "object", "properties": {"x": {"type": "strng"}}})
    fields = {"tools": [function("now"), misspelt], "tool_choice": "required"}
    answer = post(http, fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "tools[1].function.parameters"
    assert "the JSON schema must be supported by llguidance" in error["message"]
    assert "strng" in error["message"]
    assert "Lark" not in error["message"]


@pytest.mark.parametrize(
    "hostile", [{"type": "integer", "multipleOf": 999983}, {"type": "string", "pattern": "^(a{1000}){1000}$"}]
)
def test_tools_beside_a_format_have_the_limits_of_schemas(
    http: httpx.Client, hostile: dict[str, Any]
) -> None:
    """The grammar of such an answer has the schemas of all tools, also in auto."""
    parameters = {"type": "object", "properties": {"x": hostile}}
    tools = {"tools": [function("now"), function("f", parameters)]}
    required = post(http, {**tools, "tool_choice": "required"}).json()["error"]
    assert required["param"] == "tools[1].function.parameters"
    json_format = {"response_format": {"type": "json_object"}}
    beside = post(http, {**tools, **json_format, "tool_choice": "auto"})
    assert (beside.status_code, beside.json()) == (400, {"error": required})
    assert post(http, {**tools, **json_format, "tool_choice": "none"}).status_code == 200
    assert post(http, {**tools, "response_format": {"type": "text"}}).status_code == 200
