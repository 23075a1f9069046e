"""CSV and TSV readers: rows as records, quoting, limits and damage."""

from __future__ import annotations

import csv
import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs import LogFormat, ReadOptions, ReadReport, find_logs
from suffixsvc_caches.logs.base.sources import DamagedFile
from suffixsvc_caches.logs.formats.csv_rows import read_csv, split_rows
from suffixsvc_caches.logs.formats.values import Storage
from support.log_files import read_all, write_lines, write_packed

SAID = 'He said "no",\nthen left; 1\t2'


def table(*rows: list[Any], **dialect: Any) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, **dialect).writerows(rows)
    return text.getvalue().encode()


HEADER = ["prompt", "response", "agent", "session_id", "time"]
ROWS = [
    ["q1", "a1", "x", "s1", "2025-06-30T12:00:00Z"],
    ["q2", SAID, "y", "s2", ""],
    ["", "süß", "", "", "7"],
]


def write(path: Path, *rows: bytes) -> Path:
    return write_packed(path, b"".join(row + b"\n" for row in rows))


# ---------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.csv.zst", "a.tsv", "a.tsv.gz"])
@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_columns_are_fields(tmp_path: Path, name: str, delimiter: str, ends: str) -> None:
    data = table(HEADER, *ROWS, delimiter=delimiter, lineterminator=ends)
    path = write_packed(tmp_path / name, b"\n" + data)
    report = ReadReport()
    calls = read_all(path, report)
    assert [(call.prompt, call.response, call.agent, call.session) for call in calls] == [
        ("q1", "a1", "x", "s1"),
        ("q2", SAID, "y", "s2"),
        ("", "süß", "", ""),
    ]
    assert [call.time for call in calls] == [1751284800.0, None, 7.0]
    assert (report.counts.calls, report.counts.malformed, report.counts.bytes) == (3, 0, path.stat().st_size)
    (file,) = find_logs([path], ReadOptions())
    assert (file.storage, file.format) == (Storage.CSV, LogFormat.JSONL)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes(table(["response"], ["süß"], ["x"]).decode().encode(encoding))
    calls = read_all(tmp_path / "a.csv", encoding="latin-1" if encoding == "latin-1" else "utf-8")
    assert [call.response for call in calls] == ["süß", "x"]


def test_fields_that_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"the.question,said,text", b"q,a,other")
    (call,) = read_all(path, prompt_field="the.question", response_field="said")
    assert (call.prompt, call.response) == ("q", "a")
    with pytest.raises(InvalidInputError, match=r"no field sad; got the fields the\.question, said, text"):
        read_all(path, response_field="sad")


def test_an_empty_cell_is_no_response(tmp_path: Path) -> None:
    report = ReadReport()
    path = write(tmp_path / "a.csv", b"prompt,response,output", b"q,,", b'q,"",', b"q,,o", b"", b"q,a,o")
    assert [call.response for call in read_all(path, report)] == ["o", "a"]
    assert (report.counts.without_response, report.counts.malformed) == (2, 0)


