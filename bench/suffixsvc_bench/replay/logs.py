"""Reading recorded logs: JSON lines, plain or .gz, one model call a line.

A line holds ``response_token_ids`` (and ``prompt_token_ids``), as our own recordings do, or the texts
``response`` and ``prompt``, which need a tokenizer. ``agent`` and ``session_id`` are optional.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from suffixsvc.errors import InvalidInputError
from suffixsvc.types import TokenArray
from suffixsvc.values import as_token_array

__all__ = ["Call", "read_calls"]

Encode = Callable[[str], TokenArray]


@dataclass(frozen=True, slots=True)
class Call:
    """One model call: int32[n] prompt and int32[m] response, m >= 1."""

    agent: str
    session: str
    prompt: TokenArray
    response: TokenArray


def read_calls(path: Path, encode: Encode | None) -> Iterator[Call]:
    """The calls of a log, in order; calls without a response are left out.

    Raises:
        InvalidInputError: the file is missing, a line is not a call, or texts came without ``encode``.
    """
    number = 0
    try:
        with _open(path) as lines:
            for line in lines:
                number += 1
                if not line.strip():
                    continue
                call = _call(_record(line), encode)
                if len(call.response):
                    yield call
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{path}, line {number}: {error.message}",
            expected=error.expected,
            got=error.got,
            remedy=error.remedy,
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
            remedy="Give a tokenizer.json (plain or .gz) with --tokenizer.",
        )
    return encode(text)
