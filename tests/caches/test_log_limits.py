"""Logs that are made to fill the memory: what is too large is counted and named, and what is beside it is
read.

A Parquet file of 824 bytes took 260 MB: one entry of a dictionary stood for each of its cells, and 256 rows
were made at a time. Half a megabyte of tokenizer.json.gz took 1 GB. JSON with 500 to 900 levels of lists
inside each other and an escaped surrogate ended a build with a RecursionError.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
import random
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from suffixsvc_caches.logs import LogTally, ReadOptions, find_logs, read_calls
from suffixsvc_caches.logs.documents import read_documents
from suffixsvc_caches.logs.json_text import parse_json
from suffixsvc_caches.logs.parquet_pages import read_footer, read_pages
from suffixsvc_caches.logs.sources import Damaged
from suffixsvc_caches.logs.tables import read_rows
from suffixsvc_client.text import TextCodec
from support.log_files import read_all, reasons

from suffixsvc.errors import InvalidConfigError, InvalidInputError

MB = 1 << 20
PEAK = """
import resource, sys
from pathlib import Path
from suffixsvc_caches.logs import LogTally, ReadOptions, find_logs, read_calls
import pyarrow.parquet
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
before, tally, calls = peak(), LogTally(), 0
options = ReadOptions.parse()
for file in find_logs([Path(sys.argv[1])], options):
    for call in read_calls(file, options, tally):
        calls += 1
        del call
print(peak() - before, calls, tally.counts.malformed, tally.counts.damaged)
"""


def peak(path: Path) -> list[int]:
    """Bytes that reading a log takes at most in a process of its own; its calls, malformed rows, damaged
    files."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True, timeout=600
    )
    return [int(word) for word in done.stdout.split()]


