"""Detection of faults in lookup cache files, with llama.cpp's reaction (common/ngram-cache.cpp, b11434)."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from suffixsvc_caches.lookup.table import HEAD, MAX_ORDER, Int32s, Int64s, are_ngrams, repeated_rows

__all__ = ["Fault", "FaultEffect", "find_faults"]


#: LLAMA_TOKEN_NULL
_NO_TOKEN: Final = -1


class FaultEffect(enum.Enum):
    """Reaction of llama.cpp to a fault."""

    ABORTS = "llama.cpp aborts"
    ABORTS_LATER = "llama.cpp aborts when it drafts it"
    CUT = "llama.cpp ignores the rest of the file"
    ODD = "llama.cpp reads it, and never uses it"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a file: its byte offset, a description, and llama.cpp's reaction."""

    offset: int
    what: str
    effect: FaultEffect


def find_faults(
    words: Int32s, starts: Int64s, broken: bool, rest: int, *, odd: bool = True
) -> Iterator[Fault]:
    """Yield the faults of a file: those in complete records by offset, then an incomplete last record.

    Args:
        words: the file as int32.
        starts: int64[m + 1], offsets of its m complete records, and the end of the last one, in words.
        broken: whether an incomplete record follows.
        rest: bytes after the last word.
        odd: include records that llama.cpp reads and never uses, which takes most of the time.
    """
    yield from sorted(_in_records(words, starts, odd), key=lambda fault: fault.offset)
    if broken or rest:
        yield _at_end(words, int(starts[-1]), rest)


def _at_end(words: Int32s, at: int, rest: int) -> Fault:
    left = 4 * (len(words) - at) + rest
    if left < 4 * MAX_ORDER:
        return Fault(4 * at, f"{left} bytes of an n-gram of {4 * MAX_ORDER}", FaultEffect.CUT)
    if left < 4 * HEAD:
        return Fault(4 * at, "the file ends before the number of followers", FaultEffect.ABORTS)
    followers = int(words[at + MAX_ORDER])
    if followers <= 0:
        return Fault(4 * (at + MAX_ORDER), f"{followers} followers; must be 1 or more", FaultEffect.ABORTS)
    have = (left - 4 * HEAD) // 8
    return Fault(4 * at, f"the file ends after {have} of {followers} followers", FaultEffect.ABORTS)


def _in_records(words: Int32s, starts: Int64s, odd: bool) -> Iterator[Fault]:
    heads = starts[:-1]
    if not len(heads):
        return
    sizes = words[heads + MAX_ORDER].astype(np.int64)
    record_of = np.repeat(np.arange(len(heads)), sizes)
    first_pair = np.concatenate([[0], np.cumsum(sizes)])[:-1]
    pair_at = heads[record_of] + HEAD + 2 * (np.arange(len(record_of)) - first_pair[record_of])
    tokens, counts = words[pair_at], words[pair_at + 1]

    for i in np.flatnonzero(counts <= 0):
        yield Fault(4 * int(pair_at[i] + 1), f"a count of {counts[i]}; must be 1 or more", FaultEffect.ABORTS)
    for i in np.flatnonzero(tokens < _NO_TOKEN):
        yield Fault(4 * int(pair_at[i]), f"{tokens[i]} is not a token id", FaultEffect.ABORTS_LATER)
    if not odd:
        return
    for i in np.flatnonzero(tokens == _NO_TOKEN):  # ends a draft
        yield Fault(4 * int(pair_at[i]), f"{tokens[i]} is not a token id", FaultEffect.ODD)
    ngrams = words[heads[:, None] + np.arange(MAX_ORDER)]
    for i in np.flatnonzero(~are_ngrams(ngrams)):
        yield Fault(4 * int(heads[i]), f"{ngrams[i].tolist()} is not an n-gram", FaultEffect.ODD)
    for i in np.flatnonzero(repeated_rows(ngrams)):
        yield Fault(
            4 * int(heads[i]),
            f"the n-gram {ngrams[i].tolist()} is repeated; the first one counts",
            FaultEffect.ODD,
        )
    for i in np.flatnonzero(repeated_rows(np.stack([record_of, tokens], axis=1))):
        yield Fault(
            4 * int(pair_at[i]),
            f"token {tokens[i]} is repeated in a record; the first one counts",
            FaultEffect.ODD,
        )
