"""Folders of logs, texts and source code; Parquet columns and damage."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from suffixsvc.errors import InvalidInputError, MissingExtraError
from suffixsvc_caches.logs import LogFormat, ReadOptions, ReadReport, find_logs
from suffixsvc_caches.logs.formats.values import Storage
from suffixsvc_caches.logs.parquet.tables import read_rows
from suffixsvc_caches.logs.parsers import open_parser
from support.log_files import read_all, write_lines


def fill(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def names(root: Path, **options: Any) -> list[str]:
    return [file.name for file in find_logs([root], ReadOptions.parse(**options))]


LOG = b'{"response": "r"}\n'
TREE = {
    "b.jsonl": LOG,
    "a.jsonl": LOG,
    "sub/deep/c.ndjson": LOG,
    "sub/d.json": LOG,
    "notes.txt": b"text",
    "main.py": b"print()\n",
    ".git/e.jsonl": LOG,
    "node_modules/f.json": LOG,
    "x/__pycache__/g.jsonl": LOG,
}


def test_logs_of_a_folder_are_found_in_order(tmp_path: Path) -> None:
    fill(tmp_path, TREE)
    assert names(tmp_path) == ["a.jsonl", "b.jsonl", "sub/d.json", "sub/deep/c.ndjson"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"include": ["*.ndjson"]}, ["sub/deep/c.ndjson"]),
        ({"include": ["sub/**"]}, ["sub/d.json", "sub/deep/c.ndjson"]),
        ({"exclude": ["/a.*", "deep/"]}, ["b.jsonl", "sub/d.json"]),
        ({"include": ["*.json"], "exclude": ["!node_modules/"]}, ["node_modules/f.json", "sub/d.json"]),
        ({"format": "text", "exclude": ["sub", "*.jsonl"]}, ["main.py", "notes.txt"]),
        ({"format": "text", "include": ["*.py"]}, ["main.py"]),
    ],
)
def test_patterns(tmp_path: Path, options: dict[str, Any], expected: list[str]) -> None:
    assert names(fill(tmp_path, TREE), **options) == expected


def test_a_file_is_read_once_however_often_it_is_named(tmp_path: Path) -> None:
    fill(tmp_path, {"a.jsonl": LOG, "b.jsonl": LOG})
    (tmp_path / "c.jsonl").symlink_to(tmp_path / "a.jsonl")
    paths = [tmp_path / "b.jsonl", tmp_path, tmp_path / "sub" / ".." / "a.jsonl"]
    (tmp_path / "sub").mkdir()
    assert [file.name for file in find_logs(paths, ReadOptions())] == ["b.jsonl", "a.jsonl"]


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no such file"):
        find_logs([tmp_path / "missing"], ReadOptions())
    with pytest.raises(InvalidInputError, match=r"the folder .* must have logs.* Use the format text"):
        find_logs([fill(tmp_path, {"main.py": b""})], ReadOptions())
    with pytest.raises(InvalidInputError, match=r"expected files \*\.log"):
        find_logs([tmp_path], ReadOptions(include=("*.log",)))


def test_a_malformed_pattern(tmp_path: Path) -> None:
    fill(tmp_path, TREE)
    with pytest.raises(InvalidInputError, match="must be patterns as in"):
        find_logs([tmp_path], ReadOptions(include=("!",)))


def test_each_file_of_a_folder_of_code_is_a_response(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {
            "src/a.py": b"x = 1\n",
            "src/empty.py": b"",
            "logo.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
            "latin.txt": "süß".encode("latin-1"),
            "utf16.txt": "süß".encode("utf-16"),
            "README": "süß".encode(),
        },
    )
    report = ReadReport()
    calls = read_all(tmp_path, report, format="text")
    assert [(call.session, call.response, call.kind) for call in calls] == [
        ("README", "süß", ""),
        ("src/a.py", "x = 1\n", "py"),
        ("utf16.txt", "süß", "txt"),
    ]
    counts = report.counts
    assert (counts.files, counts.calls, counts.binary, counts.malformed, counts.without_response) == (
        6,
        3,
        1,
        1,
        1,
    )
    assert counts.bytes == sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert "latin.txt: the file must be text in the given encoding" in report.describe()
    assert len(read_all(tmp_path, format="text", encoding="latin-1")) == 4


def test_a_text_that_is_too_long_is_left_out(tmp_path: Path) -> None:
    report = ReadReport()
    assert read_all(fill(tmp_path, {"a.txt": b"x" * 101}), report, format="text", max_line_bytes=100) == []
    assert "the file must have at most" in report.describe()


def test_a_named_file_is_what_it_looks_like(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {
            "calls.log": LOG,
            "notes.md": b"[a link](x)\n",
            "set.txt": b"{1, 2}\n",
            "odd.gz": LOG,
            "no.jsonl": b"hm",
        },
    )
    detected = {
        file.name: file
        for file in find_logs(
            [tmp_path / name for name in sorted(path.name for path in tmp_path.iterdir())], ReadOptions()
        )
    }
    assert {name: file.storage for name, file in detected.items()} == {
        "calls.log": Storage.LINES,
        "notes.md": Storage.TEXT,
        "set.txt": Storage.TEXT,
        "odd.gz": Storage.LINES,
        "no.jsonl": Storage.LINES,
    }
    assert detected["notes.md"].found == "text"
    assert read_all(tmp_path / "notes.md")[0].response == "[a link](x)\n"


@pytest.mark.parametrize(
    ("module", "name"),
    [("orjson", "a.jsonl"), ("zstandard", "b.jsonl.zst"), ("pyarrow", "c.parquet"), ("pathspec", "")],
)
def test_a_missing_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    write_lines(tmp_path / "a.jsonl", [{"response": "r"}])
    write_lines(tmp_path / "b.jsonl.zst", [{"response": "r"}])
    write_table(tmp_path / "c.parquet", {"response": ["r"]})
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"suffixsvc\[caches\]"):
        read_all(tmp_path / name)


# -------------------------------------------------------------------------------------------------- Parquet


def write_table(path: Path, columns: dict[str, Any], rows: int = 100) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=rows)
    return path


def test_columns_are_fields(tmp_path: Path) -> None:
    count = 1000
    path = write_table(
        tmp_path / "a.parquet",
        {
            "question": [f"q{n}" for n in range(count)],
            "answer": [f"a{n}" if n % 10 else None for n in range(count)],
            "who": pa.array([["x", "y"][n % 2] for n in range(count)]).dictionary_encode(),
            "at": pa.array(range(count), pa.timestamp("s")),
        },
    )
    report = ReadReport()
    options = {
        "response_field": "answer",
        "prompt_field": "question",
        "agent_field": "who",
        "time_field": "at",
    }
    calls = read_all(path, report, agents=["y"], **options)
    assert [(call.prompt, call.response, call.time) for call in calls] == [
        (f"q{n}", f"a{n}", n) for n in range(1, count, 2)
    ]
    assert (report.counts.calls, report.counts.filtered, report.counts.without_response) == (500, 500, 0)
    assert report.counts.bytes == path.stat().st_size
    assert read_all(path, want_prompt=False, **options)[0].prompt == ""
    with pytest.raises(
        InvalidInputError, match=r"no field answers; got the fields question, answer, who, at"
    ):
        read_all(path, response_field="answers")


def test_prompt_columns_are_not_read_without_want_prompt(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", {"prompt": ["q"], "response": ["r"], "agent": ["a"]})
    unneeded = open_parser(LogFormat.PARQUET, ReadOptions()).unneeded
    assert "prompt" in unneeded
    assert list(read_rows(path, without=unneeded)) == [(1, {"response": "r", "agent": "a"})]


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint16())])
def test_lists_of_integers_are_token_ids(tmp_path: Path, kind: pa.DataType) -> None:
    ids = [[1, 2, 3], [], None, [65535]]
    path = write_table(
        tmp_path / "a.parquet", {"response_token_ids": pa.array(ids, kind), "tokenizer": ["f"] * 4}
    )
    report = ReadReport()
    calls = read_all(path, report)
    assert [np.asarray(call.response).tolist() for call in calls] == [[1, 2, 3], [65535]]
    assert all(np.asarray(call.response).dtype == np.int32 and call.tokenizer == "f" for call in calls)
    assert report.counts.without_response == 2
    assert find_logs([path], ReadOptions())[0].found == "Parquet: recordings"


def test_invalid_ids(tmp_path: Path) -> None:
    ids = pa.array([[1, None], [-1], [2**40], [5]], pa.list_(pa.int64()))
    report = ReadReport()
    calls = read_all(write_table(tmp_path / "a.parquet", {"response_token_ids": ids}), report)
    assert [np.asarray(call.response).tolist() for call in calls] == [[5]]
    assert [fault.place for fault in report.faults] == ["row 1", "row 2", "row 3"]


def test_messages_in_columns(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    path = write_table(tmp_path / "a.parquet", {"messages": [messages] * 2, "id": ["x", "y"]})
    calls = read_all(path)
    assert [call.response for call in calls] == ["a", "a"]
    assert calls[0].prompt == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    assert find_logs([path], ReadOptions())[0].format is LogFormat.OPENAI_CHAT


def test_a_text_column_with_invalid_utf_8(tmp_path: Path) -> None:
    column = pa.array([b"a", b"\xff", b"c"]).view(pa.utf8())
    report = ReadReport()
    calls = read_all(write_table(tmp_path / "a.parquet", {"response": column}), report)
    assert [call.response for call in calls] == ["a", "c"]
    assert report.faults[0].place == "row 2"


SECOND = 1_700_000_000
FINE = SECOND * 10**9 + 123_456_789
TIMES = {
    "nanoseconds": (pa.array([FINE, None, FINE], pa.timestamp("ns")), SECOND + 0.123456789),
    "year 10000": (pa.array([SECOND, 0, 2**40], pa.timestamp("s")), SECOND),
    "unknown zone": (pa.array([SECOND * 10**6] * 3, pa.timestamp("us", tz="Mars/Phobos")), SECOND),
}


@pytest.mark.parametrize("case", TIMES)
def test_timestamps_that_no_datetime_holds_are_times(tmp_path: Path, case: str) -> None:
    """Some Parquet timestamps exceed datetime. Such a cell made the rest of the file damaged;
    they are converted to seconds, and to None outside the range of times in logs."""
    column, first = TIMES[case]
    path = write_table(tmp_path / "a.parquet", {"response": ["a", "b", "c"], "timestamp": column})
    report = ReadReport()
    calls = read_all(path, report)
    assert [call.response for call in calls] == ["a", "b", "c"], report.describe()
    assert calls[0].time == pytest.approx(first, abs=1e-6)
    assert (report.counts.damaged, report.counts.malformed) == (0, 0)
    assert calls[2].time == (None if case == "year 10000" else calls[0].time)


UNUSED = {
    "a number with s, m, h or d": pa.array([1, 2, 3], pa.duration("ns")),
    "time of day": pa.array([1, 2, 3], pa.time64("ns")),
    "date": pa.array([1, 2, 2**31 - 1], pa.date32()),
    "structure": pa.array([{"at": FINE}] * 3, pa.struct([("at", pa.timestamp("ns"))])),
    "list": pa.array([[1, 2**31 - 1], [], None], pa.list_(pa.date32())),
    "dictionary": pa.array([FINE] * 3, pa.timestamp("ns")).dictionary_encode(),
}


@pytest.mark.parametrize("case", UNUSED)
def test_unconvertible_cells_of_unused_columns_are_ignored(tmp_path: Path, case: str) -> None:
    """A cell without a Python value in an unused column ended the file."""
    path = write_table(tmp_path / "a.parquet", {"response": ["a", "b", "c"], "other": UNUSED[case]})
    report = ReadReport()
    assert [call.response for call in read_all(path, report)] == ["a", "b", "c"], report.describe()
    assert (report.counts.damaged, report.counts.malformed) == (0, 0)


def test_an_unconvertible_response_is_one_malformed_row(tmp_path: Path) -> None:
    """Only the row of the cell is lost."""
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("day", pa.date32())]))
    turns = [[{"role": "assistant", "content": "a", "day": day}] for day in (1, 2**31 - 1)]
    path = write_table(tmp_path / "a.parquet", {"messages": pa.array(turns, kind)})
    assert [call.response for call in read_all(path)] == ["a", "a"]
    path = write_table(tmp_path / "b.parquet", {"response": pa.array([1, 2**31 - 1], pa.date32())})
    report = ReadReport()
    assert read_all(path, report) == []
    assert (report.counts.damaged, report.counts.malformed) == (0, 2)


@pytest.mark.parametrize("keep", [4, 100, -100, -1])
def test_a_truncated_table(tmp_path: Path, keep: int) -> None:
    path = write_table(tmp_path / "a.parquet", {"response": [f"a{n}" for n in range(5000)]})
    path.write_bytes(path.read_bytes()[:keep])
    report = ReadReport()
    assert read_all(path, report) == []
    assert report.counts.damaged == 1
    with pytest.raises(InvalidInputError, match=r"a\.parquet"):
        read_all(path, strict=True)


def test_a_page_that_is_corrupt_ends_the_table(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", {"response": [f"answer {n}" for n in range(5000)]}, rows=500)
    data = bytearray(path.read_bytes())
    at = pq.ParquetFile(path).metadata.row_group(5).column(0).dictionary_page_offset
    data[at : at + 200] = b"\xff" * 200
    path.write_bytes(data)
    report = ReadReport()
    calls = read_all(path, report)
    assert [call.response for call in calls] == [f"answer {n}" for n in range(len(calls))]
    assert 2000 <= len(calls) <= 2500
    assert report.counts.damaged == 1


def test_a_file_that_is_not_parquet(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.parquet", [{"response": "r"}])
    report = ReadReport()
    assert read_all(path, report) == []
    assert report.counts.damaged == 1