def repeated(text: str, rows: int) -> pa.Array:
    """A column whose dictionary has one entry, which each cell is."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))


def lists(inside: pa.Array, ends: list[int]) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), inside)


def write(path: Path, columns: dict[str, pa.Array], **settings: Any) -> Path:
    pq.write_table(pa.table(columns), path, compression="zstd", **settings)
    return path


# -------------------------------------------------------------------------------------------------------
# Parquet


def test_cells_that_share_a_giant_text_are_made_one_at_a_time(tmp_path: Path) -> None:
    """The reproduction: 64 rows of 16 MB in a file of 2 KB were 64 times 16 MB at once."""
    path = write(tmp_path / "a.parquet", {"response": repeated("a" * (16 * MB), 64)})
    assert path.stat().st_size < 20_000
    taken, calls, malformed, _ = peak(path)
    assert (calls, malformed) == (64, 0)
    assert taken < 250 * MB


def test_rows_beyond_the_limit_are_left_out_and_named(tmp_path: Path) -> None:
    rows = ["short", "x" * 5000, "brief", "y" * 6000]
    path = write(tmp_path / "a.parquet", {"prompt": pa.array(["p"] * 4), "response": pa.array(rows)})
    responses, tally = reasons(path, max_line_bytes=4000)
    assert responses == ["short", "brief"]
    assert (tally.counts.malformed, tally.counts.damaged) == (2, 0)
    assert [fault.place for fault in tally.faults] == ["row 2", "row 4"]
    assert "too long" in tally.faults[0].reason
    assert "column response" in tally.faults[0].reason
    with pytest.raises(InvalidInputError, match=r"a\.parquet:2: the row is too long"):
        read_all(path, max_line_bytes=4000, strict=True)


def test_a_page_beyond_the_limit_costs_its_row_group_and_nothing_else(tmp_path: Path) -> None:
    """A page of 300 MB is not decompressed to find out that it is too large: its header says so."""
    path = tmp_path / "a.parquet"
    schema = pa.schema([("response", pa.string())])
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        writer.write_table(pa.table({"response": ["a", "b"]}))
        writer.write_table(pa.table({"response": ["c" * (150 * MB)] * 2}))
        writer.write_table(pa.table({"response": ["d"]}))
    taken, calls, malformed, damaged = peak(path)
    assert (calls, malformed, damaged) == (3, 2, 0)
    assert taken < 60 * MB
    responses, tally = reasons(path)
    assert responses == ["a", "b", "d"]
    [fault] = tally.faults
    assert fault.place == "row 3"
    assert "rows 3 to 4 are left out: a page of column response is too large" in fault.reason
    assert "134,217,728" in fault.reason


def test_a_list_of_a_million_giant_texts_is_a_row_that_is_too_long(tmp_path: Path) -> None:
    """A terabyte that a kilobyte stands for: a million entries of a list, each the same text of a
    megabyte."""
    count = 1_000_000
    inside = repeated("a" * MB, count)
    messages = pa.StructArray.from_arrays([inside], ["content"])
    path = write(
        tmp_path / "a.parquet",
        {"response": pa.array(["first", "second"]), "messages": lists(messages, [0, count, count])},
    )
    assert path.stat().st_size < 100_000
    taken, calls, malformed, damaged = peak(path)
    assert (calls, malformed, damaged) == (1, 1, 0)
    assert taken < 250 * MB


def test_a_list_without_end_of_numbers_is_refused_by_its_number_of_values(tmp_path: Path) -> None:
    """Equal numbers take no bytes at all in a page, only a count."""
    count = 20_000_000
    ids = lists(pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(bytes(4 * count))]), [0, count])
    path = write(tmp_path / "a.parquet", {"response": pa.array(["x"]), "ids": ids}, data_page_size=1 << 30)
    assert path.stat().st_size < 1_000_000
    taken, calls, malformed, _ = peak(path)
    assert (calls, malformed) == (0, 1)
    assert taken < 250 * MB


@pytest.mark.parametrize("page", [1 << 10, 1 << 16, 1 << 20])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_what_is_within_the_limits_comes_back(tmp_path: Path, page: int, version: str) -> None:
    """All kinds of columns, pages and batches, against what went in."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    def text() -> str:
        return rng.choice(["", "same", "b" * rng.randrange(20_000), "é漢" * rng.randrange(50)])

    rows: list[dict[str, Any]] = [
        {
            "response": text(),
            "prompt": rng.choice([None, text()]),
            "messages": [{"role": "user", "content": text()} for _ in range(rng.randrange(4))],
            "ids": rng.choice([None, [rng.randrange(1000) for _ in range(rng.randrange(300))]]),
            "more": {"score": rng.random(), "tags": [text() for _ in range(rng.randrange(3))]},
            "flag": rng.choice([None, True, False]),
        }
        for _ in range(700)
    ]
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.Table.from_pylist(rows),
        path,
        data_page_size=page,
        data_page_version=version,
        row_group_size=rng.choice([100, 333, 1000]),
        use_dictionary=rng.choice([True, False, ["response"]]),
        compression=rng.choice(["snappy", "zstd", "none"]),
    )
    limits = {"max_row_bytes": 1 << 16, "max_page_bytes": rng.choice([1 << 22, 1 << 27])}
    found = list(read_rows(path, **limits))
    assert [number for number, _ in found] == list(range(1, 701))
    kept = 0
    for (_, record), row in zip(found, rows, strict=True):
        if isinstance(record, InvalidInputError):
            assert len(json.dumps(row, ensure_ascii=False).encode()) > 1 << 14
            continue
        kept += 1
        plain = {
            name: value.tolist() if hasattr(value, "tolist") else value for name, value in record.items()
        }
        assert plain == row
    assert kept > 350


def test_texts_that_go_on_from_each_other(tmp_path: Path) -> None:
    """DELTA_BYTE_ARRAY: each cell may repeat the one before for next to nothing."""
    rows = 300
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"response": ["a" * MB] * rows}),
        path,
        use_dictionary=False,
        column_encoding={"response": "DELTA_BYTE_ARRAY"},
        compression="zstd",
    )
    assert path.stat().st_size < 100_000
    taken, calls, malformed, damaged = peak(path)
    assert (calls, malformed, damaged) == (rows, 0, 0)
    assert taken < 250 * MB


def with_footer(path: Path, footer: bytes) -> Path:
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return path


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def thrift_list(count: int, element: bytes) -> bytes:
    """A list of equal structures, in Thrift's compact protocol."""
    return b"\xfc" + varint(count) + element * count


#: the schema of a footer: a root, one column "response"
SCHEMA = b"\x29\x2c\x48\x04root\x15\x02\x00\x15\x0c\x38\x08response\x00"


@pytest.mark.parametrize(
    ("element", "field"),
    [(b"\x00", b"\x29"), (b"\x16\x02\x00", b"\x29"), (b"\x00", b"\x59")],
    ids=["row groups", "row groups with a number", "a field that nobody reads"],
)
def test_a_footer_of_empty_structures_takes_no_more_than_what_is_kept_of_it(
    tmp_path: Path, element: bytes, field: bytes
) -> None:
    """Only bytes were counted: an empty structure has one of them and took 72 in memory, so that the largest
    footer that was read could take 4.6 GB."""
    path = with_footer(tmp_path / "a.parquet", SCHEMA + field + thrift_list(2_500_000, element) + b"\x00")
    taken, calls, malformed, damaged = peak(path)
    assert (calls, malformed, damaged) == (0, 0, 1)
    assert taken < 80 * MB


