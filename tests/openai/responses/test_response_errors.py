"""Invalid requests of responses: OpenAI's statuses and bodies."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

BODY: dict[str, Any] = {"model": "cycle", "input": "ab", "max_output_tokens": 4, "temperature": 0}
TOOL: dict[str, Any] = {"type": "function", "name": "look", "parameters": {"type": "object"}}
SCHEMA: dict[str, Any] = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error of a response, whose form is OpenAI's."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("input", {"input": None}),
        ("input", {"input": []}),
        ("input", {"input": 5}),
        ("input[0]", {"input": ["x"]}),
        ("input[0].role", {"input": [{"role": "wizard", "content": "x"}]}),
        (
            "input[0].content[0]",
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        ),
        ("input[0].type", {"input": [{"type": "web_search_call", "id": "x"}]}),
        ("input", {"input": "a" * 3000}),
        ("instructions", {"instructions": 5}),
        ("model", {"model": None}),
        ("temperature", {"temperature": 5}),
        ("temperature", {"temperature": "0.5"}),
        ("top_p", {"top_p": -0.1}),
        ("max_output_tokens", {"max_output_tokens": 0}),
        ("max_output_tokens", {"max_output_tokens": "4"}),
        ("stream", {"stream": "yes"}),
        ("store", {"store": "no"}),
        ("metadata.a", {"metadata": {"a": 1}}),
        ("previous_response_id", {"previous_response_id": 5}),
        ("truncation", {"truncation": "all"}),
        ("input", {"input": "a" * 3000, "truncation": "auto"}),
        ("reasoning.effort", {"reasoning": {"effort": "huge"}}),
        ("include[0]", {"include": ["wishes"]}),
        ("background", {"background": True}),
        ("conversation", {"conversation": "conv_1"}),
        ("prompt", {"prompt": {"id": "pmpt_1"}}),
        ("context_management", {"context_management": [{"type": "compaction"}]}),
        ("moderation", {"moderation": {"model": "omni"}}),
        ("n", {"n": 2}),
        ("messages", {"messages": [{"role": "user", "content": "x"}]}),
        ("max_tokens", {"max_tokens": 5}),
        ("max_completion_tokens", {"max_completion_tokens": 5}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("text.verbosity", {"text": {"verbosity": "endless"}}),
        ("text.format.type", {"text": {"format": {"type": "xml"}}}),
        ("text.format.type", {"text": {"format": {}}}),
        ("text.format.name", {"text": {"format": {**SCHEMA, "name": "a b"}}}),
        ("text.format.schema", {"text": {"format": {**SCHEMA, "schema": 5}}}),
        ("text.format", {"text": {"format": {**SCHEMA, "schema": {"type": "nothing"}}}}),
        ("text.format.strict", {"text": {"format": {**SCHEMA, "strict": "yes"}}}),
        ("tools", {"tools": {}}),
        ("tools[0].name", {"tools": [{"type": "function", "function": {"name": "look"}}]}),
        ("tools[0].name", {"tools": [{**TOOL, "name": "a b"}]}),
        ("tools[1].name", {"tools": [TOOL, TOOL]}),
        ("tools[0].parameters", {"tools": [{**TOOL, "parameters": {"type": "string"}}]}),
        ("tools[0].strict", {"tools": [{**TOOL, "strict": "yes"}]}),
        ("tools[0].description", {"tools": [{**TOOL, "description": 5}]}),
        ("tool_choice", {"tool_choice": "always", "tools": [TOOL]}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tool_choice": 5, "tools": [TOOL]}),
        ("tool_choice", {"tool_choice": {"type": "web_search"}, "tools": [TOOL]}),
        ("tool_choice.name", {"tool_choice": {"type": "function", "name": "jump"}, "tools": [TOOL]}),
        ("tool_choice.name", {"tool_choice": {"type": "function"}, "tools": [TOOL]}),
        ("tool_choice.mode", {"tool_choice": {"type": "allowed_tools", "tools": [TOOL]}, "tools": [TOOL]}),
        (
            "tool_choice.tools[0].name",
            {
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{**TOOL, "name": "jump"}]},
                "tools": [TOOL],
            },
        ),
        ("suffixsvc.namespace", {"suffixsvc": {"namespace": "../other"}}),
    ],
)
def test_an_invalid_field_is_named(http: httpx.Client, param: str, fields: dict[str, Any]) -> None:
    error = error_of(http.post("/v1/responses", json={**BODY, **fields}))
    assert error["param"] == param, error
    assert param in error["message"]


@pytest.mark.parametrize(
    "kind",
    [
        "web_search",
        "web_search_preview",
        "file_search",
        "computer_use_preview",
        "code_interpreter",
        "mcp",
        "image_generation",
        "local_shell",
        "custom",
        None,
    ],
)
def test_hosted_tools_are_refused(http: httpx.Client, kind: str | None) -> None:
    error = error_of(http.post("/v1/responses", json={**BODY, "tools": [TOOL, {"type": kind, "name": "x"}]}))
    assert error["param"] == "tools[1].type"
    assert repr(kind) in error["message"]
    assert "function only" in error["message"]


def test_errors_of_openai_have_its_codes(http: httpx.Client) -> None:
    error = error_of(http.post("/v1/responses", json={**BODY, "model": "gpt-5"}), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    error = error_of(http.post("/v1/responses", json={**BODY, "previous_response_id": "resp_x"}))
    assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")
    assert error["message"].startswith("Previous response with id 'resp_x' not found.")
    reference = [{"type": "item_reference", "id": "msg_x"}]
    error = error_of(http.post("/v1/responses", json={**BODY, "input": reference}), 404)
    assert (error["param"], error["code"]) == ("input", None)
    assert error["message"].startswith("Item with id 'msg_x' not found.")
    first = http.post("/v1/responses", json=BODY).json()
    reference = [{"type": "item_reference", "id": first["output"][0]["id"]}] * 2
    error = error_of(http.post("/v1/responses", json={**BODY, "input": reference}))
    assert error["message"].startswith("Duplicate item found with id 'msg_")
    orphan = [{"type": "function_call_output", "call_id": "c1", "output": "x"}]
    error = error_of(http.post("/v1/responses", json={**BODY, "input": orphan}))
    assert error["message"] == "No tool call found for function call output with call_id c1."
    error = error_of(http.post("/v1/responses", json={**BODY, "input": "a" * 3000, "stream": True}))
    assert error["code"] == "context_length_exceeded"


def test_what_is_not_served_is_404(http: httpx.Client) -> None:
    error_of(http.post("/v1/responses/compact", json=BODY), 404)
    error_of(http.post("/v1/responses/resp_x/cancel"), 404)
    error_of(http.get("/v1/responses"), 405)


def test_unknown_fields_and_null_are_ignored(http: httpx.Client) -> None:
    names = ["tools", "tool_choice", "text", "reasoning", "metadata", "include", "instructions", "truncation"]
    names += ["store", "stream", "previous_response_id", "parallel_tool_calls", "top_p", "prompt_cache_key"]
    names += ["max_output_tokens", "background", "conversation", "user", "top_logprobs", "n", "max_tokens"]
    body = {**BODY, **dict.fromkeys(names), "max_output_tokens": 2, "wish": 1}
    answer = http.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["store"], found["truncation"], found["tool_choice"]) == (True, "disabled", "auto")


def test_settings_without_effect_are_accepted_and_repeated(http: httpx.Client) -> None:
    body = {
        **BODY,
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "max_tool_calls": 3,
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "text": {"verbosity": "low"},
    }
    found = http.post("/v1/responses", json=body).json()
    assert found["reasoning"] == {"effort": "low", "summary": "auto"}
    assert (found["max_tool_calls"], found["service_tier"]) == (3, "default")
    assert (found["prompt_cache_key"], found["safety_identifier"]) == ("k", "s")
    assert found["text"] == {"format": {"type": "text"}, "verbosity": "low"}
