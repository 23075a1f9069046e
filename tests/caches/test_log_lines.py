"""Malformed lines, encodings and long lines: valid records are read, others are reported."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs.base.lines import split_lines
from support.log_files import read_all, read_one, reasons, write_lines, write_packed

GOOD = {"response": "good"}


# ------------------------------------------------------------------------------------------ malformed lines


BAD_LINES = [
    (b"{", "not JSON"),
    (b"", None),
    (b"   \t\r", None),
    (b"\x00\x01\x02\xff", "not"),
    (b'{"response": "\xff"}', "not UTF-8; got invalid start byte at byte 14"),
    (b"[1, 2]", "a record must be an object; got list"),
    (b"3", "a record must be an object"),
    (b"null", "a record must be an object"),
    (b'{"response": 7}', "the response must be a string"),
    (b'{"response": true}', "the response must be a string"),
    (b'{"response": {"a": {"b": null}}}', "must be an answer of a known API"),
    (
        b'{"response_token_ids": [1, -1]}',
        "response_token_ids must be token ids; expected ids in 0 .. 2147483647; got -1",
    ),
    (b'{"response_token_ids": [1, 2147483648]}', "response_token_ids must be token ids"),
    (b'{"response_token_ids": [1, "2"]}', "response_token_ids must be token ids"),
    (b'{"response_token_ids": [1, 2.5]}', "response_token_ids must be token ids"),
    (b'{"response_token_ids": [[1], [2]]}', "a list must have token ids or parts of a message; got list"),
    (b'{"response_token_ids": [1.5, 2]}', "must have token ids or parts of a message"),
    (b'{"response_token_ids": [true]}', "response_token_ids must be token ids"),
    (
        b'{"response_token_ids": [1, true]}',
        "response_token_ids must be token ids; got true or false",
    ),
    (b'{"response_token_ids": [false, 7, 8]}', "response_token_ids must be token ids"),
    (b'{"response": "x", "prompt_token_ids": [5, false]}', "prompt_token_ids must be token ids"),
    (b'{"other": 1}', "no field"),
    (b"[" * 100_000, "levels of lists and objects"),
    (b'{"response": ' * 100_000, "levels of lists and objects"),
    (b'{"response": ' * 600 + b"null" + b"}" * 600, "levels of lists and objects"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_malformed_line_is_counted_and_reported(tmp_path: Path, line: bytes, reason: str | None) -> None:
    path = write_lines(tmp_path / "a.jsonl", [GOOD, line, GOOD])
    responses, report = reasons(path)
    assert responses == ["good", "good"]
    counts = report.counts
    if reason is None:  # blank, or without a response
        assert counts.malformed == 0
        return
    assert (counts.malformed, counts.damaged) == (1, 0)
    (fault,) = report.faults
    assert (fault.path, fault.place) == (path, "line 2")
    assert reason in fault.reason
    with pytest.raises(InvalidInputError, match=r"a\.jsonl:2: "):
        read_all(path, strict=True)


def test_the_first_twenty_faults_are_kept_and_the_rest_counted(tmp_path: Path) -> None:
    _, report = reasons(write_lines(tmp_path / "a.jsonl", [b"x"] * 1234))
    assert report.counts.malformed == 1234
    assert [fault.place for fault in report.faults] == [f"line {n}" for n in range(1, 21)]
    assert report.describe().endswith("and 1,214 more")


def test_what_strict_json_forbids_and_logs_contain(tmp_path: Path) -> None:
    lines = [
        b'{"response": "a", "score": NaN, "cost": -Infinity, "time": NaN}',
        b'{"response": "cut \\ud83d", "agent": "\\udc00"}',
        b'{"response": "whole \\ud83d\\ude00"}',
        b'{"response": "first", "response": "last"}',
        b'{"response": "big", "time": 123456789012345678901234567890}',
    ]
    path = write_lines(tmp_path / "a.jsonl", lines)
    calls = read_all(path, strict=True)
    assert [call.response for call in calls] == ["a", "cut \ufffd", "whole \U0001f600", "last", "big"]
    assert calls[0].time is None
    assert calls[1].agent == "\ufffd"


@pytest.mark.parametrize("key", ["data", "observations", "response", "message", "output"])
def test_a_document_nested_without_end(tmp_path: Path, key: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(f'[{{"{key}": ' * 50_000 + "1" + "}]" * 50_000)
    responses, report = reasons(path)
    assert responses == []
    assert report.counts.malformed == 1
    assert "levels of lists and objects" in report.faults[0].reason
    path.write_text(f'[{{"{key}": ' * 50_000)
    assert "nested too deeply after record 0" in reasons(path)[1].faults[0].reason


def test_labels_of_other_types_are_empty(tmp_path: Path) -> None:
    call = read_one(
        tmp_path, {"response": "r", "agent": ["x"], "model": None, "session_id": 1.5, "kind": True}
    )
    assert (call.agent, call.model, call.session, call.kind) == ("", "", "1.5", "")


# ------------------------------------------------------------------------------------------------ encodings


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_byte_order_marks(tmp_path: Path, encoding: str) -> None:
    text = "\n".join(json.dumps({"response": f"ä{n}漢😀"}, ensure_ascii=False) for n in range(3))
    mark = "\ufeff" if encoding in ("utf-16-le", "utf-16-be") else ""
    write_packed(tmp_path / "a.jsonl.gz", (mark + text).encode(encoding))
    assert reasons(tmp_path)[0] == [f"ä{n}漢😀" for n in range(3)]


def test_one_line_in_another_encoding_is_one_malformed_line(tmp_path: Path) -> None:
    lines = [
        json.dumps({"response": word}, ensure_ascii=False).encode(encoding)
        for word, encoding in [("süß", "utf-8"), ("süß", "latin-1"), ("süß", "utf-8")]
    ]
    path = write_lines(tmp_path / "a.jsonl", lines)
    responses, report = reasons(path)
    assert (responses, report.counts.malformed) == (["süß", "süß"], 1)
    assert "UTF-8" in report.faults[0].reason
    assert reasons(path, encoding="latin-1")[0][1] == "süß"


def test_bytes_that_are_invalid_in_the_encoding_are_malformed(tmp_path: Path) -> None:
    lines = [json.dumps({"response": "漢字"}, ensure_ascii=False).encode("gbk"), b'{"response": "\xff\xff"}']
    responses, report = reasons(write_lines(tmp_path / "a.jsonl", [*lines, GOOD]), encoding="gbk")
    assert (responses, report.counts.malformed) == (["漢字", "good"], 1)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_log_without_the_byte_order_mark_it_needs_is_damaged(tmp_path: Path, encoding: str) -> None:
    """UTF-16 and UTF-32 require a byte order mark. A file without it ended the reading of all files with a
    traceback; it is damaged, and the others are read."""
    text = json.dumps(GOOD) + "\n"
    (tmp_path / "a.jsonl").write_bytes(text.encode(encoding))
    (tmp_path / "b.jsonl").write_bytes(text.encode(f"{encoding}-le"))
    responses, report = reasons(tmp_path, encoding=encoding)
    assert responses == ["good"]
    assert (report.counts.calls, report.counts.damaged, report.counts.malformed) == (1, 1, 0)
    assert f"{encoding}-le" in report.faults[0].reason
    with pytest.raises(InvalidInputError, match=r"b\.jsonl"):
        read_all(tmp_path, encoding=encoding, strict=True)


def test_utf_16_that_ends_in_half_a_character(tmp_path: Path) -> None:
    data = ("\ufeff" + json.dumps(GOOD) + "\n" + json.dumps(GOOD)).encode("utf-16-le")
    (tmp_path / "a.jsonl").write_bytes(data[:-1])
    responses, report = reasons(tmp_path)
    assert (responses, report.counts.malformed) == (["good"], 1)


# ---------------------------------------------------------------------------------------------- long lines


@given(
    st.lists(st.binary(max_size=40).map(lambda data: data.replace(b"\0", b"\n")), max_size=12),
    st.integers(1, 30),
)
def test_lines_are_those_of_the_whole(pieces: list[bytes], limit: int) -> None:
    lines = b"".join(pieces).split(b"\n")
    if not lines[-1]:
        lines.pop()
    expected = [(n, line if len(line) <= limit else None) for n, line in enumerate(lines, 1)]
    assert list(split_lines(pieces, limit)) == expected


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_line_beyond_the_limit_is_skipped(tmp_path: Path, name: str) -> None:
    path = write_lines(tmp_path / name, [GOOD, {"response": "x" * 500_000}, GOOD])
    responses, report = reasons(path, max_line_bytes=1000)
    assert (responses, report.counts.malformed) == (["good", "good"], 1)
    assert "line 2: the line must have at most 1,000 bytes" in str(report.faults[0])
    assert len(reasons(path)[0]) == 3


def test_a_record_of_an_array_beyond_the_limit_ends_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([*[GOOD] * 3_000, {"response": "x" * 9_000_000}, GOOD]))
    responses, report = reasons(path, max_line_bytes=4_000_000)
    assert len(responses) == 3_000
    assert report.counts.damaged == 1
    assert "a record of more than 4,000,000 bytes" in report.faults[0].reason


MEASURE = """
import sys
from pathlib import Path
from suffixsvc_caches.counting.memory import peak_bytes
from suffixsvc_caches.logs import ReadReport, ReadOptions, find_logs, read_calls
options = ReadOptions.parse(max_line_bytes=int(sys.argv[2]))
report = ReadReport()
files = find_logs([Path(sys.argv[1])], options)
import orjson, zstandard
before = peak_bytes()
for file in files:
    for call in read_calls(file, options, report):
        pass
