"""Items of an input as messages of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from suffixsvc_openai.protocol.errors import ApiError
from suffixsvc_openai.responses.items import checked_items, messages_of

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "seen"}


def messages(*items: dict[str, Any], instructions: str | None = None) -> list[dict[str, Any]]:
    return messages_of(checked_items(items), instructions)


def called(call_id: str = "c1", name: str = "look", arguments: str = '{"a": 1}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_conversation_keeps_its_order() -> None:
    found = messages(
        {"role": "developer", "content": "short"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {
            "role": "assistant",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "b", "annotations": []}],
        },
        {"role": "user", "content": "c"},
        instructions="be kind",
    )
    assert found == [
        {"role": "system", "content": "be kind"},
        {"role": "developer", "content": "short"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]


def test_what_the_model_wrote_in_one_turn_is_one_message() -> None:
    second = {**CALL, "call_id": "c2"}
    found = messages(
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "I look."},
        CALL,
        second,
        {**RESULT, "call_id": "c2"},
        RESULT,
        {**CALL, "call_id": "c3"},
        {**RESULT, "call_id": "c3", "output": [{"type": "input_text", "text": "x"}]},
        {"role": "assistant", "content": "Done."},
    )
    assert found == [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "I look.", "tool_calls": [called(), called("c2")]},
        {"role": "tool", "tool_call_id": "c2", "content": "seen"},
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
        {"role": "assistant", "content": None, "tool_calls": [called("c3")]},
        {"role": "tool", "tool_call_id": "c3", "content": "x"},
        {"role": "assistant", "content": "Done."},
    ]


def test_reasoning_and_cut_calls_are_dropped() -> None:
    cut = {**CALL, "arguments": '{"a', "status": "incomplete"}
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    assert messages(reasoning, {"role": "user", "content": "q"}, cut) == [{"role": "user", "content": "q"}]


def test_items_get_ids_and_keep_those_that_they_have() -> None:
    first, second, third = checked_items(
        [{"role": "user", "content": "q"}, {**CALL, "id": "fc_mine"}, {**RESULT, "id": None}]
    )
    assert first["id"].startswith("msg_")
    assert first["content"] == [{"type": "input_text", "text": "q"}]
    assert second["id"] == "fc_mine"
    assert third["id"].startswith("fco_")


@pytest.mark.parametrize(
    ("param", "item"),
    [
        ("input[0].type", {}),
        ("input[0].type", {"type": "computer_call", "call_id": "c"}),
        ("input[0].type", {"type": 5}),
        ("input[0].type", {"type": ["message"]}),
        ("input[0].role", {"type": "message", "content": "x"}),
        ("input[0].role", {"role": "wizard", "content": "x"}),
        ("input[0].role", {"role": "tool", "content": "x"}),
        ("input[0].content", {"role": "user"}),
        ("input[0].content", {"role": "user", "content": None}),
        ("input[0].content", {"role": "user", "content": {"type": "input_text", "text": "x"}}),
        ("input[0].content[0]", {"role": "user", "content": ["x"]}),
        ("input[0].content[0].text", {"role": "user", "content": [{"type": "input_text"}]}),
        (
            "input[0].content[1]",
            {"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_image"}]},
        ),
        ("input[0].call_id", {**CALL, "call_id": None}),
        ("input[0].name", {**CALL, "name": 1}),
        ("input[0].arguments", {**CALL, "arguments": "{"}),
        ("input[0].arguments", {**CALL, "arguments": "[1]"}),
        ("input[0].arguments", {**CALL, "arguments": "[" * 100_000}),
        ("input[0].arguments", {**CALL, "arguments": {"a": 1}}),
        ("input[0].output", {**RESULT, "output": None}),
        ("input[0].output[0]", {**RESULT, "output": [{"type": "input_image", "image_url": "x"}]}),
        ("input[0].id", {"type": "item_reference"}),
        ("input[0].id", {"type": "item_reference", "id": ""}),
    ],
)
def test_an_invalid_item_is_named(param: str, item: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        checked_items([item])
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param in str(caught.value)


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([RESULT], "No tool call found for function call output with call_id c1."),
        ([CALL], "No tool output found for function call c1."),
        ([CALL, {**RESULT, "call_id": "c2"}], "No tool call found"),
    ],
)
def test_calls_and_results_belong_together(items: list[dict[str, Any]], text: str) -> None:
    with pytest.raises(ApiError, match=text) as caught:
        messages(*items)
    assert caught.value.param == "input"
