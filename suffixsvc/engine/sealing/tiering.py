"""Merge policy: which segments of a namespace to merge next. Pure functions.

Size-tiered: FAN_IN segments of about equal size are merged, so each token is rewritten once per tier:

    1 1 1 1  ->  4          4 1 1 1 1  ->  4 4          16 4 4 4 1 1 1: nothing to merge

Only adjacent segments are merged, because a segment covers one range of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

FAN_IN: Final = 4
#: above this, adjacent segments of any size are merged, because every draft queries every segment
MAX_SEGMENTS: Final = 6
#: maximum tokens of a segment; positions in a file have 32 bits, and contexts take some of them
MAX_TOKENS: Final = 1 << 30
#: maximum ratio of the sizes in one tier
_SAME_TIER: Final = 3
#: share of deleted tokens above which a segment is rewritten alone
_DELETED_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a segment.

    Attributes:
        tokens: tokens of outputs that are not deleted.
        deleted: tokens of deleted outputs in the file.
        follows: no output is between this segment and the previous one.
    """

    tokens: int
    deleted: int
    follows: bool = True


def plan_merge(sizes: Sequence[Size]) -> range | None:
    """The adjacent segments to merge next, or None.

    A range of one segment: it is to be rewritten without its deleted outputs.
    """
    candidates = [w for w in _windows(sizes, FAN_IN) if _same_tier([sizes[i].tokens for i in w])]
    if candidates:
        return min(candidates, key=lambda window: sum(sizes[i].tokens for i in window))
    if len(sizes) > MAX_SEGMENTS:
        candidates = [window for width in range(2, FAN_IN + 1) for window in _windows(sizes, width)]
        if candidates:
            return min(candidates, key=lambda window: _merge_cost([sizes[i].tokens for i in window]))
    for i, size in enumerate(sizes):
        if size.deleted > _DELETED_SHARE * (size.tokens + size.deleted):
            return range(i, i + 1)
    return None


def _windows(sizes: Sequence[Size], width: int) -> Iterator[range]:
    for first in range(len(sizes) - width + 1):
        window = range(first, first + width)
        if all(sizes[i].follows for i in window[1:]) and sum(sizes[i].tokens for i in window) <= MAX_TOKENS:
            yield window


def _merge_cost(tokens: Sequence[int]) -> float:
    """Cost of a merge per segment saved; rewriting a large segment to add a small one is expensive.

    In simulations of 1,000 seals it gives a write amplification of 5 (4 to 5 without the limit on segments, 7
    to 40 with the size of the result as cost).
    """
    largest, total = max(tokens), max(1, sum(tokens))
    return total * largest / max(1, total - largest) / (len(tokens) - 1)


def _same_tier(tokens: Sequence[int]) -> bool:
    return max(tokens) <= _SAME_TIER * max(1, min(tokens))
