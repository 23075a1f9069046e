"""Text of a native session, read on from a position while the session is stepped by another thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from suffixsvc import core
from suffixsvc.types import TokenArray


class TextPiece(NamedTuple):
    """Tokens of one kind, int32[n]; the first one is at position ``at``."""

    output: bool
    at: int
    tokens: TokenArray


def pieces_from(native: core.Session, start: int, end: int) -> Iterator[TextPiece]:
    """The tokens of ``start .. end`` in pieces of one kind, in order; ``end`` is at most the length.

    The text is append-only, so that what is read is what was there when the length was.
    """
    at = start
    for first, last in native.output_runs():
        if last <= at or first >= end:
            continue
        if first > at:
            yield TextPiece(False, at, native.text(at, first))
            at = first
        stop = min(last, end)
        yield TextPiece(True, at, native.text(at, stop))
        at = stop
    if at < end:
        yield TextPiece(False, at, native.text(at, end))