def test_a_page_header_of_more_than_a_few_kilobytes_is_damaged(tmp_path: Path) -> None:
    """A header of a page was read up to 16 MiB, and any number of column chunks may point to the same."""
    path = write(tmp_path / "a.parquet", {"response": pa.array(["some text"] * 50)})
    with path.open("rb") as file:
        [(_, [chunk])] = read_footer(file)
    # pages of no cells would have no end either
    empty = b"\x15\x04\x15\x00\x15\x00"  # a dictionary's header: type, bytes, compressed bytes
    for size, fits in ((100, True), (5000, False)):
        header = empty + b"\x69" + thrift_list(size, b"\x00") + b"\x00"
        pages = io.BytesIO(header)
        found = read_pages(pages, replace(chunk, start=0, packed=len(header)))
        if fits:
            assert [page.dictionary for page in found] == [True]
        else:
            with pytest.raises(Damaged, match="more than 4,096 bytes"):
                list(found)
    statistics = (
        b"\x15\x00\x15\x00\x15\x00\x2c\x15\x02\x5c\x18" + varint(5 * MB) + bytes(5 * MB) + b"\x00\x00\x00"
    )
    [page] = read_pages(io.BytesIO(statistics), replace(chunk, start=0, packed=len(statistics), cells=1))
    assert page.values == 1, "texts of statistics are passed over, however long they are"


def test_names_of_columns_that_repeat_long_names_above_them_are_refused(tmp_path: Path) -> None:
    """A column's path has the names of all that it is in: a long one above many columns was a copy
    for each."""
    name = b"n" * (1 * MB)
    columns = 100_000
    group = b"\x48" + varint(len(name)) + name + b"\x15" + varint(2 * columns) + b"\x00"
    schema = (
        b"\x29\xfc" + varint(columns + 2) + b"\x48\x04root\x15\x02\x00" + group + b"\x48\x01a\x00" * columns
    )
    path = with_footer(tmp_path / "a.parquet", b"\x15\x02\x19" + schema[1:] + b"\x29\x0c\x00")
    taken, _, _, damaged = peak(path)
    assert damaged == 1
    assert taken < 200 * MB


