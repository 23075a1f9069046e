"""Log readers: formats, filters, sessions, options and the report."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc.errors import InvalidConfigError
from suffixsvc_caches.logs import LogFormat, ReadOptions, ReadReport, find_logs, read_calls
from suffixsvc_caches.logs.base.options import ChatTemplate, LogFilter, SessionSplit, SplitBy, ToolFormat
from suffixsvc_caches.logs.base.times import as_time
from suffixsvc_caches.logs.formats.values import Storage
from suffixsvc_caches.logs.report import MAX_FAULTS, LogCounts, LogFault
from support.log_files import read_all, read_one, write_lines

TRACE = {
    "dataset": "spelling",
    "session_id": "s1",
    "agent": "writer",
    "turn": 0,
    "prompt": "one?",
    "response": "one!",
    "meta": {"model": "m1", "timestamp": "2025-06-30T12:00:00Z"},
}
NOON = datetime(2025, 6, 30, 12, tzinfo=UTC).timestamp()


# ------------------------------------------------------------------------------------------------- formats


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.ndjson", "a.json"])
def test_compressed_lines(tmp_path: Path, name: str) -> None:
    records = [{**TRACE, "turn": turn, "response": f"answer {turn}"} for turn in range(700)]
    report = ReadReport()
    path = write_lines(tmp_path / name, records)
    calls = read_all(tmp_path, report)
    assert [call.response for call in calls] == [record["response"] for record in records]
    assert calls[0].prompt == "one?"
    assert (calls[0].agent, calls[0].session, calls[0].model) == ("writer", "s1", "m1")
    assert (calls[0].kind, calls[0].time) == ("spelling", NOON)
    assert report.counts == LogCounts(files=1, bytes=path.stat().st_size, calls=700)


def test_a_recording_is_token_ids(tmp_path: Path) -> None:
    record = {
        "prompt": "a",
        "response": "b",
        "prompt_token_ids": [1, 2],
        "response_token_ids": [3, 4, 5],
        "tokenizer": "xxh3:0123456789abcdef",
        "session_id": 7,
    }
    call = read_one(tmp_path, record)
    assert isinstance(call.response, np.ndarray)
    assert call.response.dtype == np.int32
    assert call.response.tolist() == [3, 4, 5]
    assert np.asarray(call.prompt).tolist() == [1, 2]
    assert (call.tokenizer, call.session) == ("xxh3:0123456789abcdef", "7")


def test_our_own_recordings_are_read() -> None:
    path = Path(__file__).parent.parent / "data" / "recorded_demo.jsonl.gz"
    calls = read_all(path)
    assert find_logs([path], ReadOptions())[0].format is LogFormat.RECORDINGS
    assert len(calls) > 10
    assert all(len(call.response) and call.agent and call.session for call in calls)
    assert {call.tokenizer for call in calls} == {calls[0].tokenizer} != {""}


@pytest.mark.parametrize(
    ("record", "form"),
    [
        (TRACE, "traces"),
        ({"response_token_ids": [1]}, "recordings"),
        ({"prompt": "a", "completion": "b"}, "jsonl"),
        ({"messages": [{"role": "assistant", "content": "b"}]}, "openai-chat"),
        ({"request": {"messages": []}, "response": {"choices": []}}, "openai-chat"),
        ({"request": {"input": "a"}, "response": {"output": []}}, "openai-responses"),
        ({"custom_id": "1", "response": {"body": {}}}, "openai-batch"),
        ({"call_type": "acompletion", "messages": [], "response": {}}, "litellm"),
        ({"type": "GENERATION", "traceId": "t", "input": "a", "output": "b"}, "langfuse"),
        ({"id": "t", "sessionId": "s", "observations": [{"input": 1, "output": 2}]}, "langfuse"),
    ],
)
def test_formats_are_detected_from_the_first_records(
    tmp_path: Path, record: dict[str, Any], form: str
) -> None:
    path = write_lines(tmp_path / "x.jsonl.gz", [b"not json", record])
    (file,) = find_logs([path], ReadOptions())
    assert (file.format, file.storage) == (form, Storage.LINES)
    assert file.found == f"JSON lines, gzip: {form}"
    (log,) = find_logs([path], ReadOptions(format=LogFormat.LITELLM))
    assert log.format is LogFormat.LITELLM


def test_an_array_and_a_spread_out_object_are_logs_too(tmp_path: Path) -> None:
    records = [{**TRACE, "response": f"r{n}"} for n in range(3)]
    for name, text in {
        "array.json": json.dumps(records),
        "spread.json": json.dumps(records, indent=2),
        "one.json": json.dumps(records[0], indent=2),
        "row.json": "\n".join(json.dumps(record, indent=1) for record in records),
        "array.jsonl": json.dumps(records),
    }.items():
        (tmp_path / name).write_text(text)
        (file,) = find_logs([tmp_path / name], ReadOptions())
        assert file.storage is Storage.DOCUMENT
        expected = ["r0"] if name == "one.json" else ["r0", "r1", "r2"]
        assert [call.response for call in read_all(tmp_path / name)] == expected


# ------------------------------------------------------------------------------------ filters and sessions


def test_only_the_calls_wanted_are_read(tmp_path: Path) -> None:
    records = [
        {
            "response": "x" * length,
            "agent": agent,
            "model": model,
            "kind": kind,
            "time": time,
        }
        for length, agent, model, kind, time in [
            (1, "a", "m", "sql", 100),
            (2, "b", "m", "sql", 200),
            (3, "a", "n", "sql", 300),
            (4, "a", "m", "json", 400),
            (5, "a", "m", "sql", None),
        ]
    ]
    path = write_lines(tmp_path / "a.jsonl", records)

    def lengths(**options: Any) -> list[int]:
        report = ReadReport()
        found = [len(call.response) for call in read_all(path, report, **options)]
        assert report.counts.filtered == 5 - len(found)
        return found

    assert lengths() == [1, 2, 3, 4, 5]
    assert lengths(agents=["a"]) == [1, 3, 4, 5]
    assert lengths(models=["n", "o"]) == [3]
    assert lengths(kinds=["json"]) == [4]
    assert lengths(since="200") == [2, 3, 4]
    assert lengths(since=100, until="1970-01-01T00:05:00") == [1, 2]
    assert lengths(min_length=2, max_length=4) == [2, 3, 4]
    assert lengths(agents=["a"], models=["m"], kinds=["sql"], until=1000) == [1]


def test_a_log_is_split_into_sessions(tmp_path: Path) -> None:
    times = [0, 60, 60 * 40, 60 * 41, None, 60 * 5]
    records = [{"response": "r", "session_id": f"s{n // 2}", "time": time} for n, time in enumerate(times)]
    path = write_lines(tmp_path / "a.jsonl", records)

    def sessions(split: str) -> list[str]:
        return [call.session for call in read_all(path, split=split)]

    assert sessions("field") == ["s0", "s0", "s1", "s1", "s2", "s2"]
    assert sessions("file") == ["a.jsonl"] * 6
    assert len(set(sessions("line"))) == 6
    # the last one is earlier: another run
    assert sessions("gap:30m") == [f"a.jsonl#{n}" for n in (1, 1, 2, 2, 2, 3)]
    assert read_one(tmp_path, {"response": "r"}).session == ""


@pytest.mark.parametrize("name", ["sessionId", "conversation_id", "trace_id", "thread_id"])
def test_sessions_go_by_the_usual_names(tmp_path: Path, name: str) -> None:
    assert read_one(tmp_path, {"response": "r", name: "it"}).session == "it"


def test_prompts_are_optional(tmp_path: Path) -> None:
    assert read_one(tmp_path, TRACE, want_prompt=False).prompt == ""
    record = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    assert read_one(tmp_path, record, want_prompt=False).prompt == ""


# ------------------------------------------------------------------------------------------ options, times


def test_options_come_from_plain_strings() -> None:
    options = ReadOptions.parse(
        format="openai-chat",
        tool_format="llama3",
        chat_template="plain",
        split="gap:90s",
        agents=["a"],
        since="2025-06-30",
        until=NOON,
        include=["*.log"],
        strict=True,
    )
    assert options == ReadOptions(
        format=LogFormat.OPENAI_CHAT,
        tool_format=ToolFormat.LLAMA3,
        chat_template=ChatTemplate.PLAIN,
        split=SessionSplit(SplitBy.GAP, 90),
        filter=LogFilter(agents=frozenset({"a"}), since=NOON - 43200, until=NOON),
        include=("*.log",),
        strict=True,
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"format": "openai_chat"}, "did you mean openai-chat?"),
        ({"tool_format": "xml"}, "hermes"),
        ({"chat_template": "jinja"}, "chatml"),
        ({"split": "gap"}, "a number with s, m, h or d"),
        ({"split": "gap:0m"}, "a number with s, m, h or d"),
        ({"split": "gap:soon"}, "a number with s, m, h or d"),
        ({"split": "day"}, "gap:30m"),
        ({"since": "yesterday"}, "ISO 8601"),
        ({"since": 5, "until": 5}, "since must be < until"),
        ({"min_length": -1}, "min_length"),
        ({"min_length": 9, "max_length": 8}, "max_length"),
        ({"max_line_bytes": 0}, "max_line_bytes"),
        ({"encoding": "klingon"}, "encoding"),
        ({"encoding": "base64"}, "encoding"),
        ({"encoding": "idna"}, "encoding must be"),
        ({"encoding": "punycode"}, "encoding must be"),
        ({"encoding": "undefined"}, "encoding must be"),
        ({"prompt_field": "a..b"}, "prompt_field"),
        ({"respons_field": "a"}, "did you mean response_field?"),
    ],
)
def test_invalid_options_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        ReadOptions.parse(**wrong)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        1751284800,
        1751284800.0,
        1751284800000,
        1751284800000000,
        1751284800000000000,
        "1751284800",
        "2025-06-30T12:00:00Z",
        "2025-06-30 12:00:00",
        "2025-06-30T14:00:00+02:00",
        "2025-06-30T12:00:00.000000",
        datetime(2025, 6, 30, 12),
    ],
)
def test_times_as_logs_write_them(value: Any) -> None:
    assert as_time(value) == NOON


@pytest.mark.parametrize(
    "value",
    [None, True, "", "soon", "2023-17-08 19:40:03", float("nan"), float("inf"), "nan", 10**400, [], {}],
)
def test_values_that_are_not_times(value: Any) -> None:
    assert as_time(value) is None


# ------------------------------------------------------------------------------------------------ the report


def test_reports_are_merged_and_store_the_first_faults() -> None:
    one, two = ReadReport(), ReadReport()
    for number in range(15):
        one.merge(ReadReport(LogCounts(calls=2, malformed=1), [LogFault(Path("a"), f"line {number}", "odd")]))
        two.merge(ReadReport(LogCounts(files=1, bytes=10, damaged=1), [LogFault(Path("b"), "", "torn")]))
    one.merge(two)
    assert one.counts == LogCounts(files=15, bytes=150, calls=30, malformed=15, damaged=15)
    assert len(one.faults) == MAX_FAULTS
    assert [str(fault) for fault in one.faults[14:16]] == ["a, line 14: odd", "b: torn"]
    assert one.describe().splitlines()[0] == "30 calls in 15 files, 15 malformed, 15 damaged files"
    assert one.describe().splitlines()[-1] == "and 10 more"


def test_progress_ends_at_the_size_of_the_file(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl.gz", [{**TRACE, "turn": n} for n in range(20000)])
    consumed: list[int] = []
    options = ReadOptions()
    list(read_calls(find_logs([path], options)[0], options, ReadReport(), consumed.append))
    assert consumed == sorted(consumed)
    assert consumed[-1] == path.stat().st_size


def test_a_closed_reader_adds_its_counts(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [TRACE] * 10)
    report, options = ReadReport(), ReadOptions()
    reader = read_calls(find_logs([path], options)[0], options, report)
    next(reader)
    next(reader)
    reader.close()  # type: ignore[attr-defined] # a generator
    assert report.counts.calls == 2


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    )
)
def test_paths_find_what_walking_finds(value: Any) -> None:
    """Every leaf of a record is found by the path that leads there."""
    from suffixsvc_caches.logs.calls.fields import FieldFinder

    def leaves(at: Any, path: list[str]) -> Any:
        if isinstance(at, dict):
            for key, inner in at.items():
                yield from leaves(inner, [*path, key])
        elif isinstance(at, list):
            for place, inner in enumerate(at):
                yield from leaves(inner, [*path, str(place)])
        else:
            yield path, at

    record = {"root": value}
    for path, leaf in leaves(value, ["root"]):
        if all(step and "." not in step for step in path):
            finder = FieldFinder("field", ".".join(path), ())
            assert finder.find(record) == leaf
            assert finder.has(record) or leaf is None
