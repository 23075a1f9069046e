"""Batches of OpenAI's API: answers in one file, what was asked in another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from suffixsvc_caches.logs import LogFormat, LogTally, ReadOptions, find_logs
from support.log_files import read_all, write_lines

from suffixsvc.errors import InvalidInputError


def asked(custom_id: str, question: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": question}]
    body = {"model": "m", "messages": messages}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def answered(custom_id: str, *answers: str, status: int = 200, error: Any = None) -> dict[str, Any]:
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
    path = write_lines(tmp_path / "out.jsonl", [answered("1", "a"), answered("2", "b", "c")])
    calls = read_all(path)
    assert find_logs([path], ReadOptions())[0].format is LogFormat.OPENAI_BATCH
    assert [(call.prompt, call.response, call.model) for call in calls] == [
        ("", "a", "m-1"),
        ("", "b", "m-1"),
        ("", "c", "m-1"),
    ]
    assert calls[0].time == 1751284800


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz", "in.jsonl.zst"])
def test_prompts_are_joined_in_whatever_order(tmp_path: Path, name: str) -> None:
    count = 500
    asking = write_lines(tmp_path / name, [asked(f"r{n}", f"q{n}") for n in range(count)])
    order = [n * 7 % count for n in range(count)]
    path = write_lines(tmp_path / "out.jsonl", [answered(f"r{n}", f"a{n}") for n in order])
    calls = read_all(path, batch_input=[str(asking)], strict=True)
    assert [(call.prompt, call.response) for call in calls] == [(prompt(f"q{n}"), f"a{n}") for n in order]
    assert [call.prompt for call in read_all(path, batch_input=[asking], want_prompt=False)] == [""] * count


def test_every_choice_has_the_prompt_and_several_inputs_are_one(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "one.jsonl", [asked("1", "q1"), b"", asked("2", "q2")])
    two = write_lines(tmp_path / "two.jsonl", [asked("3", "q3"), asked("1", "q1")])
    path = write_lines(tmp_path / "out.jsonl", [answered("3", "a", "b"), answered("1", "c")])
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
        answered("1", "not this", status=500),
        answered("2", "nor this", error={"code": "batch_expired"}),
        {
            "custom_id": "3",
            "response": {"status_code": 429, "body": {"message": "Slow down."}},
            "error": None,
        },
        {"custom_id": "4", "response": None, "error": {"code": "batch_expired", "message": "too late"}},
        answered("5", "a"),
    ]
    path = write_lines(tmp_path / "out.jsonl", lines)
    # the requests of those that failed need not be there
    asking = write_lines(tmp_path / "in.jsonl", [asked("5", "q5")])
    tally = LogTally()
    assert [call.prompt for call in read_all(path, tally, batch_input=[asking])] == [prompt("q5")]
    assert (tally.counts.without_response, tally.counts.malformed) == (4, 0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"[1]", "no request of a batch"),
        (b'{"custom_id": "2"}', "no request of a batch; expected an object with custom_id and body"),
        (b'{"custom_id": 2, "body": {}}', "no request of a batch"),
        (b'{"custom_id": "2", "body": "\xff"}', "not UTF-8"),
        (json.dumps(asked("2", "x" * 5000)).encode(), "the line is too long"),
    ],
)
def test_a_bad_line_of_the_input_is_told_where_it_is_missed(tmp_path: Path, line: bytes, reason: str) -> None:
    asking = write_lines(tmp_path / "in.jsonl", [asked("1", "q1"), line, asked("3", "q3")])
    path = write_lines(tmp_path / "out.jsonl", [answered(n, f"a{n}") for n in ("1", "2", "3")])
    tally = LogTally()
    calls = read_all(path, tally, batch_input=[asking], max_line_bytes=1000)
    assert [call.response for call in calls] == ["a1", "a3"]
    assert (tally.counts.calls, tally.counts.malformed) == (2, 1)
    (fault,) = tally.faults
    assert (fault.path, fault.place) == (path, "line 2")
    assert "no request with the custom_id '2'" in fault.reason
    assert f"got 1 that cannot be read: {asking}, line 2: {reason}" in fault.reason
    with pytest.raises(InvalidInputError, match=rf"out\.jsonl:1: .*in\.jsonl, line 2: {reason[:8]}"):
        read_all(path, batch_input=[asking], max_line_bytes=1000, strict=True)


def test_an_input_of_another_batch(tmp_path: Path) -> None:
    asking = write_lines(tmp_path / "in.jsonl", [asked("x", "q")])
    path = write_lines(tmp_path / "out.jsonl", [answered("1", "a"), answered("2", "b")])
    tally = LogTally()
    assert read_all(path, tally, batch_input=[asking]) == []
    assert (tally.counts.malformed, len(tally.faults)) == (2, 2)
    assert "no request with the custom_id '1'; expected one in " in tally.faults[0].reason
    with pytest.raises(InvalidInputError, match=r"out\.jsonl:1: no request"):
        read_all(path, batch_input=[asking], strict=True)


def test_two_batches_with_the_same_names(tmp_path: Path) -> None:
    """Neither prompt is taken for the other's."""
    asking = [
        write_lines(tmp_path / f"{n}.jsonl", [asked("1", f"q{n}"), asked("2", "q")]) for n in ("a", "b", "c")
    ]
    path = write_lines(tmp_path / "out.jsonl", [answered("1", "a"), answered("2", "b")])
    tally = LogTally()
    assert [call.prompt for call in read_all(path, tally, batch_input=asking)] == [prompt("q")]
    assert "several requests with the custom_id '1'" in tally.faults[0].reason
    assert "one by one" in tally.faults[0].reason


