"""Conversion of the native core's file faults to the project's errors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from suffixsvc.core import _ext
from suffixsvc.errors import InvalidInputError, SuffixError

__all__ = ["path_of", "typed_errors"]


@contextmanager
def typed_errors(kinds: Mapping[str, tuple[type[SuffixError], str]]) -> Iterator[None]:
    """Raise the error that ``kinds`` maps a native fault's kind to: kind -> (class, remedy or "")."""
    try:
        yield
    except _ext.FileFault as fault:
        kind, message, expected, got = fault.args
        cls, remedy = kinds[kind]
        raise cls(message, expected=expected or None, got=got or None, remedy=remedy or None) from None


def path_of(path: str | os.PathLike[str]) -> str:
    """Convert a path for the core.

    Raises:
        InvalidInputError: the path contains a zero byte, or is not UTF-8.
    """
    raw = os.fspath(path)
    if "\0" in raw:
        raise InvalidInputError("path must not contain a zero byte", got=repr(raw)[:80])
    try:
        raw.encode()
    except UnicodeEncodeError:
        raise InvalidInputError("path must be UTF-8", got=repr(raw)[-80:]) from None
    return raw
