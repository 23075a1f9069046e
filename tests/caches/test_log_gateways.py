"""Logs of gateways and tracing tools: LiteLLM's payloads, Langfuse's generations and traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from suffixsvc_caches.logs import LogCall, ReadReport
from support.chat_records import ANSWER, PROMPT, SYSTEM, USER, completion
from support.log_files import read_all, read_one, write_lines

# -------------------------------------------------------------------------------------------------- LiteLLM


PAYLOAD = {
    "id": "1",
    "trace_id": "t9",
    "call_type": "acompletion",
    "status": "success",
    "startTime": 1751284800.5,
    "endTime": 1751284801.5,
    "model": "gpt",
    "model_group": "mid",
    "metadata": {"user_api_key_alias": "planner"},
    "messages": [SYSTEM, USER],
    "response": completion(ANSWER),
}


@pytest.mark.parametrize(
    "record",
    [
        PAYLOAD,
        {"standard_logging_object": PAYLOAD},
        {**PAYLOAD, "messages": json.dumps([SYSTEM, USER]), "response": json.dumps(completion(ANSWER))},
        {**PAYLOAD, "response": "21 degrees."},
    ],
    ids=["payload", "nested", "packed", "text"],
)
def test_litellm(tmp_path: Path, record: dict[str, Any]) -> None:
    call = read_one(tmp_path, record)
    assert call == LogCall(
        "21 degrees.",
        PROMPT,
        agent="planner",
        session="t9",
        model="mid",
        kind="acompletion",
        time=1751284800.5,
    )


def test_a_failed_call_of_litellm_has_no_response(tmp_path: Path) -> None:
    report = ReadReport()
    record = {**PAYLOAD, "status": "failure", "response": "litellm.RateLimitError"}
    assert read_all(write_lines(tmp_path / "a.jsonl", [record, {**PAYLOAD, "response": {}}]), report) == []
    assert report.counts.without_response == 2


# ------------------------------------------------------------------------------------------------- Langfuse


GENERATION = {
    "id": "o2",
    "type": "GENERATION",
    "traceId": "t1",
    "name": "planner",
    "startTime": "2025-06-30T12:00:01.000Z",
    "model": "gpt",
    "input": [SYSTEM, USER],
    "output": ANSWER,
}
SPAN = {"id": "o1", "type": "SPAN", "traceId": "t1", "name": "root", "input": "x", "output": "y"}
EARLIER = {**GENERATION, "id": "o0", "startTime": "2025-06-30T12:00:00.000Z", "output": "Hm."}
TRACE = {
    "id": "t1",
    "sessionId": "s1",
    "input": "x",
    "output": "y",
    "observations": [GENERATION, SPAN, EARLIER],
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"input": {"messages": [SYSTEM, USER]}, "output": completion(ANSWER)},
        {"input": json.dumps([SYSTEM, USER]), "output": json.dumps(ANSWER)},
        {"output": "21 degrees."},
        {"output": [ANSWER]},
    ],
)
def test_generations(tmp_path: Path, changes: dict[str, Any]) -> None:
    call = read_one(tmp_path, {**GENERATION, **changes})
    assert call == LogCall(
        "21 degrees.", PROMPT, agent="planner", session="t1", model="gpt", time=1751284801.0
    )


def test_a_json_answer_stays_text(tmp_path: Path) -> None:
    text = '{"content":  "a structured answer"}'
    assert read_one(tmp_path, {**GENERATION, "output": text}).response == text


def test_snake_case_as_in_blob_storage(tmp_path: Path) -> None:
    record = {
        "id": "1",
        "type": "GENERATION",
        "trace_id": "t1",
        "start_time": "2025-06-30 12:00:01.000000",
        "provided_model_name": "gpt",
        "name": "planner",
        "input": json.dumps([SYSTEM, USER]),
        "output": "21 degrees.",
    }
    assert read_one(tmp_path, record) == read_one(tmp_path, GENERATION)


@pytest.mark.parametrize(
    "document",
    [TRACE, [TRACE], {"data": [TRACE], "meta": {}}, {"id": "s1", "traces": [TRACE]}],
    ids=["trace", "array", "page", "session"],
)
def test_traces_hold_generations_in_the_order_of_time(tmp_path: Path, document: Any) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document, indent=2))
    calls = read_all(path)
    assert [(call.response, call.session) for call in calls] == [("Hm.", "s1"), ("21 degrees.", "s1")]


def test_spans_are_not_calls(tmp_path: Path) -> None:
    report = ReadReport()
    path = write_lines(tmp_path / "a.jsonl", [SPAN, GENERATION, {**SPAN, "type": "EVENT", "output": None}])
    assert [call.response for call in read_all(path, report)] == ["21 degrees."]
    assert report.counts.malformed == report.counts.without_response == 0


def test_a_trace_without_observations_is_a_call(tmp_path: Path) -> None:
    record = {
        "id": "t1",
        "name": "chat",
        "timestamp": "2025-06-30T12:00:00Z",
        "sessionId": "s1",
        "input": "q",
        "output": "a",
    }
    call = read_one(tmp_path, record)
    assert (call.prompt, call.response, call.session) == ("q", "a", "s1")