def test_page_headers_of_anything_end(tmp_path: Path) -> None:
    """Whatever the bytes are, the headers come to an end or are damaged; nothing else is raised."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    path = write(tmp_path / "a.parquet", {"response": pa.array(["some text"] * 50)})
    whole = path.read_bytes()
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(1, 20)):
            damaged[rng.randrange(4, len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        tally = LogTally()
        options = ReadOptions()
        for file in find_logs([path], options):
            list(read_calls(file, options, tally))


# ----------------------------------------------------------------------------------------------------------
# JSON


DEEP = [130, 500, 900, 2000, 100_000]


@pytest.mark.parametrize("depth", DEEP)
def test_json_that_nests_deeply_is_a_record_that_cannot_be_read(tmp_path: Path, depth: int) -> None:
    """Between 500 and 900 levels a RecursionError ended the whole build, from where the file was only looked
    at."""
    nested = '{"response": "caf\\u00e9 \\ud800", "z": ' + "[" * depth + '"]{"' + "]" * depth + "}"
    good = '{"response": "good"}'
    lines = tmp_path / "a.jsonl"
    lines.write_text(f"{nested}\n{good}\n{nested}\n{good}\n")
    document = tmp_path / "b.json"
    document.write_text(f"[\n{nested},\n{good},\n{nested}, {good}]")
    for path, unit in ((lines, "line"), (document, "record")):
        responses, tally = reasons(path)
        assert responses == ["good", "good"]
        assert (tally.counts.malformed, tally.counts.damaged) == (2, 0)
        assert [fault.place for fault in tally.faults] == [f"{unit} 1", f"{unit} 3"]
        assert "nests too deeply" in tally.faults[0].reason
        assert tally.faults[0].path == path
        with pytest.raises(InvalidInputError, match="nests too deeply"):
            read_all(path, strict=True)


def test_what_nests_within_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"response": "cut \\ud83d", "z": ' + "[" * 200 + "]" * 200 + "}]")
    assert reasons(path)[1].counts.malformed == 1
    assert [call.response for call in read_all(path, max_depth=201)] == ["cut \ufffd"]
    assert reasons(path, max_depth=200)[0] == []


def test_a_deep_cell_of_a_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('response,messages\na,"' + "[" * 300 + "]" * 300 + '"\nb,\n')
    responses, tally = reasons(path)
    assert responses == ["b"]
    assert [(fault.place, fault.reason[:16]) for fault in tally.faults] == [("line 2", "column messages:")]


def test_the_depth_of_values_is_counted_exactly() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(300):
        depth = rng.randrange(1, 40)
        value: Any = rng.choice([1, "[[[{{{", None])
        for _ in range(depth):
            value = rng.choice([{"a": 1, "b": value}, [value, "]"], {"c": value}, [1, [], value]])
        text = json.dumps(value)
        assert parse_json(text, depth + 1) == value, (
            "an empty list beside the innermost may be one level more"
        )
        with pytest.raises(InvalidInputError, match="nests too deeply"):
            parse_json(text, depth - 1)


def test_a_deep_value_is_passed_over_however_the_text_is_cut() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    deep = "[" * 3000 + '"a \\" ] \\\\"' + "]" * 3000
    text = f'[{{"a": 1}}, {{"b": {deep}}}, {{"c": "]"}}]'.encode()
    for _ in range(30):
        cuts = sorted(rng.randrange(len(text)) for _ in range(rng.randrange(20)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        first, second, third = read_documents(pieces, 1 << 20)
        assert (first, third) == ((1, {"a": 1}), (3, {"c": "]"}))
        assert isinstance(second[1], InvalidInputError)
    with pytest.raises(Damaged, match="nested too deeply behind record 1"):
        list(read_documents([b"[1," + b"[" * 100_000], 1000))


@pytest.mark.parametrize(("name", "value"), [("max_depth", 0), ("max_depth", 257), ("max_page_bytes", 0)])
def test_limits_that_are_none_are_refused(name: str, value: int) -> None:
    with pytest.raises(InvalidConfigError, match=name):
        ReadOptions.parse(**{name: value})


# ----------------------------------------------------------------------------------------------------
# tokenizers


def test_a_tokenizer_that_is_too_large_is_refused_while_it_is_decompressed(tmp_path: Path) -> None:
    """Half a megabyte of gzip became a gigabyte of spaces before anything looked at it."""
    path = tmp_path / "tokenizer.json.gz"
    with gzip.open(path, "wb", 1) as file:
        for _ in range(512):
            file.write(b" " * MB)
    code = f"""
import resource
from suffixsvc_client.text import TextCodec
from suffixsvc.errors import InvalidConfigError
import tokenizers
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
before = peak()
try:
    TextCodec.load({str(path)!r})
except InvalidConfigError as error:
    print(peak() - before, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    taken, _, said = done.stdout.partition(" ")
    assert int(taken) < 300 * MB
    assert (
        "tokenizer.json.gz is too large for a tokenizer; expected a tokenizer.json of at most 134,217,728"
        in said
    )
    plain = tmp_path / "tokenizer.json"
    plain.write_bytes(b" " * 1001)
    with pytest.raises(InvalidConfigError, match="too large"):
        TextCodec.load(plain, max_bytes=1000)
    with pytest.raises(InvalidConfigError, match="cannot be read as a tokenizer"):
        TextCodec.load(plain, max_bytes=1001)


class Record(dict[str, Any]):
    """A record that can be referred to weakly."""


@pytest.mark.parametrize(
    ("name", "text", "maker"),
    [
        ("a.jsonl", '{"response": "r"}\n' * 3, "lines.parse_json"),
        ("a.json", '[{"response": "r"}, {"response": "r"}, {"response": "r"}]', "documents._checked"),
        ("a.csv", "response\nr\nr\nr\n", "csv_rows._record"),
    ],
)
def test_one_record_is_held_at_a_time(
    name: str, text: str, maker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record may take many times the bytes of its line, which --memory does not count. Readers used to
    hold it until the next one was made, so that two in a row took twice as much."""
    made: list[weakref.ref[Record]] = []
    held: list[int] = []
    module, _, function = maker.partition(".")
    target = importlib.import_module(f"suffixsvc_caches.logs.{module}")
    original = getattr(target, function)

    def make(*args: Any) -> Record:
        record = Record(original(*args))
        held.append(sum(ref() is not None for ref in made))
        made.append(weakref.ref(record))
        return record

    (tmp_path / name).write_text(text)
    options = ReadOptions(response_field="response")
    files = find_logs([tmp_path / name], options)
    monkeypatch.setattr(target, function, make)
    assert [call.response for call in read_calls(files[0], options, LogTally())] == ["r"] * 3
    assert held == [0, 0, 0]
