"""Truncated, corrupt and random logs: everything before the damage is read, the rest is reported."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs import LogFormat, ReadOptions, ReadReport, find_logs, read_calls
from suffixsvc_caches.logs.formats.documents import read_documents
from suffixsvc_caches.logs.parsers import open_parser
from suffixsvc_caches.logs.report import LogCounts
from support.log_files import read_all, reasons, write_lines, write_packed

GOOD = {"response": "good"}


# ------------------------------------------------------------------------------------------- damaged files


class Packed(NamedTuple):
    """A compressed log: its name, its bytes and the responses of the undamaged file."""

    name: str
    data: bytes
    responses: list[Any]


def records(count: int) -> Iterator[dict[str, Any]]:
    rng = random.Random(5)
    for number in range(count):
        yield {"response": f"{number} " + "".join(rng.choices("abcdefgh", k=200))}


@pytest.fixture(scope="module", params=["a.jsonl.gz", "a.jsonl.zst"])
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    path = write_lines(tmp_path_factory.mktemp("packed") / request.param, records(20_000))
    return Packed(path.name, path.read_bytes(), [call.response for call in read_all(path)])


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_truncated_file_is_read_up_to_its_end(tmp_path: Path, packed: Packed, kept: float) -> None:
    path, data, whole = tmp_path / packed.name, packed.data, packed.responses
    path.write_bytes(data[: int(len(data) * kept)])
    responses, report = reasons(path)
    assert responses == whole[: len(responses)]
    # gzip and zstd return whole blocks
    assert len(responses) > (kept - 0.08) * len(whole)
    assert (report.counts.damaged, report.counts.malformed) == (1, 0)
    assert "cannot be read from here on" in report.faults[0].reason
    with pytest.raises(InvalidInputError, match=r"a\.jsonl"):
        read_all(path, strict=True)


def test_a_corrupt_file_is_read_up_to_the_damage(tmp_path: Path, packed: Packed) -> None:
    path, data, whole = tmp_path / packed.name, bytearray(packed.data), packed.responses
    middle = len(data) // 2
    data[middle : middle + 2000] = random.Random(6).randbytes(2000)
    path.write_bytes(data)
    responses, report = reasons(path)
    # deflate has no inner checksums: some lines after the fault may be garbage
    right = sum(1 for mine, theirs in zip(responses, whole, strict=False) if mine == theirs)
    assert right > 0.3 * len(whole)
    assert report.counts.damaged == 1


def test_concatenated_members_and_frames_are_one_file(tmp_path: Path) -> None:
    line = json.dumps(GOOD).encode() + b"\n"
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(line) * 3)
    (tmp_path / "b.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(line) * 3)
    responses, report = reasons(tmp_path)
    assert (len(responses), report.counts.damaged) == (6, 0)


def test_empty_files(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.json", "c.jsonl.gz", "d.jsonl.zst", "e.txt"):
        write_packed(tmp_path / name, b"")
        assert read_all(tmp_path / name) == []
    report = ReadReport()
    assert read_all(tmp_path, report) == []
    assert report.counts.files == 4
    assert report.counts.malformed == report.counts.damaged == 0
    # an empty file is not a gzip file, but it is not damaged either
    (tmp_path / "c.jsonl.gz").write_bytes(b"")
    assert reasons(tmp_path / "c.jsonl.gz")[1].counts.damaged == 0


def test_a_file_that_disappears(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [GOOD])
    options = ReadOptions()
    (file,) = find_logs([path], options)
    path.unlink()
    report = ReadReport()
    assert list(read_calls(file, options, report)) == []
    assert report.counts == LogCounts(files=1, damaged=1)
    assert "No such file" in report.faults[0].reason
    with pytest.raises(InvalidInputError, match="No such file"):
        list(read_calls(file, ReadOptions(strict=True), ReadReport()))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('[{"response": "a"}, {"response": "b"}, {"response": ', 2),
        ('[{"response": "a"}, {"response": "b" "c"}, {"response": "d"}]', 1),
        ('[{"response": "a"}, {"response": "b"}', 2),
        ('{\n"response": "a"\n}\n{\n"response"', 1),
        ("[", 0),
        ("[]", 0),
    ],
)
def test_a_damaged_array_is_read_up_to_the_damage(tmp_path: Path, text: str, count: int) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    responses, report = reasons(path)
    assert len(responses) == count
    assert report.counts.damaged == (0 if text == "[]" else 1)


def test_an_array_can_have_the_same_values_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(
        b'[{"response": "a", "score": NaN}, 3, {"response": "\xff"}, {"response": "cut \\ud83d"}, null,'
        b' {"response": "\xe6\xbc\xa2"}]\n'
    )
    responses, report = reasons(path)
    assert responses == ["a", "cut \ufffd", "漢"]
    assert [fault.place for fault in report.faults] == ["record 2", "record 3", "record 5"]


@given(
    values=st.lists(st.recursive(st.integers() | st.text(), st.lists, max_leaves=4), max_size=6),
    data=st.data(),
)
def test_documents_are_those_of_the_whole(values: list[Any], data: st.DataObject) -> None:
    """With any whitespace and any division into pieces."""
    indent = data.draw(st.sampled_from([None, 1]))
    text = json.dumps([{"x": value} for value in values], indent=indent, ensure_ascii=False).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert [value["x"] for _, value in read_documents(pieces, 1 << 20)] == values


# ----------------------------------------------------------------------------------------------- anything


KEYS = """
    messages choices message content role tool_calls function name arguments response request output input
    body type text prompt observations data traces delta error item reasoning_content refusal status startTime
    created response_token_ids prompt_token_ids metadata model instructions custom conversations from value
"""
WORDS = "assistant user tool message function_call reasoning GENERATION gpt {} [{"
NAMES = st.sampled_from(KEYS.split())
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(WORDS.split())
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=25,
)


@settings(deadline=None)
@given(record=st.dictionaries(NAMES, VALUES, max_size=6))
def test_no_record_breaks_a_reader(record: dict[str, Any]) -> None:
    """Any record gives calls, or one error that is counted."""
    for form in LogFormat:
        if form in (LogFormat.AUTO, LogFormat.TEXT):
            continue
        try:
            for raw in open_parser(form, ReadOptions()).calls(record):
                len(raw.response())
                len(raw.prompt())
        except InvalidInputError:
            pass


@settings(deadline=None)
@given(
    data=st.binary(max_size=300),
    name=st.sampled_from(
        ["a.jsonl", "a.json", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.csv", "a.tsv.gz", "a"]
    ),
)
def test_no_file_breaks_a_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str) -> None:
    path = tmp_path_factory.mktemp("any") / name
    path.write_bytes(data)
    reasons(path)
    path.write_bytes(
        {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd", ".parquet": b"PAR1"}.get(path.suffix, b"[") + data
    )
    reasons(path)