print(report.counts.calls, report.counts.malformed, report.counts.damaged, (peak_bytes() - before) >> 20)
"""


def measure(path: Path, limit: int) -> list[int]:
    """Number of calls, malformed records, damaged files, and additional peak memory in MiB."""
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, path, str(limit)], check=True, capture_output=True, text=True
    )
    return [int(word) for word in result.stdout.split()]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_a_line_of_120_mb_is_not_held_in_memory(tmp_path: Path, name: str) -> None:
    """The compressed files are decompression bombs: 120 MB from 120 kB, and from 12 kB."""
    path = tmp_path / name
    opening: Any = {".gz": gzip.open, ".zst": zstandard.open}.get(path.suffix, open)
    good = json.dumps(GOOD).encode() + b"\n"
    with opening(path, "wb") as file:
        file.write(good + b'{"response": "')
        for _ in range(120):
            file.write(b"x" * 1_000_000)
        file.write(b'"}\n' + good)
    calls, malformed, damaged, grown = measure(path, 4 << 20)
    assert (calls, malformed, damaged) == (2, 1, 0)
    assert grown < 80, "MiB: a piece is up to 16 of them, and there may be three"


def test_an_array_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"[")
        for _ in range(100):
            file.write(b'{"response": "' + b"x" * 1_000_000 + b'"},\n')
        file.write(b'{"response": "last"}]')
    calls, malformed, damaged, grown = measure(path, 4 << 20)
    assert (calls, malformed, damaged) == (101, 0, 0)
    assert grown < 60
