"""Tool calls in logs of chat APIs, in the format that the model generated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.log_files import read_all, read_one, write_lines

USER = {"role": "user", "content": "How warm is it in Ulm?"}
RESULT = {"role": "tool", "tool_call_id": "abcdefghj", "content": "21"}
ANSWER = {"role": "assistant", "content": "21 degrees."}
ARGUMENTS = '{"city":"Ulm",  "unit": "°C"}'
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}


def answered(message: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [USER], "choices": [{"index": 0, "message": message}]}


TWO_CALLS = {
    "role": "assistant",
    "content": "Let me see.",
    "tool_calls": [
        CALL,
        {"type": "function", "function": {"name": "now", "arguments": {"zone": "Ö", "utc": [True]}}},
    ],
}
FIRST = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
SECOND = '{"name": "now", "arguments": {"zone": "Ö", "utc": [true]}}'


@pytest.mark.parametrize(
    ("tool_format", "expected"),
    [
        ("hermes", f"Let me see.\n<tool_call>\n{FIRST}\n</tool_call>\n<tool_call>\n{SECOND}\n</tool_call>"),
        ("llama3", f"Let me see.\n{FIRST}; {SECOND}".replace('"arguments": ', '"parameters": ')),
        ("mistral", f"Let me see.\n[TOOL_CALLS] [{FIRST}, {SECOND}]"),
        ("mistral-tekken", f"Let me see.[TOOL_CALLS][{FIRST}, {SECOND}]"),
        (
            "mistral-v13",
            f"Let me see.[TOOL_CALLS]weather[ARGS]{ARGUMENTS}"
            '[TOOL_CALLS]now[ARGS]{"zone": "Ö", "utc": [true]}',
        ),
        ("json", f"Let me see.\n{FIRST}\n{SECOND}"),
        ("none", "Let me see."),
    ],
)
def test_tool_calls_as_models_write_them(tmp_path: Path, tool_format: str, expected: str) -> None:
    record = answered(TWO_CALLS)
    assert read_one(tmp_path, record, tool_format=tool_format).response == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"function_call": {"name": "f", "arguments": '{"a": 1}'}}, '{"name": "f", "arguments": {"a": 1}}'),
        ({"tool_calls": [{"function": {"name": "f", "arguments": ""}}]}, '{"name": "f", "arguments": {}}'),
        ({"tool_calls": [{"name": "f", "args": {"a": 1}}]}, '{"name": "f", "arguments": {"a": 1}}'),
        # arguments that are not JSON are copied unchanged
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": '{"a": '}}]},
            '{"name": "f", "arguments": {"a": }',
        ),
        (
            {"tool_calls": [{"type": "custom", "custom": {"name": "sh", "input": 'ls "x"'}}]},
            '{"name": "sh", "arguments": "ls \\"x\\""}',
        ),
        (
            {
                "content": [
                    {"type": "text", "text": "So:"},
                    {"type": "tool_use", "name": "f", "input": {"a": 1}},
                ]
            },
            'So:\n{"name": "f", "arguments": {"a": 1}}',
        ),
    ],
    ids=["legacy", "no-arguments", "bare", "broken", "custom", "anthropic"],
)
def test_tool_calls_as_apis_keep_them(tmp_path: Path, message: dict[str, Any], expected: str) -> None:
    record = answered({"role": "assistant", **message})
    assert read_one(tmp_path, record, tool_format="json").response == expected


@pytest.mark.parametrize(
    ("tool_format", "written"),
    [
        # output of mistral-common 1.13.1 for these calls with Tekken v7 and v13, without ids
        (
            "mistral-tekken",
            '[TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "at", "arguments": {"x": "°"}}]',
        ),
        ("mistral-v13", '[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]at[ARGS]{"x": "°"}'),
    ],
)
def test_mistral_writes_calls_without_a_text_and_in_prompts(
    tmp_path: Path, tool_format: str, written: str
) -> None:
    calls = [
        {"id": "abcdefghi", "function": {"name": "now", "arguments": ""}},
        {"id": "abcdefghj", "function": {"name": "at", "arguments": {"x": "°"}}},
    ]
    calling = {"role": "assistant", "content": None, "tool_calls": calls}
    path = write_lines(tmp_path / "a.jsonl", [{"messages": [USER, calling, RESULT, ANSWER]}])
    first, second = read_all(path, tool_format=tool_format, chat_template="plain")
    assert first.response == written
    assert second.prompt == f"{USER['content']}\n{written}\n21"
