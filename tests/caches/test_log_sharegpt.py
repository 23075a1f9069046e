"""ShareGPT conversations: each turn of the model is a call, the turns before it are its prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs import LogFormat, ReadOptions, ReadReport, find_logs
from support.log_files import read_all, read_one, write_lines

HUMAN = {"from": "human", "value": "How warm is it in Ulm?"}
CALLING = {"from": "function_call", "value": '{"name": "weather", "arguments": {"city":"Ulm", "unit": "°C"}}'}
RESULT = {"from": "observation", "value": "21"}
GPT = {"from": "gpt", "value": "21 degrees."}
RECORD = {"id": "c1", "model": "m", "system": "Be terse.", "conversations": [HUMAN, CALLING, RESULT, GPT]}

PROMPT = (
    "<|im_start|>system\nBe terse.<|im_end|>\n"
    "<|im_start|>user\nHow warm is it in Ulm?<|im_end|>\n"
    "<|im_start|>assistant\n"
)
WRITTEN = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm", "unit": "°C"}}\n</tool_call>'


def test_a_conversation_is_what_the_same_messages_are(tmp_path: Path) -> None:
    """The parser of chat messages is the oracle."""
    path = write_lines(tmp_path / "a.jsonl", [RECORD])
    function = {"name": "weather", "arguments": {"city": "Ulm", "unit": "°C"}}
    messages = [
        {"role": "system", "content": "Be terse."},
        {"role": "user", "content": HUMAN["value"]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": function}]},
        {"role": "tool", "content": "21"},
        {"role": "assistant", "content": "21 degrees."},
    ]
    (tmp_path / "same").mkdir()
    same = write_lines(tmp_path / "same" / "a.jsonl", [{"model": "m", "messages": messages}])
    for tool_format in ("hermes", "mistral-v13", "none"):
        calls = read_all(path, tool_format=tool_format)
        assert calls == read_all(same, tool_format=tool_format)
    calls = read_all(path)
    assert calls[0].prompt == PROMPT
    assert [call.response for call in calls] == [WRITTEN, "21 degrees."]
    assert {(call.session, call.model) for call in calls} == {("a.jsonl:1", "m")}


@pytest.mark.parametrize(
    ("name", "role"),
    [("human", "user"), ("user", "user"), ("system", "system"), ("Human", "user")],
)
def test_roles_of_prompts(tmp_path: Path, name: str, role: str) -> None:
    call = read_one(tmp_path, {"conversations": [{"from": name, "value": "q"}, GPT]})
    assert call.prompt == f"<|im_start|>{role}\nq<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("name", ["tool", "function", "observation"])
def test_results_of_tools(tmp_path: Path, name: str) -> None:
    call = read_one(tmp_path, {"conversations": [{"from": name, "value": "q"}, GPT]})
    assert isinstance(call.prompt, str)
    assert call.prompt.startswith("<|im_start|>user\n<tool_response>\nq\n</tool_response>")


@pytest.mark.parametrize("name", ["gpt", "assistant", "model", "chatgpt", "bing", "bard", "GPT"])
def test_roles_of_the_model(tmp_path: Path, name: str) -> None:
    assert read_one(tmp_path, {"conversations": [HUMAN, {"from": name, "value": "a"}]}).response == "a"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ('[{"name": "f", "arguments": {}}, {"name": "g", "arguments": "{\\"x\\":1}"}]', None),
        ("<tool_call>f()</tool_call>", "<tool_call>f()</tool_call>"),
        ('{"city": "Ulm"}', '{"city": "Ulm"}'),
        ("3", "3"),
    ],
)
def test_function_calls(tmp_path: Path, value: str, written: str | None) -> None:
    record = {"conversations": [HUMAN, {"from": "function_call", "value": value}]}
    several = '{"name": "f", "arguments": {}}\n{"name": "g", "arguments": {"x":1}}'
    assert read_one(tmp_path, record, tool_format="json").response == (written or several)


def test_json_of_a_gpt_turn_stays_text(tmp_path: Path) -> None:
    said = {"from": "gpt", "value": '{"name":  "f", "arguments": {}}'}
    assert read_one(tmp_path, {"conversations": [HUMAN, said]}).response == said["value"]


def test_however_it_is_stored(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([RECORD, RECORD], indent=1))
    turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    pq.write_table(pa.table({"conversations": [turns] * 3}), tmp_path / "b.parquet")
    write_lines(tmp_path / "c.jsonl.zst", [RECORD])
    found = {file.name: file for file in find_logs([tmp_path], ReadOptions())}
    assert {file.format for file in found.values()} == {LogFormat.SHAREGPT}
    assert [len(read_all(tmp_path / name)) for name in found] == [4, 3, 2]


def test_other_formats_with_conversations(tmp_path: Path) -> None:
    """A record with a response field is parsed in the format of that field."""
    for record, form in [
        ({**RECORD, "response": "r"}, LogFormat.JSONL),
        ({**RECORD, "messages": []}, LogFormat.OPENAI_CHAT),
        ({"conversations": ["q", "a"]}, LogFormat.JSONL),
        ({"conversations": []}, LogFormat.JSONL),
    ]:
        path = write_lines(tmp_path / "a.jsonl", [record])
        assert find_logs([path], ReadOptions())[0].format is form


def test_fields_that_are_named(tmp_path: Path) -> None:
    record = {"dialog": {"turns": [HUMAN, GPT]}, "persona": "Be terse."}
    call = read_one(
        tmp_path, record, format="sharegpt", response_field="dialog.turns", prompt_field="persona"
    )
    assert (call.prompt, call.response) == (PROMPT, "21 degrees.")


@pytest.mark.parametrize(
    ("conversations", "reason"),
    [
        ("hello", "a conversation must be a list of turns; got str"),
        (5, "a conversation must be a list of turns; got int"),
        (None, "a conversation must be a list of turns; got NoneType"),
        ([HUMAN, 7, GPT], "a turn must be an object; got int"),
        (
            [HUMAN, {"from": "narrator", "value": "x"}, GPT],
            "unknown author of a turn; expected human, user, gpt",
        ),
        ([HUMAN, {"value": "x"}, GPT], "unknown author of a turn"),
        ([HUMAN, {"from": "gpt", "value": ["x"]}], "the value of a turn must be a string; got list"),
        ([HUMAN, {"from": "function_call", "value": '{"name": 3}'}], "a tool call must have a name"),
    ],
)
def test_malformed_conversations(tmp_path: Path, conversations: Any, reason: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", [RECORD, {"conversations": conversations}, RECORD])
    report = ReadReport()
    assert len(read_all(path, report)) == 4
    assert (report.counts.malformed, report.counts.damaged) == (1, 0)
    (fault,) = report.faults
    assert (fault.path, fault.place) == (path, "line 2")
    assert reason in fault.reason
    with pytest.raises(InvalidInputError, match=r"a\.jsonl:2: "):
        read_all(path, strict=True)


def test_a_record_without_a_conversation_says_which_fields_it_has(tmp_path: Path) -> None:
    report = ReadReport()
    assert len(read_all(write_lines(tmp_path / "a.jsonl", [RECORD, {"dialog": [HUMAN, GPT]}]), report)) == 2
    assert "no field conversations or conversation; got the fields dialog" in report.faults[0].reason


def test_empty_turns(tmp_path: Path) -> None:
    empty = [{"from": "gpt", "value": None}, {"from": "gpt", "value": ""}, {"from": "function_call"}]
    report = ReadReport()
    path = write_lines(tmp_path / "a.jsonl", [{"conversations": [HUMAN, *empty]}, {"conversations": [HUMAN]}])
    assert read_all(path, report, format="sharegpt") == []
    assert (report.counts.without_response, report.counts.malformed) == (3, 0)
