"""Faults of files, as the native core reports them, as the project's errors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from suffixsvc.core import _ext
from suffixsvc.errors import InvalidInputError, SuffixError

__all__ = ["path_of", "typed_errors"]


@contextmanager
def typed_errors(kinds: Mapping[str, tuple[type[SuffixError], str]]) -> Iterator[None]:
    """Raises what ``kinds`` names for a native fault: its kind -> class and remedy ("" = none)."""
    try:
        yield
    except _ext.FileFault as fault:
        kind, message, expected, got = fault.args
        cls, remedy = kinds[kind]
        raise cls(message, expected=expected or None, got=got or None, remedy=remedy or None) from None


def path_of(path: str | os.PathLike[str]) -> str:
    """A path as the core takes it. InvalidInputError: it contains a zero byte, or is not UTF-8."""
    raw = os.fspath(path)
    if "\0" in raw:
        raise InvalidInputError("a path contains a zero byte", got=repr(raw)[:80])
    try:
        raw.encode()
    except UnicodeEncodeError:
        raise InvalidInputError("a path is not UTF-8", got=repr(raw)[-80:]) from None
    return raw
