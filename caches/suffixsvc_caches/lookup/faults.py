"""Where a lookup cache goes wrong, and what llama.cpp makes of it (common/ngram-cache.cpp, b11434)."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from suffixsvc_caches.lookup.table import HEAD, MAX_ORDER, Int32s, Int64s, are_ngrams, repeated_rows

__all__ = ["Fault", "Harm", "find_faults"]


#: LLAMA_TOKEN_NULL
_NO_TOKEN: Final = -1


class Harm(enum.Enum):
    """What llama.cpp does where it meets a fault."""

    ABORTS = "llama.cpp aborts"
    ABORTS_LATER = "llama.cpp aborts when it drafts it"
    CUT = "llama.cpp ignores the rest of the file"
    ODD = "llama.cpp reads it, and never uses it"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: the byte where it is, what it is, what comes of it."""

    offset: int
    what: str
    harm: Harm


def find_faults(
    words: Int32s, starts: Int64s, broken: bool, rest: int, *, odd: bool = True
) -> Iterator[Fault]:
    """All faults of a file, those in whole records first, by place.

    Args:
        words: the file as int32.
        starts: int64[m + 1], where its m whole records begin, and where the last one ends.
        broken: whether something that is no whole record follows.
        rest: bytes behind the last word.
        odd: look for what llama.cpp reads and never uses as well, which takes the longest.
    """
    yield from sorted(_in_records(words, starts, odd), key=lambda fault: fault.offset)
    if broken or rest:
        yield _at_the_end(words, int(starts[-1]), rest)


def _at_the_end(words: Int32s, at: int, rest: int) -> Fault:
    left = 4 * (len(words) - at) + rest
    if left < 4 * MAX_ORDER:
        return Fault(4 * at, f"{left} bytes of an n-gram of {4 * MAX_ORDER}", Harm.CUT)
    if left < 4 * HEAD:
        return Fault(4 * at, "the file ends before the number of followers", Harm.ABORTS)
    followers = int(words[at + MAX_ORDER])
    if followers <= 0:
        return Fault(4 * (at + MAX_ORDER), f"{followers} followers; there is one at least", Harm.ABORTS)
    have = (left - 4 * HEAD) // 8
    return Fault(4 * at, f"the file ends after {have} of {followers} followers", Harm.ABORTS)


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
        yield Fault(4 * int(pair_at[i] + 1), f"a count of {counts[i]}; it is one at least", Harm.ABORTS)
    for i in np.flatnonzero(tokens < _NO_TOKEN):
        yield Fault(4 * int(pair_at[i]), f"{tokens[i]} is no token id", Harm.ABORTS_LATER)
    if not odd:
        return
    for i in np.flatnonzero(tokens == _NO_TOKEN):  # with which it ends a draft
        yield Fault(4 * int(pair_at[i]), f"{tokens[i]} is no token id", Harm.ODD)
    ngrams = words[heads[:, None] + np.arange(MAX_ORDER)]
    for i in np.flatnonzero(~are_ngrams(ngrams)):
        yield Fault(4 * int(heads[i]), f"{ngrams[i].tolist()} is no n-gram", Harm.ODD)
    for i in np.flatnonzero(repeated_rows(ngrams)):
        yield Fault(
            4 * int(heads[i]), f"the n-gram {ngrams[i].tolist()} again; the first one counts", Harm.ODD
        )
    for i in np.flatnonzero(repeated_rows(np.stack([record_of, tokens], axis=1))):
        yield Fault(
            4 * int(pair_at[i]), f"token {tokens[i]} again in one record; the first one counts", Harm.ODD
        )
