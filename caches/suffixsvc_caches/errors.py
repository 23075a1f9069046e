"""Errors that get the place where they occurred."""

from __future__ import annotations

from typing import TypeVar

from suffixsvc.errors import SuffixError

E = TypeVar("E", bound=SuffixError)


def at_place(place: object, error: E) -> E:
    """Return the error with a place, such as a file, before its message."""
    return type(error)(
        f"{place}: {error.message}", expected=error.expected, got=error.got, remedy=error.remedy
    )
