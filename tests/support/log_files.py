"""Small made-up logs for tests of the readers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import zstandard
from suffixsvc_caches.logs import LogCall, LogTally, ReadOptions, find_logs, read_calls


def write_lines(path: Path, records: Iterable[Any]) -> Path:
    """JSON lines, compressed as the name says. Records that are bytes are lines as they are."""
    lines = [record if isinstance(record, bytes) else json.dumps(record).encode() for record in records]
    return write_packed(path, b"".join(line + b"\n" for line in lines))


def write_packed(path: Path, data: bytes) -> Path:
    """Bytes, compressed as the name says."""
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = zstandard.ZstdCompressor().compress(data)
    path.write_bytes(data)
    return path


def read_all(path: Path, tally: LogTally | None = None, **options: Any) -> list[LogCall]:
    """The calls of all logs in a path."""
    read = ReadOptions.parse(**options)
    tally = tally or LogTally()
    return [call for file in find_logs([path], read) for call in read_calls(file, read, tally)]


def read_one(path: Path, record: Any, **options: Any) -> LogCall:
    """The only call of a log of one record."""
    tally = LogTally()
    calls = read_all(write_lines(path / "one.jsonl", [record]), tally, **options)
    assert len(calls) == 1, tally.describe()
    return calls[0]


def reasons(path: Path, **options: Any) -> tuple[list[Any], LogTally]:
    """The responses of all logs in a path, and what was told of the rest."""
    tally = LogTally()
    return [call.response for call in read_all(path, tally, **options)], tally
