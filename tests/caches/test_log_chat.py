"""Logs of chat APIs: prompts and generated texts, with tool calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from suffixsvc_caches.logs import ReadReport
from support.chat_records import ANSWER, PROMPT, SYSTEM, USER, completion
from support.log_files import read_all, read_one, write_lines

ARGUMENTS = '{"city":"Ulm",  "unit": "°C"}'
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "21"}
WRITTEN = '<tool_call>\n{"name": "weather", "arguments": {"city":"Ulm",  "unit": "°C"}}\n</tool_call>'
#: output of Qwen2.5's chat template
LATER = (
    PROMPT
    + WRITTEN
    + "<|im_end|>\n<|im_start|>user\n<tool_response>\n21\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
)


def batch(body: Any, status: int = 200) -> dict[str, Any]:
    return {
        "id": "batch_req_1",
        "custom_id": "one",
        "response": {"status_code": status, "request_id": "r", "body": body},
        "error": None,
    }


# ---------------------------------------------------------------------------------------- chat completions


@pytest.mark.parametrize(
    "record",
    [
        {"request": {"model": "m", "messages": [SYSTEM, USER]}, "response": completion(ANSWER)},
        {"request": {"body": {"messages": [SYSTEM, USER]}}, "response": {"body": completion(ANSWER)}},
        {"messages": [SYSTEM, USER], **completion(ANSWER)},
        {"messages": [SYSTEM, USER], "response": completion(ANSWER)},
        {"messages": [SYSTEM, USER], "response": "21 degrees.", "created": 1751284800, "model": "m"},
        {"messages": [SYSTEM, USER], "response": ANSWER, "created": 1751284800, "model": "m"},
        {
            "messages": [SYSTEM, USER],
            "response": json.dumps(completion(ANSWER)),
            "model": "m",
            "created": 1751284800,
        },
        {"messages": [SYSTEM, USER, ANSWER], "model": "m", "created": 1751284800},
        {"body": {"messages": [SYSTEM, USER]}, **batch(completion(ANSWER))},
        {
            "request": {"messages": [SYSTEM, USER]},
            "response": {"model": "m", "created": 1751284800, "message": ANSWER},
        },
    ],
    ids=["proxy", "http", "flat", "mixed", "text", "message", "packed", "tuning", "batch", "ollama"],
)
def test_common_record_formats(tmp_path: Path, record: dict[str, Any]) -> None:
    call = read_one(tmp_path, record)
    assert (call.prompt, call.response) == (PROMPT, "21 degrees.")
    assert (call.model, call.time) == ("m", 1751284800)


def test_every_assistant_turn_of_a_tuning_file_is_a_call(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"messages": [SYSTEM, USER, CALLING, RESULT, ANSWER]}] * 2)
    calls = read_all(path)
    assert [(call.prompt, call.response) for call in calls[:2]] == [(PROMPT, WRITTEN), (LATER, "21 degrees.")]
    # a record is a conversation
    assert [call.session for call in calls] == ["a.jsonl:1", "a.jsonl:1", "a.jsonl:2", "a.jsonl:2"]


def test_assistant_turns_of_a_request_are_not_calls(tmp_path: Path) -> None:
    messages = [SYSTEM, USER, CALLING, RESULT]
    call = read_one(tmp_path, {"request": {"messages": messages}, "response": completion(ANSWER)})
    assert (call.prompt, call.response) == (LATER, "21 degrees.")


def test_each_choice_is_a_call(tmp_path: Path) -> None:
    record = {"messages": [USER], **completion(ANSWER, {"role": "assistant", "content": "Warm."})}
    path = write_lines(tmp_path / "a.jsonl", [record])
    assert [call.response for call in read_all(path)] == ["21 degrees.", "Warm."]


def test_anthropic_in_the_same_envelope(tmp_path: Path) -> None:
    request = {"model": "m", "system": "Be terse.", "messages": [USER]}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "21 degrees."}]}
    call = read_one(tmp_path, {"request": request, "response": answer})
    assert (call.prompt, call.response, call.model) == (PROMPT, "21 degrees.", "m")


def test_plain_completions(tmp_path: Path) -> None:
    record = {"prompt": "2+2=", "choices": [{"text": "4", "index": 0}], "model": "m"}
    call = read_one(tmp_path, record)
    assert (call.prompt, call.response, call.model) == ("2+2=", "4", "m")


@pytest.mark.parametrize(
    "record",
    [
        batch({"error": {"message": "overloaded"}}, 500),
        {"custom_id": "one", "response": None, "error": {"code": "expired"}},
        {"custom_id": "one", "method": "POST", "url": "/v1", "body": {"messages": [USER, ANSWER, USER]}},
        {"messages": [USER], **completion()},
        {"messages": [USER], "response": None},
        {"messages": [USER], **completion({"role": "assistant", "content": None})},
        {"messages": [USER], **completion({"role": "assistant", "content": ""})},
        {"messages": [USER], "response": {"error": {"message": "no"}}},
        {"messages": [USER], "response": {"error": "rate_limit", "message": "Slow down."}},
        {"input": "q", "output": [], "error": None, "status": "failed"},
    ],
)
def test_failed_requests_have_no_response(tmp_path: Path, record: dict[str, Any]) -> None:
    report = ReadReport()
    assert read_all(write_lines(tmp_path / "a.jsonl", [record]), report, format="openai-chat") == []
    assert report.counts.malformed == 0
    assert report.counts.without_response == 1


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"model": "m"}, "no field response or output or completion; got the fields model"),
        ({"messages": [USER], "choices": [{"index": 0, "delta": {"content": "2"}}]}, "chunk of a streamed"),
        ({"messages": "hello"}, "messages must be a list of objects with a role; got str"),
        ({"messages": 5}, "messages must be a list of objects with a role; got int"),
        ({"messages": [{"from": "human"}]}, "messages must be a list"),
        ({"messages": None}, "no field response"),
        ({"messages": [USER, 7, ANSWER]}, "a message must be an object; got int"),
        ({"messages": [{"role": "user", "content": 3}, ANSWER]}, "content of a message must be a string"),
        ({"messages": [USER], "response": 42}, "the response must be a string"),
        ({"messages": [USER], "response": {"colour": "red"}}, "must be an answer of a known API"),
        (
            {"messages": [USER], "response": {"code": 429, "message": "Slow down."}},
            "must be an answer of a known API",
        ),
        (
            {"messages": [USER], **completion({"tool_calls": [{"function": {"arguments": "{}"}}]})},
            "must have a name",
        ),
        ({"messages": [USER], **completion({"tool_calls": {"name": "f"}})}, "tool_calls must be a list"),
        ({"messages": [USER], **completion({"content": None, "refusal": 3})}, "refusal must be a string"),
    ],
)
def test_malformed_records_are_counted(tmp_path: Path, record: dict[str, Any], reason: str) -> None:
    report = ReadReport()
    assert read_all(write_lines(tmp_path / "a.jsonl", [record]), report, format="openai-chat") == []
    assert report.counts.malformed == 1, report.describe()
    assert reason in report.describe()


# ------------------------------------------------------------------------------------- contents, templates


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab"),
        (
            {
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:"}},
                    {"type": "text", "text": "a"},
                ]
            },
            "a",
        ),
        ({"content": None, "refusal": "No."}, "No."),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, "No."),
        ({"content": "a", "reasoning_content": "Hm."}, "<think>\nHm.\n</think>\n\na"),
        ({"content": "a", "reasoning_content": ""}, "a"),
        (
            {"content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "a"}]},
            "<think>\nHm.\n</think>\n\na",
        ),
        ({"content": ["a", None, 3, {"text": None}]}, "a"),
    ],
)
def test_contents(tmp_path: Path, message: dict[str, Any], expected: str) -> None:
    record = {"messages": [USER], **completion({"role": "assistant", **message})}
    assert read_one(tmp_path, record).response == expected


def test_reasoning_is_optional_and_never_part_of_a_prompt(tmp_path: Path) -> None:
    thinking = {**ANSWER, "reasoning_content": "Hm."}
    assert read_one(tmp_path, {"messages": [USER, thinking]}, reasoning=False).response == "21 degrees."
    calls = read_all(
        write_lines(tmp_path / "a.jsonl", [{"messages": [SYSTEM, USER, thinking, USER, ANSWER]}])
    )
    assert calls[0].response == "<think>\nHm.\n</think>\n\n21 degrees."
    assert isinstance(calls[1].prompt, str)
    assert "Hm." not in calls[1].prompt


def test_templates(tmp_path: Path) -> None:
    record = {"messages": [SYSTEM, USER, CALLING, RESULT, RESULT], **completion(ANSWER)}
    results = "\n<tool_response>\n21\n</tool_response>"
    assert read_one(tmp_path, record).prompt == LATER.replace(results, results * 2)
    plain = read_one(tmp_path, record, chat_template="plain").prompt
    assert plain == f"Be terse.\nHow warm is it in Ulm?\n{WRITTEN}\n21\n21"
    assert read_one(tmp_path, record, chat_template="none").prompt == ""


# -------------------------------------------------------------------------------------------- Responses API


THOUGHT = {
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "about Ulm"}],
    "content": [{"type": "reasoning_text", "text": "Ulm it is."}],
}
SAID = {
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Looking.", "annotations": []}],
}
ASKED = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": ARGUMENTS}
GOT = {"type": "function_call_output", "call_id": "c", "output": "21"}


@pytest.mark.parametrize("flat", [True, False])
def test_responses_api(tmp_path: Path, flat: bool) -> None:
    request = {"instructions": "Be terse.", "input": USER["content"], "model": "m"}
    answer = {"object": "response", "created_at": 1751284800, "output": [THOUGHT, SAID, ASKED]}
    call = read_one(tmp_path, request | answer if flat else {"request": request, "response": answer})
    assert call.prompt == PROMPT
    assert call.response == f"<think>\nUlm it is.\n</think>\n\nLooking.\n{WRITTEN}"
    assert (call.model, call.time) == ("m", 1751284800)


def test_items_as_input(tmp_path: Path) -> None:
    items = [{"role": "system", "content": "Be terse."}, {"type": "message", **USER}, THOUGHT, ASKED, GOT]
    answer = {"output": [{**SAID, "content": [{"type": "output_text", "text": "21 degrees."}]}]}
    call = read_one(tmp_path, {"request": {"input": items}, "response": answer})
    assert (call.prompt, call.response) == (LATER, "21 degrees.")