def test_an_input_that_is_not_there_or_torn(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "out.jsonl", [answered("1", "a"), answered("499", "b")])
    for missing in (tmp_path / "no.jsonl", tmp_path):
        with pytest.raises(InvalidInputError, match="cannot read the batch input"):
            read_all(path, batch_input=[missing])
    asking = write_lines(tmp_path / "in.jsonl.gz", [asked(str(n), f"q {n * n}" * 50) for n in range(20_000)])
    asking.write_bytes(asking.read_bytes()[:-20])
    tally = LogTally()
    assert len(read_all(path, tally, batch_input=[asking])) == 2
    asking.write_bytes(asking.read_bytes()[:300])
    assert read_all(path, tally, batch_input=[asking]) == []
    assert "in.jsonl.gz, behind line 1: Compressed file ended" in tally.faults[0].reason


MEASURE = """
import resource, sys
from pathlib import Path
from suffixsvc_caches.counting.memory import peak_bytes
from suffixsvc_caches.logs import LogTally, ReadOptions, find_logs, read_calls
if sys.argv[3:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
options = ReadOptions.parse(batch_input=[sys.argv[2]])
tally = LogTally()
(file,) = find_logs([Path(sys.argv[1])], options)
before = peak_bytes()
prompts = sum(len(call.prompt) for call in read_calls(file, options, tally))
print(tally.counts.calls, prompts, (peak_bytes() - before) >> 20)
"""


def test_the_requests_are_never_held(tmp_path: Path) -> None:
    """150 MB of them; nor half of them taken for all where there is no room to put them aside."""
    count, asking = 1500, tmp_path / "in.jsonl"
    with asking.open("w") as file:
        for n in range(count):
            file.write(json.dumps(asked(str(n), f"{n:06}" + "x" * 100_000)) + "\n")
    path = write_lines(tmp_path / "out.jsonl", [answered(str(n), "a") for n in range(count)])
    command = [sys.executable, "-c", MEASURE, str(path), str(asking)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    calls, prompts, grown = (int(word) for word in told.split())
    assert (calls, prompts) == (count, count * len(prompt("x" * 100_006)))
    assert grown < 50, "MiB"
    full = subprocess.run([*command, "full"], check=False, capture_output=True, text=True)
    assert full.returncode == 1
    assert "StoreError: cannot put" in full.stderr
