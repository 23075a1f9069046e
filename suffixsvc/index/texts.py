"""The texts that an output is indexed as, and whose they are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from suffixsvc.types import NewOutput, TokenArray

__all__ = ["next_writer", "positions_of", "texts_of"]

_writers = itertools.count(2)  # 1 is a session within its own index


def next_writer() -> int:
    """A number that no other session or output of this process has: it tells own evidence from others'."""
    return next(_writers) % 0x7FFF_FFFF


def positions_of(output: NewOutput) -> int:
    """How many positions of the index an output takes: its tokens and the context before them."""
    return len(output.token_ids) + len(output.prompt_tail)


def texts_of(output: NewOutput) -> Iterator[tuple[TokenArray, int]]:
    """The texts an output is indexed as: (tokens, how many of them are context only).

    Tokens that a tool result or another turn stood between never become neighbours: each segment is a
    text of its own, and only the first has the prompt's tail before it.
    """
    start = 0
    tail = output.prompt_tail
    for length in output.segment_lens:
        segment = output.token_ids[start : start + length]
        yield np.ascontiguousarray(np.concatenate([tail, segment]), dtype=np.int32), len(tail)
        start += length
        tail = tail[:0]
