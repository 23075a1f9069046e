"""Writers and readers of small logs for tests of the log readers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import zstandard

from suffixsvc_caches.logs import LogCall, ReadOptions, ReadReport, find_logs, read_calls


def write_lines(path: Path, records: Iterable[Any]) -> Path:
    """Write JSON lines, compressed by the file name's suffix. Records of type bytes are written unchanged."""
    lines = [record if isinstance(record, bytes) else json.dumps(record).encode() for record in records]
    return write_packed(path, b"".join(line + b"\n" for line in lines))


def write_packed(path: Path, data: bytes) -> Path:
    """Write bytes, compressed by the file name's suffix."""
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = zstandard.ZstdCompressor().compress(data)
    path.write_bytes(data)
    return path


def read_all(path: Path, report: ReadReport | None = None, **options: Any) -> list[LogCall]:
    """Read the calls of all logs in a path."""
    read = ReadOptions.parse(**options)
    report = report or ReadReport()
    return [call for file in find_logs([path], read) for call in read_calls(file, read, report)]


def read_one(path: Path, record: Any, **options: Any) -> LogCall:
    """Write a log of one record and read its only call."""
    report = ReadReport()
    calls = read_all(write_lines(path / "one.jsonl", [record]), report, **options)
    assert len(calls) == 1, report.describe()
    return calls[0]


def reasons(path: Path, **options: Any) -> tuple[list[Any], ReadReport]:
    """Read the responses of all logs in a path, and the report."""
    report = ReadReport()
    return [call.response for call in read_all(path, report, **options)], report