def test_columns_that_hold_json(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": 'a, or "b"\n'}]
    data = table(["messages", "model"], [json.dumps(messages, indent=1), "m"])
    (call,) = read_all(write_packed(tmp_path / "a.csv", data))
    assert call.prompt == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    assert (call.response, call.model) == ('a, or "b"\n', "m")
    data = table(["messages", "response"], [json.dumps(messages[:1]), '{"structured":  1}'])
    (call,) = read_all(write_packed(tmp_path / "b.csv", data))
    assert call.prompt == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    data = table(["response_token_ids", "tokenizer"], ["[1, 2]", "f"], ["1 2", "f"], ["[3]", "f"])
    report = ReadReport()
    calls = read_all(write_packed(tmp_path / "c.csv", data), report)
    assert [np.asarray(call.response).tolist() for call in calls] == [[1, 2], [3]]
    assert "line 3: column response_token_ids: not JSON" in str(report.faults[0])
    data = table(["messages", "model"], ["Hello there", "m"], [json.dumps(messages), "m"])
    report = ReadReport()
    assert len(read_all(write_packed(tmp_path / "e.csv", data), report)) == 1
    assert "line 2: messages must be a list of objects with a role; got str" in str(report.faults[0])
    turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    path = write_packed(tmp_path / "d.tsv", table(["id", "conversations"], ["1", json.dumps(turns)]))
    assert [call.response for call in read_all(path)] == ["a"]
    assert find_logs([path], ReadOptions())[0].format is LogFormat.SHAREGPT


def test_tables_are_detected_by_name_or_option(tmp_path: Path) -> None:
    rows = (b"prompt,response", b"q,a")
    for name in ("a.csv", "b.txt", "c.jsonl"):
        write(tmp_path / name, *rows)
    write_lines(tmp_path / "d.csv", [{"response": "r"}])
    (tmp_path / "e.csv").write_text('[{"response": "r"}]')
    (tmp_path / "f.csv").write_text("")
    options = ReadOptions()
    stored = [
        find_logs([tmp_path / name], options)[0].storage
        for name in sorted(p.name for p in tmp_path.iterdir())
    ]
    assert stored == [
        Storage.CSV,
        Storage.TEXT,
        Storage.LINES,
        Storage.LINES,
        Storage.DOCUMENT,
        Storage.CSV,
    ]
    assert [file.name for file in find_logs([tmp_path], options)] == ["c.jsonl"], (
        "without CSV files by default"
    )
    named = ReadOptions.parse(format="csv")
    assert [file.name for file in find_logs([tmp_path], named)] == ["a.csv", "d.csv", "e.csv", "f.csv"]
    assert [call.response for call in read_all(tmp_path / "b.txt", format="csv")] == ["a"]
    assert [call.response for call in read_all(tmp_path, format="csv")] == ["a", "r", "r"]
    assert len(read_all(tmp_path, include=["a.csv"])) == 1
    assert read_all(tmp_path / "a.csv", format="text")[0].response == "prompt,response\nq,a\n"


# -------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"q", "the row must have 2 cells, as the header; got 1"),
        (b"q,a,b", "the row must have 2 cells, as the header; got 3"),
        (b"q,\xff", "not UTF-8; got invalid start byte at byte 2"),
        (b'q,"a"b', "not CSV; got ',' expected after '\"'"),
        (b'"5" pipe",a', "not CSV"),
        (b"q\rx,a", "not CSV; got new-line character"),
        (b"q," + b"x" * 5000, "the row must have at most 1,000 bytes"),
        (b'"' + b'""\n,' * 2000 + b'",a', "the row must have at most"),
    ],
)
def test_a_malformed_row_is_counted_and_reported(tmp_path: Path, row: bytes, reason: str) -> None:
    path = write(tmp_path / "a.csv", b"prompt,response", b'"q\n1",a1', row, b"q2,a2")
    report = ReadReport()
    assert [call.response for call in read_all(path, report, max_line_bytes=1000)] == ["a1", "a2"]
    assert (report.counts.malformed, report.counts.damaged) == (1, 0)
    (fault,) = report.faults
    assert (fault.path, fault.place) == (path, "line 4")
    assert reason in fault.reason
    with pytest.raises(InvalidInputError, match=r"a\.csv:4: "):
        read_all(path, max_line_bytes=1000, strict=True)


def test_an_unterminated_quote_ends_the_table(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"prompt,response", b"q1,a1", b'q2,"a2', b"q3,a3")
    report = ReadReport()
    assert [call.response for call in read_all(path, report)] == ["a1"]
    assert report.counts.damaged == 1
    assert "the row that begins in line 3 has a quote that is not closed" in report.describe()
    with pytest.raises(InvalidInputError, match=r"a\.csv:2: cannot be read from here on: the row"):
        read_all(path, strict=True)


@pytest.mark.parametrize(
    "header", [b"prompt,\xff", b'prompt,"response"x', b"\r\x00", b"p" * 2000 + b",response"]
)
def test_a_header_that_cannot_be_read(tmp_path: Path, header: bytes) -> None:
    report = ReadReport()
    assert read_all(write(tmp_path / "a.csv", header, b"q,a"), report, max_line_bytes=1000) == []
    assert (report.counts.damaged, report.counts.malformed) == (1, 0)
    assert "the header cannot be read" in report.describe()


