"""Texts to fill an index with, endless, reproducible from a seed.

"realistic" and "repetitive" follow Simon's model of text (H. A. Simon, On a class of skew distribution
functions, 1955), with phrases for words: each next phrase is new with probability a; otherwise it is the
phrase of an earlier place, chosen uniformly, so that a phrase's chance grows with its use and phrase counts
follow a power law. New phrases keep coming however long the text is, as they do in what agents write. A
phrase has 8 to 63 tokens, drawn from a Zipf distribution over the vocabulary; wherever it is written, each
token is replaced with probability r by one drawn uniformly (names, numbers). Outputs are cut from this
stream without regard to phrases.

    random       every token uniform over the vocabulary: nothing to draft, the index at its largest
    realistic    a = 0.1,   r = 0.04
    repetitive   a = 0.005, r = 0.01
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import InvalidInputError
from suffixsvc.types import TokenArray
from suffixsvc_bench.replay.logs import Encode, read_calls

__all__ = ["KINDS", "VOCABULARY", "PhraseMix", "from_log", "stream"]

VOCABULARY: Final = 150_000
_ZIPF_TOKENS: Final = 20_000
_ZIPF_EXPONENT: Final = 1.1
_SHORTEST, _LONGEST = 8, 63
#: places generated at a time, first and later
_FIRST_PLACES, _MOST_PLACES = 4096, 65_536


@dataclass(frozen=True, slots=True)
class PhraseMix:
    """How a stream repeats itself; see the module."""

    new: float  #: probability that the next phrase is a new one
    replaced: float  #: probability that a token of a phrase is another one here


KINDS: Final[dict[str, PhraseMix | None]] = {
    "random": None,
    "realistic": PhraseMix(new=0.1, replaced=0.04),
    "repetitive": PhraseMix(new=0.005, replaced=0.01),
}


def stream(kind: str, output_tokens: int, seed: int) -> Iterator[TokenArray]:
    """Outputs of one kind, int32[output_tokens] each, for ever; the same for the same seed."""
    if kind not in KINDS:
        raise InvalidInputError("no such kind of text", expected=" | ".join(KINDS), got=kind)
    mix = KINDS[kind]
    pieces = _uniform(seed) if mix is None else _phrases(mix, seed)
    left = np.zeros(0, np.int32)
    for piece in pieces:
        left = np.concatenate([left, piece])
        whole = len(left) // output_tokens * output_tokens
        yield from left[:whole].reshape(-1, output_tokens).copy()
        left = left[whole:]


def from_log(log: Path, encode: Encode | None, seed: int) -> Iterator[TokenArray]:
    """The responses of a recorded log again and again, each time with all token ids permuted anew.

    A permutation keeps all repetition within a round and shares nothing with the other rounds but chance.
    """
    outputs = [np.asarray(call.response, np.int32) for call in read_calls(log, encode)]
    outputs = [tokens for tokens in outputs if len(tokens)]
    if not outputs:
        raise InvalidInputError(f"{log} has nothing to ingest", expected="a call with a response")
    vocabulary = max(VOCABULARY, 1 + max(int(tokens.max()) for tokens in outputs))
    random = np.random.default_rng(seed)
    yield from outputs
    while True:
        permuted = random.permutation(vocabulary).astype(np.int32)
        for tokens in outputs:
            yield permuted[tokens]


def _uniform(seed: int) -> Iterator[TokenArray]:
    random = np.random.default_rng(seed)
    while True:
        yield random.integers(0, VOCABULARY, 1 << 16, dtype=np.int32)


def _phrases(mix: PhraseMix, seed: int) -> Iterator[TokenArray]:
    random = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, _ZIPF_TOKENS + 1) ** _ZIPF_EXPONENT
    # A table to draw from with an integer: entry i holds the token at the i-th 2^-20 of the distribution.
    ranks = np.searchsorted(np.cumsum(weights) / weights.sum(), (np.arange(1 << 20) + 0.5) / (1 << 20))
    table = random.permutation(VOCABULARY).astype(np.int32)[ranks]
    phrase_at = np.zeros(0, np.int64)  # phrase of every place so far
    num_phrases = 0
    while True:
        before = len(phrase_at)
        places = min(_MOST_PLACES, max(_FIRST_PLACES, before // 4))
        is_new = random.random(places) < mix.new
        is_new[0] |= before == 0
        fresh = np.cumsum(is_new) - 1 + num_phrases
        num_phrases += int(is_new.sum())
        place = np.arange(before, before + places)
        copied = (random.random(places) * place).astype(np.int64)  # an earlier place, uniformly
        phrases = np.where(is_new, fresh, -1)
        phrase_at = np.concatenate([phrase_at, phrases])
        # Copies of places in this very batch are resolved in the order of their chains.
        while (open_ := phrase_at[before:] < 0).any():
            at = np.flatnonzero(open_)
            phrase_at[before + at] = phrase_at[copied[at]]
        yield _write(phrase_at[before:], table, mix, random, seed)


def _write(
    phrases: npt.NDArray[np.int64],
    table: npt.NDArray[np.int32],
    mix: PhraseMix,
    random: np.random.Generator,
    seed: int,
) -> TokenArray:
    """The tokens of phrases, one after the other. A phrase is a hash of its number: none is stored."""
    lengths = _SHORTEST + (_hash(phrases, seed) % (_LONGEST - _SHORTEST + 1)).astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    within = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    draws = _hash(np.repeat(phrases, lengths) * 64 + within, seed + 1)
    tokens = table[(draws >> np.uint64(44)).astype(np.int64)]
    replaced = np.flatnonzero(random.random(len(tokens)) < mix.replaced)
    tokens[replaced] = random.integers(0, VOCABULARY, len(replaced), dtype=np.int32)
    return tokens


def _hash(values: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.uint64]:
    """splitmix64 (Steele, Lea, Flood 2014)."""
    x = values.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
