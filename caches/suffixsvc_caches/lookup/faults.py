"""Detection of faults in lookup cache files, with llama.cpp's reaction (common/ngram-cache.cpp, b11434)."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from suffixsvc_caches.lookup.table import FREE, HEAD, MAX_ORDER, Int32s, Int64s, are_ngrams, repeated_rows


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

    # places with a fault, offset in words, value in the description
    checks = [
        (counts <= 0, pair_at + 1, counts, "a count of {}; must be 1 or more", FaultEffect.ABORTS),
        (tokens < FREE, pair_at, tokens, "{} is not a token id", FaultEffect.ABORTS_LATER),
    ]
    if odd:
        ngrams = words[heads[:, None] + np.arange(MAX_ORDER)]
        repeated = repeated_rows(np.stack([record_of, tokens], axis=1))
        never = FaultEffect.ODD
        checks += [
            (tokens == FREE, pair_at, tokens, "{} is not a token id", never),  # ends a draft
            (~are_ngrams(ngrams), heads, ngrams, "{} is not an n-gram", never),
            (repeated_rows(ngrams), heads, ngrams, "the n-gram {} is repeated; the first one counts", never),
            (repeated, pair_at, tokens, "token {} is repeated in a record; the first one counts", never),
        ]
    for mask, at, values, what, effect in checks:
        for i in np.flatnonzero(mask):
            yield Fault(4 * int(at[i]), what.format(values[i].tolist()), effect)
