"""Reading recorded logs: JSON lines, plain or .gz, one model call a line.

A line holds ``response_token_ids`` (and ``prompt_token_ids``), as our own recordings do, or the texts
``response`` and ``prompt``, which need a tokenizer. ``agent`` and ``session_id`` are optional. Texts beside
token ids are kept for telling what kind of text it is.
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

__all__ = ["Call", "Encode", "count_agents", "find_logs", "read_calls"]

Encode = Callable[[str], TokenArray]

#: what a directory is searched for
_PATTERNS: Final = ("*.jsonl", "*.jsonl.gz")
#: no more of a line is held in memory: the longest prompts of today are a few MB
_MAX_LINE_CHARACTERS: Final = 1 << 26


@dataclass(frozen=True, slots=True)
class Call:
    """One model call: int32[n] prompt and int32[m] response, m >= 1."""

    agent: str
    session: str
    prompt: TokenArray
    response: TokenArray
    text: str = ""  #: the response as text, where the log has it


def find_logs(paths: Sequence[Path]) -> list[Path]:
    """The logs named, directories replaced by the logs in them, sorted by name.

    Raises:
        InvalidInputError: nothing is there, or a directory without a log.
    """
    logs: list[Path] = []
    for path in paths:
        if not path.is_dir():
            logs.append(path)
            continue
        inside = sorted({log for pattern in _PATTERNS for log in path.glob(pattern) if log.is_file()})
        if not inside:
            raise InvalidInputError(
                f"no log in the directory {path}", expected=f"files {' or '.join(_PATTERNS)}", got="none"
            )
        logs += inside
    for log in logs:
        if not log.is_file():
            raise InvalidInputError(f"cannot read the log {log}", expected="a file", got="no such file")
    return logs


def count_agents(path: Path) -> Counter[str]:
    """Calls of a log by agent; no text is encoded. InvalidInputError as in :func:`read_calls`."""
    return Counter(str(record.get("agent", "")) for record in _records(path))


def read_calls(path: Path, encode: Encode | None, agents: Container[str] | None = None) -> Iterator[Call]:
    """The calls of a log, in order; calls without a response are left out.

    Args:
        encode: for logs that hold texts instead of token ids.
        agents: only their calls; None takes all. Others' texts are not encoded.

    Raises:
        InvalidInputError: the file is missing, a line is not a call, or texts came without ``encode``.
    """
    for record in _records(path):
        if agents is not None and str(record.get("agent", "")) not in agents:
            continue
        try:
            call = _call(record, encode)
        except InvalidInputError as error:
            raise _at(path, record[_LINE], error) from None
        if len(call.response):
            yield call


#: where a record notes the line it stood on
_LINE: Final = "\0line"


def _at(path: Path, number: int, error: InvalidInputError) -> InvalidInputError:
    return InvalidInputError(
        f"{path}, line {number}: {error.message}",
        expected=error.expected,
        got=error.got,
        remedy=error.remedy,
    )


def _records(path: Path) -> Iterator[dict[str, Any]]:
    number = 0
    try:
        with _open(path) as lines:
            while line := lines.readline(_MAX_LINE_CHARACTERS + 1):
                number += 1
                if not line.strip():
                    continue
                record = _record(line)
                record[_LINE] = number
                yield record
    except InvalidInputError as error:
        raise _at(path, number, error) from None
    except FileNotFoundError:
        raise InvalidInputError(
            f"the log {path} must exist", expected="JSON lines in UTF-8, plain or .gz", got="no such file"
        ) from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InvalidInputError(
            f"cannot read the log {path} (line {number})",
            expected="JSON lines in UTF-8, plain or .gz",
            got=str(error),
        ) from None


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _record(line: str) -> dict[str, Any]:
    if len(line) > _MAX_LINE_CHARACTERS:
        raise InvalidInputError(
            "the line is too long", expected=f"at most {_MAX_LINE_CHARACTERS:,} characters", got="more"
        )
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError("not JSON", expected="one JSON object a line", got=str(error)) from None
    if not isinstance(record, dict):
        raise InvalidInputError("not a call", expected="a JSON object", got=type(record).__name__)
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
            f"a call has no {field}",
            expected=f"a field {field}_token_ids or {field}",
            got=f"the fields {', '.join(sorted(record))[:200]}",
        )
    if encode is None:
        raise InvalidInputError(
            "the log holds texts, not token ids",
            expected=f"a field {field}_token_ids, or a tokenizer",
            remedy="Give the model's GGUF or tokenizer.json with --tokenizer.",
        )
    return encode(text)
