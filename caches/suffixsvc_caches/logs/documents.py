"""JSON documents as streams of records: an array, or values one after the other, over many lines.

The decoder of the standard library reads one value after the other out of a window, which grows only while a
value does not fit: 94 MB/s on 40 MB of recorded agent calls. ijson reads 139 MB/s, but ends at a NaN, and its
memory grows with the square of how deeply a value nests (half a megabyte of brackets was killed for it). Here
such a value is refused, and reading goes on behind it: its end is found by its brackets.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs.json_text import check_depth, mend, too_deep
from suffixsvc_caches.logs.options import MAX_DEPTH
from suffixsvc_caches.logs.sources import Damaged

__all__ = ["read_documents"]

#: what may stand between two values
_BETWEEN: Final = re.compile(r"[\s,]*")
#: what matters to where a value ends: texts as a whole, one that is not closed, brackets
_MARKS: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|"|[\[{]|[\]}]', re.DOTALL)


def read_documents(
    pieces: Iterable[bytes], limit: int, max_depth: int = MAX_DEPTH
) -> Iterator[tuple[int, Any]]:
    """(number from 1, value) of each entry of an array, or of each value where there is none. A value in
    which bytes are no UTF-8, or that nests too deeply, is an InvalidInputError instead.

    Raises:
        Damaged: no JSON from here on, or a record of more than about ``limit`` bytes.
    """
    window = _Window(pieces)
    decode = json.JSONDecoder().raw_decode
    number = 0
    in_array = False
    while window.skip(_BETWEEN):
        first = window.text[window.at]
        if number == 0 and not in_array and first == "[":
            in_array = True
            window.at += 1
            continue
        if in_array and first == "]":
            return
        try:
            value, end = decode(window.text, window.at)
        except RecursionError:
            if not _pass_over(window, limit):
                raise Damaged(f"nested too deeply behind record {number}") from None
            number += 1
            yield number, too_deep(max_depth)
            continue
        except ValueError as error:
            size = len(window.text) - window.at
            if size <= limit and window.grow(2 * size):
                continue
            raise _damage(error, number, size, limit) from None
        number += 1
        checked = _checked(value, window.text[window.at : end], max_depth)
        del value
        yield number, checked
        del checked  # before the next one is made: one record at a time
        window.at = end
    if in_array:
        raise Damaged(f"the array ends behind record {number}")


def _pass_over(window: _Window, limit: int) -> bool:
    """Go behind a list or an object without making anything of it; False where it has no end within the
    limit."""
    while (end := _end(window.text, window.at)) is None:
        size = len(window.text) - window.at
        if size > limit or not window.grow(2 * size):
            return False
    window.at = end
    return True


def _end(text: str, start: int) -> int | None:
    """Where the list or object ends that begins there; None: not in this text."""
    depth = 0
    for mark in _MARKS.finditer(text, start):
        match text[mark.start()]:
            case "[" | "{":
                depth += 1
            case "]" | "}":
                depth -= 1
                if not depth:
                    return mark.end()
            case _ if mark.end() - mark.start() == 1:
                return None  # a text that is not closed
    return None


def _checked(value: Any, text: str, max_depth: int) -> Any:
    try:
        check_depth(value, text, max_depth)
    except InvalidInputError as error:
        return error
    if text.isascii() and "\\u" not in text:
        return value
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return InvalidInputError("not UTF-8")
    return mend(value) if "\\u" in text else value


def _damage(error: ValueError, number: int, size: int, limit: int) -> Damaged:
    if size > limit:
        return Damaged(f"a record of more than {limit:,} bytes, or no JSON, behind record {number}")
    return Damaged(f"no JSON behind record {number}: {error}")


class _Window:
    """The part of a text that is looked at. ``at`` is where the next value is looked for."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.text = ""
        self.at = 0
        self._pieces = iter(pieces)
        # bytes that are no UTF-8 become lone surrogates: only the value they stand in is lost
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def skip(self, pattern: re.Pattern[str]) -> bool:
        """Go to what comes behind the pattern; False at the end of the text."""
        while True:
            match = pattern.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text):
                return True
            if not self.grow(1):
                return False

    def grow(self, wanted: int) -> bool:
        """Have so many characters from ``at`` on, or all there are; False where there are no more."""
        parts = [self.text[self.at :]]
        before = size = len(parts[0])
        while size < wanted and (piece := next(self._pieces, None)) is not None:
            parts.append(self._decoder.decode(piece))
            size += len(parts[-1])
        self.text, self.at = "".join(parts), 0
        return size > before
