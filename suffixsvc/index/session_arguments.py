"""Arguments of a session's calls in the form that the core takes."""

from __future__ import annotations

from typing import Final

import numpy as np

from suffixsvc.errors import InvalidInputError
from suffixsvc.types import TokenArray, Verified
from suffixsvc.values import as_verified

__all__ = ["MAX_POSITION", "as_feedback", "as_position", "overlap"]

#: positions are clamped to this: beyond every text, and an int64
MAX_POSITION: Final = 1 << 62


def as_feedback(verified: Verified | tuple[int, int, int] | None) -> tuple[int, int]:
    """(width, accepted) of what was sent to the target; (0, 0) for None. Raises InvalidInputError."""
    if verified is None:
        return 0, 0
    checked = as_verified(verified)
    return checked.width, checked.accepted


def as_position(at: int | None) -> int:
    """An absolute position, at most MAX_POSITION; -1 for None. InvalidInputError unless it is an int >= 0."""
    if at is None:
        return -1
    if isinstance(at, bool) or not isinstance(at, (int, np.integer)) or at < 0:
        raise InvalidInputError("at must be a position", expected="an int >= 0", got=repr(at)[:80])
    return min(int(at), MAX_POSITION)


def overlap(text: TokenArray, context: TokenArray) -> int:
    """Length of the longest suffix of ``text`` that is a prefix of ``context``.

    Considers the last 64 occurrences of the text's last token in the context only.
    """
    if not len(text):
        return 0
    ends = np.flatnonzero(context[: len(text)] == text[-1])[::-1][:64] + 1
    return next((int(n) for n in ends if np.array_equal(text[-n:], context[:n])), 0)
