"""Which segments to merge. Pure.

Segments of about equal size are merged by the FAN_IN, so each token is written again once a tier:

    1 1 1 1  ->  4          4 1 1 1 1  ->  4 4          16 4 4 4 1 1 1: nothing to do

Only neighbours are merged: a segment stands for one range of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["FAN_IN", "MOST_SEGMENTS", "MOST_TOKENS", "Size", "plan_merge"]

FAN_IN: Final = 4
#: with more, the cheapest neighbours are merged whatever their sizes: every draft asks every segment
MOST_SEGMENTS: Final = 8
#: a larger segment is not made; positions in a file have 32 bits, and contexts take some of them
MOST_TOKENS: Final = 1 << 30
#: segments whose sizes differ by less are of one tier
_SAME_TIER: Final = 3
#: a segment of which so much is forgotten is written anew, alone
_FORGOTTEN_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Size:
    """What the plan looks at. ``follows``: nothing lies between this segment and the one before."""

    tokens: int  #: left
    forgotten: int  #: tokens that the file still holds
    follows: bool = True


def plan_merge(sizes: Sequence[Size]) -> range | None:
    """The neighbours to be merged next, or None. A range of one: a segment to be written without what is
    forgotten."""
    candidates = [w for w in _windows(sizes, FAN_IN) if _same_tier([sizes[i].tokens for i in w])]
    if not candidates and len(sizes) > MOST_SEGMENTS:
        candidates = list(_windows(sizes, FAN_IN)) or list(_windows(sizes, 2))
    if candidates:
        return min(candidates, key=lambda window: sum(sizes[i].tokens for i in window))
    for i, size in enumerate(sizes):
        if size.forgotten > _FORGOTTEN_SHARE * (size.tokens + size.forgotten):
            return range(i, i + 1)
    return None


def _windows(sizes: Sequence[Size], width: int) -> Iterator[range]:
    for first in range(len(sizes) - width + 1):
        window = range(first, first + width)
        if all(sizes[i].follows for i in window[1:]) and sum(sizes[i].tokens for i in window) <= MOST_TOKENS:
            yield window


def _same_tier(tokens: Sequence[int]) -> bool:
    return max(tokens) <= _SAME_TIER * max(1, min(tokens))
