"""Values of JSON texts: number and memory, before a text is parsed; numbers that JSON cannot express.

A parser makes an object of every value, and the interpreter runs nothing else meanwhile: 16 MiB of empty
lists take ten seconds and a gigabyte, 16 MiB of text a hundredth of that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from pydantic import BaseModel

_QUOTE: Final = ord('"')
#: a string, also one that does not end, or what precedes a value
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[,\[{]', re.DOTALL)
#: strings and separators per value, at most: a key, the value and a comma
_TOKENS_PER_VALUE: Final = 3
#: bytes of a parsed value; small dicts are the largest, of 1.1 MB of them 36 MiB were measured
VALUE_BYTES: Final = 192
#: an escape of a character beyond U+FFFF
_SURROGATE: Final = re.compile(rb"\\u[dD][89abAB]")
#: bytes of an escaped character
_ESCAPE_BYTES: Final = 6
#: bytes of UTF-8 that do not begin a character, and those before the ones of characters from U+0100 and
#: U+10000 on
_CONTINUING, _NARROW, _MIDDLE = bytes(range(0x80, 0xC0)), bytes(range(0xC4)), bytes(range(0xF0))
#: separators that are not looked at closely
_FEW: Final = 4096


def count_values(text: bytes | bytearray, limit: int) -> int:
    """Return the number of values of JSON text, at most ``limit + 1``.

    Values are counted by the commas and opening brackets outside of strings, which is at most one less and
    at most twice as many; few are counted inside of strings as well. Of malformed text the result has no
    meaning; the parser will refuse it.
    """
    separators = sum(map(text.count, (b",", b"[", b"{")))
    if separators <= min(limit, _FEW):  # most bodies, in little time
        return separators
    tokens = islice(_TOKEN.finditer(text), _TOKENS_PER_VALUE * limit + 2)
    return min(limit + 1, sum(text[token.start()] != _QUOTE for token in tokens))


def parsed_bytes(text: bytes | bytearray, values: int) -> int:
    """Return the bytes that a JSON text takes once it is parsed, besides as many as it has, at most.

    The interpreter takes one, two or four bytes for each character of a string, as the widest of them needs,
    and may keep the UTF-8 of one that is not ASCII as well.

    Args:
        text: the text.
        values: number of its values.
    """
    width = _character_bytes(text)
    if not width:
        return values * VALUE_BYTES
    # a backslash before it may make it a text
    escapes = max(0, text.count(b"\\u") - text.count(b"\\\\u"))
    characters = len(text) if text.isascii() else len(text.translate(None, _CONTINUING))
    characters = max(0, characters - (_ESCAPE_BYTES - 1) * escapes)
    return values * VALUE_BYTES + width * characters


def _character_bytes(text: bytes | bytearray) -> int:
    """Return the bytes of the widest character of the strings of a JSON text; 0 if all are ASCII."""
    escaped = b"\\u" in text
    if (escaped and _SURROGATE.search(text)) or (not text.isascii() and text.translate(None, _MIDDLE)):
        return 4
    if escaped or (not text.isascii() and text.translate(None, _NARROW)):
        return 2
    return 0 if text.isascii() else 1


def non_finite(value: Any) -> list[int | str] | None:
    """Return the path of a number that is not finite, in a validated body; None if there is none.

    The parser reads NaN, Infinity and 1e999, which are no values of JSON: no answer could repeat them.
    """
    if isinstance(value, float):
        return None if math.isfinite(value) else []
    children: Iterable[tuple[int | str, Any]]
    if isinstance(value, BaseModel):
        children = [*value.__dict__.items(), *(value.model_extra or {}).items()]
    elif isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    else:
        return None
    for key, child in children:
        if isinstance(child, (float, list, dict, BaseModel)):
            path = non_finite(child)
            if path is not None:
                return [key, *path]
    return None
