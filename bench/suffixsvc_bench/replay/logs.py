"""Reader of recorded logs: JSON lines, plain or .gz, one model call per line.

A line has ``response_token_ids`` (and ``prompt_token_ids``), as in our own recordings, or the texts
``response`` and ``prompt``, which need a tokenizer. ``agent`` and ``session_id`` are optional. Texts beside
token ids are used to classify the text.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np

from suffixsvc.errors import InvalidInputError
from suffixsvc.types import TokenArray
from suffixsvc.values import as_token_array
from suffixsvc_caches.errors import at_place

Encode = Callable[[str], TokenArray]

#: files of a directory that are logs
_PATTERNS: Final = ("*.jsonl", "*.jsonl.gz")
#: limit of a line; the longest prompts have a few MB
_MAX_LINE_CHARACTERS: Final = 1 << 26


@dataclass(frozen=True, slots=True)
class Call:
    """One model call: int32[n] prompt and int32[m] response, m >= 1."""

    agent: str
    session: str
    prompt: TokenArray
    response: TokenArray
    text: str = ""  #: the response as text, if the log has it


def find_logs(paths: Sequence[Path]) -> list[Path]:
    """The named logs, with directories replaced by their logs, sorted by name.

    Raises:
        InvalidInputError: a path does not exist, or a directory has no log.
    """
    logs: list[Path] = []
    for path in paths:
        if not path.is_dir():
            logs.append(path)
            continue
        inside = sorted({log for pattern in _PATTERNS for log in path.glob(pattern) if log.is_file()})
        if not inside:
            raise InvalidInputError(
                f"the directory {path} must contain logs", expected=f"files {' or '.join(_PATTERNS)}"
            )
        logs += inside
    for log in logs:
        if not log.is_file():
            raise InvalidInputError(f"the log {log} must exist", got="no such file")
    return logs


def count_agents(path: Path) -> Counter[str]:
    """Calls of a log by agent, without encoding texts. Raises as :func:`read_calls`."""
    return Counter(str(record.get("agent", "")) for _, record in _records(path))


def read_calls(path: Path, encode: Encode | None, agents: Container[str] | None = None) -> Iterator[Call]:
    """The calls of a log, in order; calls without a response are skipped.

    Args:
        encode: for logs with texts instead of token ids.
        agents: only their calls; None: all. Texts of other agents are not encoded.

    Raises:
        InvalidInputError: the file is missing, a line is not a call, or texts need ``encode``.
    """
    for number, record in _records(path):
        if agents is not None and str(record.get("agent", "")) not in agents:
            continue
        try:
            call = _call(record, encode)
        except InvalidInputError as error:
            raise at_place(f"{path}, line {number}", error) from None
        if len(call.response):
            yield call


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and records."""
    number = 0
    lines: TextIO
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8") as lines
        ):
            while line := lines.readline(_MAX_LINE_CHARACTERS + 1):
                number += 1
                if line.strip():
                    yield number, _record(line)
    except InvalidInputError as error:
        raise at_place(f"{path}, line {number}", error) from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        absent = isinstance(error, FileNotFoundError)
        raise InvalidInputError(
            f"the log {path} must {'exist' if absent else f'be readable (line {number})'}",
            expected="JSON lines in UTF-8, plain or .gz",
            got="no such file" if absent else str(error),
        ) from None


def _record(line: str) -> dict[str, Any]:
    if len(line) > _MAX_LINE_CHARACTERS:
        raise InvalidInputError(f"the line must have at most {_MAX_LINE_CHARACTERS:,} characters")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError("each line must be JSON", got=str(error)) from None
    if not isinstance(record, dict):
        raise InvalidInputError("each line must be a JSON object", got=type(record).__name__)
    return record


def _call(record: dict[str, Any], encode: Encode | None) -> Call:
    return Call(
        agent=str(record.get("agent", "")),
        session=str(record.get("session_id", "")),
        prompt=_tokens(record, "prompt", encode, default=np.empty(0, np.int32)),
        response=_tokens(record, "response", encode),
        text=text if isinstance(text := record.get("response"), str) else "",
    )


def _tokens(
    record: dict[str, Any], field: str, encode: Encode | None, default: TokenArray | None = None
) -> TokenArray:
    ids = record.get(f"{field}_token_ids")
    if ids is not None:
        return as_token_array(ids, f"{field}_token_ids")
    text = record.get(field)
    if text is None and default is not None:
        return default
    if not isinstance(text, str):
        raise InvalidInputError(
            f"a call must have a field {field}_token_ids or {field}",
            got=f"the fields {', '.join(sorted(record))[:200]}",
        )
    if encode is None:
        raise InvalidInputError(
            f"a call must have a field {field}_token_ids without a tokenizer",
            remedy="Give the model's GGUF or tokenizer.json with --tokenizer.",
        )
    return encode(text)
