"""Field lookup: dotted paths, and errors that list existing fields."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs import ReadOptions, ReadReport, find_logs, read_calls
from support.log_files import read_all, read_one, write_lines

NOON = datetime(2025, 6, 30, 12, tzinfo=UTC).timestamp()


def test_fields_are_named_by_dotted_paths(tmp_path: Path) -> None:
    record = {
        "call": {"out": [{"text": "no"}, {"text": "yes"}], "in": {"q": "why?"}},
        "who.am.i": "dotted",
        "labels": {"thread": 12, "class": "sql"},
        "at": 1751284800000,
    }
    call = read_one(
        tmp_path,
        record,
        response_field="call.out.-1.text",
        prompt_field="call.in.q",
        agent_field="who.am.i",
        session_field="labels.thread",
        kind_field="labels.class",
        time_field="at",
    )
    assert (call.response, call.prompt, call.agent) == ("yes", "why?", "dotted")
    assert (call.session, call.kind, call.time) == ("12", "sql", NOON)


def test_a_field_that_does_not_exist_is_named_with_those_that_do(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"answer": {"text": "x"}, "asked": "y"}] * 3)
    with pytest.raises(InvalidInputError) as caught:
        read_all(path, response_field="answer.txt")
    assert "no field answer.txt; got the fields answer, answer.text, asked" in str(caught.value)
    assert "Did you mean answer.text?" in str(caught.value)
    with pytest.raises(InvalidInputError, match=r"Did you mean asked\?"):
        read_all(path, response_field="answer.text", prompt_field="ask")


def test_a_list_of_fields_says_where_it_leaves_some_out(tmp_path: Path) -> None:
    """Deeply nested fields were omitted without notice, including the nearest name."""
    answer = {
        "id": "x",
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}}],
    }
    with pytest.raises(InvalidInputError) as caught:
        read_one(tmp_path, answer, response_field="choices.0.message.contant")
    assert (caught.value.got, caught.value.remedy) == (
        "the fields id, model, choices, choices.0, choices.0.index, choices.0.message, ...",
        "Did you mean choices.0.message.content?",
    )
    for count, more in ((40, ""), (41, ", ...")):
        with pytest.raises(InvalidInputError) as caught:
            read_one(tmp_path, {f"f{n}": n for n in range(count)}, response_field="text")
        assert str(caught.value.got).endswith(f", f39{more}")


def test_a_misnamed_field_is_detected_early(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"answer": "x"}] * 5000)
    options = ReadOptions(response_field="anwser")
    report = ReadReport()
    with pytest.raises(InvalidInputError, match="anwser"):
        list(read_calls(find_logs([path], options)[0], options, report))
    assert report.counts.malformed == 1000


def test_a_field_of_some_records_is_accepted(tmp_path: Path) -> None:
    report = ReadReport()
    path = write_lines(tmp_path / "a.jsonl", [{"r": None}, {"r": "x"}, {"q": "y"}])
    assert [call.response for call in read_all(path, report, response_field="r")] == ["x"]
    assert (report.counts.without_response, report.counts.malformed) == (1, 1)


def test_a_log_of_unknown_fields_says_which_it_has(tmp_path: Path) -> None:
    report = ReadReport()
    assert read_all(write_lines(tmp_path / "a.jsonl", [{"foo": 1, "bar": {"baz": 2}}]), report) == []
    assert "foo, bar, bar.baz" in report.describe()
    assert "response_field" in report.describe()
