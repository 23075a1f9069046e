"""Streaming reader of lines of bounded size, and of the JSON in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs.base.json_text import parse_json
from suffixsvc_caches.logs.base.options import MAX_DEPTH


def too_long(what: str, limit: int, got: object = None) -> InvalidInputError:
    """Return the error for a unit of more than ``limit`` bytes, such as a line."""
    message = f"the {what} must have at most {limit:,} bytes"
    return InvalidInputError(message, got=got, remedy="Raise max_line_bytes.")


def read_lines(pieces: Iterable[bytes], limit: int, max_depth: int = MAX_DEPTH) -> Iterator[tuple[int, Any]]:
    """Yield (number from 1, value) of each line of JSON that is not blank.

    A line that is too long, malformed or nested too deeply is yielded as InvalidInputError.
    """
    for number, line in split_lines(pieces, limit):
        if line is None:
            yield number, too_long("line", limit)
        elif line and not line.isspace():
            try:
                value = parse_json(line, max_depth)
            except InvalidInputError as error:
                value = error
            yield number, value
            del value  # before the next one is decoded, so that one record at a time is in memory


def split_lines(pieces: Iterable[bytes], limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield (number from 1, line without its newline) of each line; None if it has more than ``limit`` bytes.

    If ``pieces`` raises, all complete lines before have been yielded.
    """
    number = 1
    rest: list[bytes] = []  # pieces of the current line
    size = 0
    for piece in pieces:
        first, *others = piece.split(b"\n")
        size += len(first)
        if size <= limit:
            rest.append(first)
        else:
            rest.clear()
        if not others:
            continue
        yield number, b"".join(rest) if size <= limit else None
        for line in others[:-1]:
            number += 1
            yield number, line if len(line) <= limit else None
        number += 1
        size = len(others[-1])
        rest = [others[-1]] if size <= limit else []
    if size:
        yield number, b"".join(rest) if size <= limit else None
