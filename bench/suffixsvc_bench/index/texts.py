"""Synthetic texts for an index: endless streams, reproducible from a seed.

"realistic" and "repetitive" follow Simon's model of text (H. A. Simon, On a class of skew distribution
functions, 1955) with phrases in place of words: each next phrase is new with probability a; otherwise it
repeats the phrase at an earlier place that is chosen uniformly. A phrase's probability therefore grows with
its use, phrase counts follow a power law, and new phrases keep appearing, as in the outputs of agents. A
phrase has 8 to 63 tokens from a Zipf distribution over the vocabulary; at each place, each token is replaced
with probability r by a uniformly drawn one (names, numbers). Outputs are cut from this stream without regard
to phrases.

    random       every token uniform over the vocabulary: no repetition, the largest index
    realistic    a = 0.1,   r = 0.04
    repetitive   a = 0.005, r = 0.01
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import InvalidInputError
from suffixsvc.types import TokenArray
from suffixsvc_bench.index.kinds import KINDS, PhraseMix
from suffixsvc_bench.replay.logs import Encode, read_calls

VOCABULARY: Final = 150_000
_ZIPF_TOKENS: Final = 20_000
_ZIPF_EXPONENT: Final = 1.1
_SHORTEST, _LONGEST = 8, 63
#: places generated per batch, at first and at most
_FIRST_PLACES, _MOST_PLACES = 4096, 65_536


def stream(kind: str, output_tokens: int, seed: int) -> Iterator[TokenArray]:
    """Endless outputs of one kind, int32[output_tokens] each; the same for the same seed.

    Raises:
        InvalidInputError: the kind is unknown.
    """
    if kind not in KINDS:
        raise InvalidInputError("kind of text must be known", expected=" | ".join(KINDS), got=kind)
    mix = KINDS[kind]
    pieces = _uniform(seed) if mix is None else _phrases(mix, seed)
    left = np.zeros(0, np.int32)
    for piece in pieces:
        left = np.concatenate([left, piece])
        whole = len(left) // output_tokens * output_tokens
        yield from left[:whole].reshape(-1, output_tokens).copy()
        left = left[whole:]


def from_log(log: Path, encode: Encode | None, seed: int) -> Iterator[TokenArray]:
    """Repeat the responses of a recorded log, each time with all token ids permuted anew.

    A permutation preserves all repetition within a round; rounds share only chance matches.

    Raises:
        InvalidInputError: the log has no response.
    """
    outputs = [np.asarray(call.response, np.int32) for call in read_calls(log, encode)]
    outputs = [tokens for tokens in outputs if len(tokens)]
    if not outputs:
        raise InvalidInputError(f"{log} must have a call with a response")
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
    # Inverse CDF as a table: entry i is the token at quantile i * 2^-20 of the distribution.
    ranks = np.searchsorted(np.cumsum(weights) / weights.sum(), (np.arange(1 << 20) + 0.5) / (1 << 20))
    table = random.permutation(VOCABULARY).astype(np.int32)[ranks]
    phrase_at = np.zeros(0, np.int64)  # phrase number of every place so far
    num_phrases = 0
    while True:
        before = len(phrase_at)
        places = min(_MOST_PLACES, max(_FIRST_PLACES, before // 4))
        is_new = random.random(places) < mix.new
        is_new[0] |= before == 0
        fresh = np.cumsum(is_new) - 1 + num_phrases
        num_phrases += int(is_new.sum())
        place = np.arange(before, before + places)
        copied = (random.random(places) * place).astype(np.int64)  # uniformly drawn earlier place
        phrases = np.where(is_new, fresh, -1)
        phrase_at = np.concatenate([phrase_at, phrases])
        # Copies of places in the same batch are resolved along their chains.
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
    """Tokens of phrases in order. A phrase is computed from a hash of its number, so none is stored."""
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
