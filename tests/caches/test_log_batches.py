"""Batches of OpenAI's API: answers in one file, requests in another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs import LogFormat, ReadOptions, ReadReport, find_logs
from support.log_files import read_all, write_lines


def request(custom_id: str, question: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": question}]
    body = {"model": "m", "messages": messages}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def answer(custom_id: str, *answers: str, status: int = 200, error: Any = None) -> dict[str, Any]:
    choices = [{"index": n, "message": {"role": "assistant", "content": a}} for n, a in enumerate(answers)]
    body = {"object": "chat.completion", "created": 1751284800, "model": "m-1", "choices": choices}
    response = {"status_code": status, "request_id": "r", "body": body}
    return {"id": "batch_req_1", "custom_id": custom_id, "response": response, "error": error}


def prompt(question: str) -> str:
    return (
        "<|im_start|>system\nBe terse.<|im_end|>\n"
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_an_output_alone(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "out.jsonl", [answer("1", "a"), answer("2", "b", "c")])
    calls = read_all(path)
    assert find_logs([path], ReadOptions())[0].format is LogFormat.OPENAI_BATCH
    assert [(call.prompt, call.response, call.model) for call in calls] == [
        ("", "a", "m-1"),
        ("", "b", "m-1"),
        ("", "c", "m-1"),
    ]
    assert calls[0].time == 1751284800


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz", "in.jsonl.zst"])
def test_prompts_are_joined_in_any_order(tmp_path: Path, name: str) -> None:
    count = 500
    asking = write_lines(tmp_path / name, [request(f"r{n}", f"q{n}") for n in range(count)])
    order = [n * 7 % count for n in range(count)]
    path = write_lines(tmp_path / "out.jsonl", [answer(f"r{n}", f"a{n}") for n in order])
    calls = read_all(path, batch_input=[str(asking)], strict=True)
    assert [(call.prompt, call.response) for call in calls] == [(prompt(f"q{n}"), f"a{n}") for n in order]
    assert [call.prompt for call in read_all(path, batch_input=[asking], want_prompt=False)] == [""] * count


def test_every_choice_has_the_prompt_and_several_inputs_are_one(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "one.jsonl", [request("1", "q1"), b"", request("2", "q2")])
    two = write_lines(tmp_path / "two.jsonl", [request("3", "q3"), request("1", "q1")])
    path = write_lines(tmp_path / "out.jsonl", [answer("3", "a", "b"), answer("1", "c")])
    calls = read_all(path, batch_input=[one, two], strict=True)
    assert [call.prompt for call in calls] == [prompt("q3"), prompt("q3"), prompt("q1")]


def test_completions_and_responses_too(tmp_path: Path) -> None:
    bodies = [
        ({"prompt": "2+2="}, {"choices": [{"text": "4"}]}),
        (
            {"instructions": "Be terse.", "input": "q"},
            {"output": [{"type": "message", "role": "assistant", "content": [{"text": "4"}]}]},
        ),
    ]
    asking = write_lines(
        tmp_path / "in.jsonl", [{"custom_id": str(n), "body": body} for n, (body, _) in enumerate(bodies)]
    )
    path = write_lines(
        tmp_path / "out.jsonl",
        [{"custom_id": str(n), "response": {"body": body}} for n, (_, body) in enumerate(bodies)],
    )
    calls = read_all(path, batch_input=[asking], strict=True)
    assert [(call.prompt, call.response) for call in calls] == [("2+2=", "4"), (prompt("q"), "4")]


def test_failed_requests_are_counted_and_not_read(tmp_path: Path) -> None:
    lines = [
        answer("1", "not this", status=500),
        answer("2", "nor this", error={"code": "batch_expired"}),
        {
            "custom_id": "3",
            "response": {"status_code": 429, "body": {"message": "Slow down."}},
            "error": None,
        },
        {"custom_id": "4", "response": None, "error": {"code": "batch_expired", "message": "too late"}},
        answer("5", "a"),
    ]
    path = write_lines(tmp_path / "out.jsonl", lines)
    # requests that failed may be missing
    asking = write_lines(tmp_path / "in.jsonl", [request("5", "q5")])
    report = ReadReport()
    assert [call.prompt for call in read_all(path, report, batch_input=[asking])] == [prompt("q5")]
    assert (report.counts.without_response, report.counts.malformed) == (4, 0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"[1]", "a request must be an object"),
        (b'{"custom_id": "2"}', "a request must be an object with custom_id and body"),
        (b'{"custom_id": 2, "body": {}}', "a request must be an object"),
        (b'{"custom_id": "2", "body": "\xff"}', "not UTF-8"),
        (json.dumps(request("2", "x" * 5000)).encode(), "the line must have at most"),
    ],
)
def test_a_malformed_input_line_is_reported_with_the_answer_that_needs_it(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    asking = write_lines(tmp_path / "in.jsonl", [request("1", "q1"), line, request("3", "q3")])
    path = write_lines(tmp_path / "out.jsonl", [answer(n, f"a{n}") for n in ("1", "2", "3")])
    report = ReadReport()
    calls = read_all(path, report, batch_input=[asking], max_line_bytes=1000)
    assert [call.response for call in calls] == ["a1", "a3"]
    assert (report.counts.calls, report.counts.malformed) == (2, 1)
    (fault,) = report.faults
    assert (fault.path, fault.place) == (path, "line 2")
    assert "no request with the custom_id '2'" in fault.reason
    assert f"got 1 that cannot be read: {asking}, line 2: {reason}" in fault.reason
    with pytest.raises(InvalidInputError, match=rf"out\.jsonl:1: .*in\.jsonl, line 2: {reason[:8]}"):
        read_all(path, batch_input=[asking], max_line_bytes=1000, strict=True)


def test_an_input_of_another_batch(tmp_path: Path) -> None:
    asking = write_lines(tmp_path / "in.jsonl", [request("x", "q")])
    path = write_lines(tmp_path / "out.jsonl", [answer("1", "a"), answer("2", "b")])
    report = ReadReport()
    assert read_all(path, report, batch_input=[asking]) == []
    assert (report.counts.malformed, len(report.faults)) == (2, 2)
    assert "no request with the custom_id '1'; expected one in " in report.faults[0].reason
    with pytest.raises(InvalidInputError, match=r"out\.jsonl:1: no request"):
        read_all(path, batch_input=[asking], strict=True)


def test_two_batches_with_the_same_names(tmp_path: Path) -> None:
    """Neither prompt is used for the other request."""
    asking = [
        write_lines(tmp_path / f"{n}.jsonl", [request("1", f"q{n}"), request("2", "q")])
        for n in ("a", "b", "c")
    ]
    path = write_lines(tmp_path / "out.jsonl", [answer("1", "a"), answer("2", "b")])
    report = ReadReport()
    assert [call.prompt for call in read_all(path, report, batch_input=asking)] == [prompt("q")]
    assert "several requests with the custom_id '1'" in report.faults[0].reason
    assert "one by one" in report.faults[0].reason


def test_a_missing_or_truncated_input(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "out.jsonl", [answer("1", "a"), answer("499", "b")])
    for missing in (tmp_path / "no.jsonl", tmp_path):
        with pytest.raises(InvalidInputError, match=r"batch input .* must be a file"):
            read_all(path, batch_input=[missing])
    asking = write_lines(
        tmp_path / "in.jsonl.gz", [request(str(n), f"q {n * n}" * 50) for n in range(20_000)]
    )
    asking.write_bytes(asking.read_bytes()[:-20])
    report = ReadReport()
    assert len(read_all(path, report, batch_input=[asking])) == 2
    asking.write_bytes(asking.read_bytes()[:300])
    assert read_all(path, report, batch_input=[asking]) == []
    assert "in.jsonl.gz, after line 1: Compressed file ended" in report.faults[0].reason


MEASURE = """
import resource, sys
from pathlib import Path
from suffixsvc_caches.counting.memory import peak_bytes
from suffixsvc_caches.logs import ReadReport, ReadOptions, find_logs, read_calls
if sys.argv[3:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
options = ReadOptions.parse(batch_input=[sys.argv[2]])
report = ReadReport()
(file,) = find_logs([Path(sys.argv[1])], options)
before = peak_bytes()
prompts = sum(len(call.prompt) for call in read_calls(file, options, report))
print(report.counts.calls, prompts, (peak_bytes() - before) >> 20)
"""


def test_requests_are_not_held_in_memory(tmp_path: Path) -> None:
    """150 MB of requests; and a full disk is an error rather than a partial index."""
    count, asking = 1500, tmp_path / "in.jsonl"
    with asking.open("w") as file:
        for n in range(count):
            file.write(json.dumps(request(str(n), f"{n:06}" + "x" * 100_000)) + "\n")
    path = write_lines(tmp_path / "out.jsonl", [answer(str(n), "a") for n in range(count)])
    command = [sys.executable, "-c", MEASURE, str(path), str(asking)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    calls, prompts, grown = (int(word) for word in output.split())
    assert (calls, prompts) == (count, count * len(prompt("x" * 100_006)))
    assert grown < 50, "MiB"
    full = subprocess.run([*command, "full"], check=False, capture_output=True, text=True)
    assert full.returncode == 1
    assert "StoreError: cannot index" in full.stderr
