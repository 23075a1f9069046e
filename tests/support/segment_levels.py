"""Queries of a segment for one position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suffixsvc.core.segments import Segment
from suffixsvc.types import OutputId, TokenIds
from suffixsvc.values import as_token_array
from support.segment_oracle import ORDERS


@dataclass(frozen=True)
class SegmentLevel:
    """Followers of one context of the queried position."""

    length: int  #: tokens of context that all occurrences share
    entries: int  #: distinct positions, forgotten ones included
    total: int  #: occurrences with a follower
    strongest: list[tuple[int, int]]  #: (token, votes), strongest first
    votes: list[int]  #: of the requested tokens
    newest: tuple[int, OutputId]  #: the last follower and its output; -1 if all are forgotten


def levels_of(
    segment: Segment,
    context: TokenIds,
    orders: Sequence[int] = ORDERS,
    *,
    width: int = 4,
    tokens: TokenIds = (),
) -> list[SegmentLevel]:
    """The followers of the longest known suffix of a context and of those that cover an order, longest first.

    ``width`` strongest followers of each, and the votes of ``tokens``.
    """
    levels = segment.query(as_token_array(context), list(orders), width, as_token_array(tokens))
    return [
        SegmentLevel(length, end - begin, total, strongest, votes, newest)
        for length, begin, end, total, strongest, votes, newest in levels
    ]
