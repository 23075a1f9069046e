"""Parsing and formatting of sizes in bytes, and of counts."""

from __future__ import annotations

import re
from typing import Final

from suffixsvc.errors import InvalidConfigError, InvalidInputError

_FORM: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(i?B)?\s*", re.IGNORECASE)
_MOST: Final = 2**60
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str, what: str) -> int:
    """Parse "2G", "512 MiB", "1.5g" or "65536" to bytes; a unit is a power of 1024.

    Args:
        text: the size.
        what: name of the setting, for the error.

    Raises:
        InvalidConfigError: the text is not a size, or it is too large.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise InvalidConfigError(
            f"{what} must be a number of bytes, or a number with K, M, G or T", got=repr(text)[:80]
        )
    size = float(match[1]) * 1024 ** _POWERS[match[2].lower()]
    if size > _MOST:
        raise InvalidConfigError(f"{what} must be at most {format_size(_MOST)}", got=repr(text)[:80])
    return int(size)


def parse_count(text: str, name: str, least: int = 1) -> int:
    """Parse "10M", "1.5k" or "20000", the value of the option ``name``; a unit is a power of 1000.

    Raises:
        InvalidInputError: the text is not a number, or it is too small.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([km]?)\s*", text, re.IGNORECASE)
    number = int(float(match[1]) * {"": 1, "k": 1_000, "m": 1_000_000}[match[2].lower()]) if match else 0
    if number < least:
        raise InvalidInputError(
            f"{name} must be a number, at least {least}", expected="e.g. 500K or 10M", got=text[:80]
        )
    return number


def format_size(size: float) -> str:
    """Format a size: 512 bytes, 1.5 MiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
