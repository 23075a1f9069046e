"""Memory limits of the Parquet reader: pages, dictionaries, lists and metadata that expand to gigabytes.

A file of 824 bytes took 260 MB: each of its cells referred to one dictionary entry, and 256 rows were decoded
at a time.
"""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs import ReadOptions, ReadReport, find_logs, read_calls
from suffixsvc_caches.logs.base.sources import DamagedFile
from suffixsvc_caches.logs.parquet.pages import read_footer, read_pages
from suffixsvc_caches.logs.parquet.tables import read_rows
from support.log_files import read_all, reasons

MB = 1 << 20
PEAK = """
import resource, sys
from pathlib import Path
from suffixsvc_caches.logs import ReadReport, ReadOptions, find_logs, read_calls
import pyarrow.parquet
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
before, report, calls = peak(), ReadReport(), 0
options = ReadOptions.parse()
for file in find_logs([Path(sys.argv[1])], options):
    for call in read_calls(file, options, report):
        calls += 1
        del call
print(peak() - before, calls, report.counts.malformed, report.counts.damaged)
"""


def peak(path: Path) -> list[int]:
    """Peak memory in bytes of a process that reads a log; numbers of calls, malformed rows, damaged files."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True, timeout=600
    )
    return [int(word) for word in done.stdout.split()]


def repeated(text: str, rows: int) -> pa.Array:
    """A column whose cells all refer to the one entry of its dictionary."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))


def lists(inside: pa.Array, ends: list[int]) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), inside)


def write(path: Path, columns: dict[str, pa.Array], **settings: Any) -> Path:
    pq.write_table(pa.table(columns), path, compression="zstd", **settings)
    return path


def test_cells_that_share_a_giant_text_are_converted_one_at_a_time(tmp_path: Path) -> None:
    """64 rows of 16 MB in a file of 2 KB were converted at once, to 64 times 16 MB."""
    path = write(tmp_path / "a.parquet", {"response": repeated("a" * (16 * MB), 64)})
    assert path.stat().st_size < 20_000
    taken, calls, malformed, _ = peak(path)
    assert (calls, malformed) == (64, 0)
    assert taken < 250 * MB


def test_rows_beyond_the_limit_are_skipped_and_reported(tmp_path: Path) -> None:
    rows = ["short", "x" * 5000, "brief", "y" * 6000]
    path = write(tmp_path / "a.parquet", {"prompt": pa.array(["p"] * 4), "response": pa.array(rows)})
    responses, report = reasons(path, max_line_bytes=4000)
    assert responses == ["short", "brief"]
    assert (report.counts.malformed, report.counts.damaged) == (2, 0)
    assert [fault.place for fault in report.faults] == ["row 2", "row 4"]
    assert "must have at most" in report.faults[0].reason
    assert "column response" in report.faults[0].reason
    with pytest.raises(InvalidInputError, match=r"a\.parquet:2: the row must have at most"):
        read_all(path, max_line_bytes=4000, strict=True)


def test_a_page_beyond_the_limit_costs_its_row_group_and_nothing_else(tmp_path: Path) -> None:
    """The size of a page of 300 MB is read from its header; the page is not decompressed."""
    path = tmp_path / "a.parquet"
    schema = pa.schema([("response", pa.string())])
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        writer.write_table(pa.table({"response": ["a", "b"]}))
        writer.write_table(pa.table({"response": ["c" * (150 * MB)] * 2}))
        writer.write_table(pa.table({"response": ["d"]}))
    taken, calls, malformed, damaged = peak(path)
    assert (calls, malformed, damaged) == (3, 2, 0)
    assert taken < 60 * MB
    responses, report = reasons(path)
    assert responses == ["a", "b", "d"]
    [fault] = report.faults
    assert fault.place == "row 3"
    assert "rows 3 to 4 are skipped: a page of column response must have at most" in fault.reason
    assert "134,217,728" in fault.reason


def test_a_list_of_a_million_giant_texts_is_a_row_that_is_too_long(tmp_path: Path) -> None:
    """A kilobyte that expands to a terabyte: a list of a million references to a text of one megabyte."""
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


def test_a_huge_list_of_numbers_is_refused_by_its_number_of_values(tmp_path: Path) -> None:
    """Equal numbers take no bytes in a page, only a count."""
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
    """Random columns, pages and batches, compared with the rows that were written."""
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


def test_delta_encoded_texts(tmp_path: Path) -> None:
    """DELTA_BYTE_ARRAY: each cell can repeat the one before in a few bytes."""
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
    """A list of equal structs in Thrift's compact protocol."""
    return b"\xfc" + varint(count) + element * count


#: the schema of a footer: a root, one column "response"
SCHEMA = b"\x29\x2c\x48\x04root\x15\x02\x00\x15\x0c\x38\x08response\x00"


@pytest.mark.parametrize(
    ("element", "field"),
    [(b"\x00", b"\x29"), (b"\x16\x02\x00", b"\x29"), (b"\x00", b"\x59")],
    ids=["row groups", "row groups with a number", "an unknown field"],
)
def test_memory_of_a_footer_of_empty_structs_is_limited(tmp_path: Path, element: bytes, field: bytes) -> None:
    """Only bytes were limited: an empty struct has one byte in the file and took 72 in memory, so that the
    largest footer could take 4.6 GB."""
    path = with_footer(tmp_path / "a.parquet", SCHEMA + field + thrift_list(1_500_000, element) + b"\x00")
    taken, calls, malformed, damaged = peak(path)
    assert (calls, malformed, damaged) == (0, 0, 1)
    assert taken < 80 * MB


def test_a_page_header_of_more_than_a_few_kilobytes_is_damaged(tmp_path: Path) -> None:
    """A page header was read up to 16 MiB, and any number of column chunks can refer to the same one."""
    path = write(tmp_path / "a.parquet", {"response": pa.array(["some text"] * 50)})
    with path.open("rb") as file:
        [(_, [chunk])] = read_footer(file)
    # pages without cells do not advance the count of cells
    empty = b"\x15\x04\x15\x00\x15\x00"  # a dictionary's header: type, bytes, compressed bytes
    for size, fits in ((100, True), (5000, False)):
        header = empty + b"\x69" + thrift_list(size, b"\x00") + b"\x00"
        pages = io.BytesIO(header)
        found = read_pages(pages, chunk._replace(start=0, packed=len(header)))
        if fits:
            assert [page.dictionary for page in found] == [True]
        else:
            with pytest.raises(DamagedFile, match="more than 4,096 bytes"):
                list(found)
    statistics = (
        b"\x15\x00\x15\x00\x15\x00\x2c\x15\x02\x5c\x18" + varint(5 * MB) + bytes(5 * MB) + b"\x00\x00\x00"
    )
    [page] = read_pages(io.BytesIO(statistics), chunk._replace(start=0, packed=len(statistics), cells=1))
    assert page.values == 1, "texts of statistics are skipped, with any length"


def test_column_paths_that_repeat_long_names_are_refused(tmp_path: Path) -> None:
    """The path of a column has its ancestors' names: a long name above many columns was copied for each."""
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


def test_random_bytes_in_page_headers(tmp_path: Path) -> None:
    """With any bytes the headers end or are damaged; no other exception is raised."""
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
        report = ReadReport()
        options = ReadOptions()
        for file in find_logs([path], options):
            list(read_calls(file, options, report))
