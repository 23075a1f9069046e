"""Conversion of outputs to the texts that are indexed, and writer numbers of texts.

``writer``: number of the session or output that a text belongs to, not a thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from suffixsvc.types import NewOutput, TokenArray

_writers = itertools.count(2)  # 1 is a session within its private index


def next_writer() -> int:
    """A writer number that is unique in this process; the core separates a session's own text by it."""
    return next(_writers) % 0x7FFF_FFFF


def positions_of(output: NewOutput) -> int:
    """Positions of the index that an output takes: its tokens and the context before them."""
    return len(output.token_ids) + len(output.prompt_tail)


def texts_of(output: NewOutput) -> Iterator[tuple[TokenArray, int]]:
    """The texts that an output is indexed as.

    Tokens separated by a tool result or a user turn must not become adjacent in the index: each run is a
    separate text, and only the first one is preceded by the prompt's tail.

    Yields:
        (tokens int32[n], how many of them at the beginning are context only).
    """
    start = 0
    tail = output.prompt_tail
    for length in output.segment_lens:
        segment = output.token_ids[start : start + length]
        yield np.ascontiguousarray(np.concatenate([tail, segment]), dtype=np.int32), len(tail)
        start += length
        tail = tail[:0]
