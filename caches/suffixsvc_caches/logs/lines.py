"""Lines of a stream of bytes, none of which is ever held beyond a limit, and the JSON in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs.json_text import parse_json
from suffixsvc_caches.logs.options import MAX_DEPTH

__all__ = ["read_lines", "split_lines", "too_long"]


def too_long(what: str, limit: int) -> InvalidInputError:
    """The error for more than ``limit`` bytes."""
    return InvalidInputError(
        f"the {what} is too long", expected=f"at most {limit:,} bytes", remedy="Raise max_line_bytes."
    )


def read_lines(pieces: Iterable[bytes], limit: int, max_depth: int = MAX_DEPTH) -> Iterator[tuple[int, Any]]:
    """(number from 1, value) of each line of JSON that is not blank; a line that is too long, no JSON or
    nested too deeply is an InvalidInputError instead."""
    for number, line in split_lines(pieces, limit):
        if line is None:
            yield number, too_long("line", limit)
        elif line and not line.isspace():
            try:
                value = parse_json(line, max_depth)
            except InvalidInputError as error:
                value = error
            yield number, value
            del value  # before the next one is made: one record at a time


def split_lines(pieces: Iterable[bytes], limit: int) -> Iterator[tuple[int, bytes | None]]:
    """(number from 1, line without its newline) of each line; None stands for a line of more than ``limit``
    bytes. Where ``pieces`` raises, the lines before have been handed out; the unfinished one is not."""
    number = 1
    rest: list[bytes] = []  # the pieces of a line whose newline is still to come
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
