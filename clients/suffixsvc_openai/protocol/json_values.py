"""Values of JSON texts: their number, before a text is parsed, and numbers that JSON cannot express.

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
