"""Limits of nesting and of memory: deeply nested JSON, large tokenizer files, one record in memory at a time.

Half a megabyte of tokenizer.json.gz took 1 GB. JSON with 500 to 900 nested lists and an escaped surrogate
ended a build with a RecursionError.
"""

from __future__ import annotations

import gzip
import importlib
import json
import random
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from suffixsvc.errors import InvalidConfigError, InvalidInputError
from suffixsvc_caches.logs import ReadOptions, ReadReport, find_logs, read_calls
from suffixsvc_caches.logs.base.json_text import parse_json
from suffixsvc_caches.logs.base.sources import DamagedFile
from suffixsvc_caches.logs.formats.documents import read_documents
from suffixsvc_client.text import TextCodec
from support.log_files import read_all, reasons

MB = 1 << 20


# ----------------------------------------------------------------------------------------------------------
# JSON


DEEP = [130, 500, 900, 2000, 100_000]


@pytest.mark.parametrize("depth", DEEP)
def test_json_that_nests_deeply_is_a_record_that_cannot_be_read(tmp_path: Path, depth: int) -> None:
    """With 500 to 900 levels the detection of the format raised RecursionError, which ended the build."""
    nested = '{"response": "caf\\u00e9 \\ud800", "z": ' + "[" * depth + '"]{"' + "]" * depth + "}"
    good = '{"response": "good"}'
    lines = tmp_path / "a.jsonl"
    lines.write_text(f"{nested}\n{good}\n{nested}\n{good}\n")
    document = tmp_path / "b.json"
    document.write_text(f"[\n{nested},\n{good},\n{nested}, {good}]")
    for path, unit in ((lines, "line"), (document, "record")):
        responses, report = reasons(path)
        assert responses == ["good", "good"]
        assert (report.counts.malformed, report.counts.damaged) == (2, 0)
        assert [fault.place for fault in report.faults] == [f"{unit} 1", f"{unit} 3"]
        assert "levels of lists and objects" in report.faults[0].reason
        assert report.faults[0].path == path
        with pytest.raises(InvalidInputError, match="levels of lists and objects"):
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
    responses, report = reasons(path)
    assert responses == ["b"]
    assert [(fault.place, fault.reason[:16]) for fault in report.faults] == [("line 2", "column messages:")]


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
        with pytest.raises(InvalidInputError, match="levels of lists and objects"):
            parse_json(text, depth - 1)


def test_a_deep_value_is_skipped_with_any_division_into_pieces() -> None:
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
    with pytest.raises(DamagedFile, match="nested too deeply after record 1"):
        list(read_documents([b"[1," + b"[" * 100_000], 1000))


@pytest.mark.parametrize(("name", "value"), [("max_depth", 0), ("max_depth", 257), ("max_page_bytes", 0)])
def test_limits_out_of_range_are_refused(name: str, value: int) -> None:
    with pytest.raises(InvalidConfigError, match=name):
        ReadOptions.parse(**{name: value})


# ----------------------------------------------------------------------------------------------------
# tokenizers


def test_a_tokenizer_that_is_too_large_is_refused_while_it_is_decompressed(tmp_path: Path) -> None:
    """Half a megabyte of gzip was decompressed to a gigabyte of spaces before the size was checked."""
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
    """A record that supports weak references."""


@pytest.mark.parametrize(
    ("name", "text", "maker"),
    [
        ("a.jsonl", '{"response": "r"}\n' * 3, "base.lines.parse_json"),
        ("a.json", '[{"response": "r"}, {"response": "r"}, {"response": "r"}]', "formats.documents._checked"),
        ("a.csv", "response\nr\nr\nr\n", "formats.csv_rows._record"),
    ],
)
def test_one_record_is_held_at_a_time(
    name: str, text: str, maker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record can take many times the bytes of its line, which --memory does not include. Readers retained
    it until the next one was decoded, which doubled the peak."""
    made: list[weakref.ref[Record]] = []
    held: list[int] = []
    module, _, function = maker.rpartition(".")
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
    assert [call.response for call in read_calls(files[0], options, ReadReport())] == ["r"] * 3
    assert held == [0, 0, 0]
