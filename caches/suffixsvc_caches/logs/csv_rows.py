"""CSV and TSV as streams of records: a header, then rows, quoted as in RFC 4180, none held beyond a limit.

    pieces of bytes -> rows, found by their quotes -> the csv module of the standard library -> cells by name

The csv module would hold a quoted cell that never ends until memory does, and cannot say where the row behind
one that is too long begins. So the rows are cut first: what is outside of quotes ends at a newline. Measured
on 19 MB, one thread of a busy two-core machine: 52 MB/s of text, where the bare csv module reads 58; 35 of
72 MB/s where the cells are JSON, each quote of which is doubled.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs.json_text import parse_json
from suffixsvc_caches.logs.lines import too_long
from suffixsvc_caches.logs.options import MAX_DEPTH
from suffixsvc_caches.logs.sources import Damaged

__all__ = ["read_csv", "split_rows"]

#: where two split a header into as many cells, the first
_DELIMITERS: Final = ("\t", ",", ";")
#: columns that are lists wherever logs have them
_LISTS: Final = ("messages", "conversations", "conversation", "choices")
_IDS: Final = "_token_ids"
#: The inside of a quoted cell, or its first few thousand quotes: what is repeated takes memory.
_QUOTED: Final = re.compile(rb'[^"]*(?:""[^"]*){0,4096}')
#: for the csv module, whose limit is the process's, 128 KiB where nobody says more; rows are bounded here
_LARGEST_CELL: Final = (1 << 31) - 1


def read_csv(pieces: Iterable[bytes], limit: int, max_depth: int = MAX_DEPTH) -> Iterator[tuple[int, Any]]:
    """(number of its first line, record) of each row that is not blank; one that is too long or does not fit
    the header is an InvalidInputError instead. Empty cells are None. Columns of messages and token ids hold
    JSON, all others text.

    Raises:
        Damaged: the header cannot be read, or a quote is never closed.
    """
    csv.field_size_limit(_LARGEST_CELL)
    pieces = iter(pieces)
    head = _head(pieces, limit)
    delimiter = _delimiter(b"".join(head))
    names: list[str] = []
    for line, row in split_rows(chain(head, pieces), limit, delimiter.encode()):
        if row is not None and not row.strip(b" \r"):
            continue
        try:
            if row is None:
                raise too_long("row", limit)
            cells = _cells(row, delimiter)
            value: Any = _record(names, cells, max_depth) if names else None
        except InvalidInputError as error:
            value = error
        if names:
            yield line, value
            del value  # before the next one is made: one record at a time
            cells = []
        elif value is not None:
            raise Damaged(f"the header cannot be read: {value}")
        else:
            names = cells


def split_rows(pieces: Iterable[bytes], limit: int, delimiter: bytes) -> Iterator[tuple[int, bytes | None]]:
    """(number of its first line, row without its newline) of each row; None stands for one of more than
    ``limit`` bytes. Where ``pieces`` raises, the rows before have been handed out.

    Raises:
        Damaged: a quote is never closed.
    """
    opening = (b"\n", delimiter)  # a quote behind one of them opens a cell, others are text
    rest: list[bytes] = []  # the pieces of a row whose end is still to come
    size = lines = 0  # of those: bytes, newlines
    line = 1
    quoted = False
    closing = False  # the last byte closed a cell: with one more quote it is a doubled one
    before = b"\n"
    for piece in pieces:
        text = before + piece
        start = at = 1
        newline = closed = -1
        if closing and text[1:2] == b'"':
            quoted, at = True, 2
        while at < len(text):
            if quoted:
                at = _QUOTED.match(text, at).end()  # type: ignore[union-attr] # it matches nothing at the least
                if text[at : at + 1] and text[at : at + 2] != b'""':
                    quoted = False
                    closed = at = at + 1
                continue
            if newline < at:
                newline = text.find(b"\n", at)
                newline = len(text) if newline < 0 else newline
            quote = text.find(b'"', at, newline)
            if quote >= 0:
                quoted = text[quote - 1 : quote] in opening
                at = quote + 1
                continue
            at = newline + 1
            if newline == len(text):
                break
            size += newline - start
            rest.append(text[start:newline])
            yield line, b"".join(rest) if size <= limit else None
            line += lines + text.count(b"\n", start, at)
            start, size, lines = at, 0, 0
            rest.clear()
        closing = closed == len(text)
        size += len(text) - start
        lines += text.count(b"\n", start)
        rest.append(text[start:])
        if size > limit:
            rest.clear()
        before = text[-1:]
    if quoted:
        raise Damaged(f"the row that begins in line {line} has a quote that is never closed")
    if size:
        yield line, b"".join(rest) if size <= limit else None


def _head(pieces: Iterator[bytes], limit: int) -> list[bytes]:
    """The pieces with the first line that is not blank."""
    head: list[bytes] = []
    size = 0
    for piece in pieces:
        text = piece if size else piece.lstrip(b"\r\n")
        head.append(piece)
        size += len(text)
        if b"\n" in text or size > limit:
            break
    return head


def _delimiter(head: bytes) -> str:
    first = head.lstrip(b"\r\n").split(b"\n", 1)[0].decode("utf-8", "replace")
    return max(_DELIMITERS, key=lambda delimiter: _columns(first, delimiter))


def _columns(header: str, delimiter: str) -> int:
    try:
        return len(next(csv.reader([header], delimiter=delimiter), []))
    except csv.Error:  # it is refused where it is read
        return 0


def _cells(row: bytes, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([row.decode("utf-8")], delimiter=delimiter, strict=True))
    except UnicodeDecodeError as error:
        raise InvalidInputError("not UTF-8", got=f"{error.reason} at byte {error.start}") from None
    except csv.Error as error:
        raise InvalidInputError("not CSV", got=str(error)) from None


def _record(names: list[str], cells: list[str], max_depth: int) -> dict[str, Any]:
    if len(cells) != len(names):
        raise InvalidInputError(
            "the row does not fit the header", expected=f"{len(names)} cells", got=f"{len(cells)}"
        )
    return {name: _value(name, cell, max_depth) for name, cell in zip(names, cells, strict=True)}


def _value(name: str, cell: str, max_depth: int) -> Any:
    if not cell:
        return None
    if name.endswith(_IDS) or (name in _LISTS and cell.lstrip()[:1] in ("[", "{")):
        try:
            return parse_json(cell, max_depth)
        except InvalidInputError as error:
            raise InvalidInputError(
                f"column {name}: {error.message}",
                expected=error.expected,
                got=error.got,
                remedy=error.remedy,
            ) from None
    return cell