def test_unknown_columns(tmp_path: Path) -> None:
    report = ReadReport()
    assert read_all(write(tmp_path / "a.csv", b"foo,bar", b"1,2"), report) == []
    assert "line 2: no field" in report.describe()
    assert "got the fields foo, bar" in report.describe()


def test_a_truncated_file_gives_what_it_has(tmp_path: Path) -> None:
    rows = [[str(n), f'{n} "quoted"\n' + str(n * n) * 20] for n in range(20_000)]
    path = write_packed(tmp_path / "a.csv.gz", table(["prompt", "response"], *rows))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    report = ReadReport()
    calls = read_all(path, report)
    assert [call.response for call in calls] == [row[1] for row in rows[: len(calls)]]
    assert 8_000 < len(calls) < 12_000
    assert (report.counts.damaged, report.counts.malformed) == (1, 0)


MEASURE = """
import sys
from pathlib import Path
from suffixsvc_caches.counting.memory import peak_bytes
from suffixsvc_caches.logs import ReadReport, ReadOptions, find_logs, read_calls
options = ReadOptions.parse(max_line_bytes=4 << 20)
report = ReadReport()
(file,) = find_logs([Path(sys.argv[1])], options)
before = peak_bytes()
responses = [len(call.response) for call in read_calls(file, options, report)]
print(*responses, report.counts.malformed, (peak_bytes() - before) >> 20)
"""


@pytest.mark.parametrize("piece", [b"x" * 1_000_000, b'""' * 500_000, b"x,\n" * 333_333])
def test_a_cell_of_80_mb_is_not_held_in_memory(tmp_path: Path, piece: bytes) -> None:
    """A cell of 300 kB, more than the csv module's default limit, is read."""
    path = tmp_path / "a.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'prompt,response\nq,"' + b"a" * 300_000 + b'"\nq,"')
        for _ in range(80):
            file.write(piece)
        file.write(b'"\nq,last\n')
    output = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], check=True, capture_output=True, text=True
    ).stdout
    first, last, malformed, grown = map(int, output.split())
    assert (first, last, malformed) == (300_000, 4, 1)
    assert grown < 40, "MiB"


# ----------------------------------------------------------------------------------------- the oracle


CELLS = st.text(st.sampled_from(["a", '"', ",", "\t", ";", "\n", "ß", " "]), max_size=6)


def cut(data: st.DataObject, text: bytes) -> list[bytes]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return [piece for piece in pieces if piece]


@given(st.lists(st.lists(CELLS, min_size=2, max_size=2), max_size=6), st.sampled_from(",\t;"), st.data())
def test_tables_are_those_of_the_whole(rows: list[list[str]], delimiter: str, data: st.DataObject) -> None:
    """Rows written by the csv module are read back with any division into pieces."""
    text = table(
        ["x", "y"], *rows, delimiter=delimiter, lineterminator=data.draw(st.sampled_from(["\n", "\r\n"]))
    )
    read = [record for _, record in read_csv(cut(data, text), 1 << 20)]
    assert read == [{"x": x or None, "y": y or None} for x, y in rows]


PARTS = st.sampled_from(["a", '"', '""', ",", ',"', '",', "\n", '"\n'])


@given(st.lists(PARTS, max_size=24).map("".join), st.data())
def test_rows_end_where_the_csv_module_ends_them(text: str, data: st.DataObject) -> None:
    """With any quotes; line numbers are compared, too."""
    reader = csv.reader(io.StringIO(text, newline=""))
    begins, expected = [], []
    line = 1
    for row in reader:
        begins.append(line)
        expected.append(row)
        line = reader.line_num + 1
    found: list[tuple[int, bytes | None]] = []
    unclosed = False
    try:
        for each in split_rows(cut(data, text.encode()), 1 << 20, b","):
            found.append(each)
    except DamagedFile:
        unclosed = True
    kept = expected[: len(found)] if unclosed else expected
    assert [next(csv.reader([(row or b"").decode()])) for _, row in found] == kept
    assert [number for number, _ in found] == begins[: len(found)]
    assert len(expected) - len(found) == (1 if unclosed else 0)
