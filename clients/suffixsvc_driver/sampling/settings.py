"""Sampling settings, and sampling of a token from logits by a counter-based random number.

A token depends only on the logits, the seed and the absolute position (and, in
:class:`~suffixsvc_driver.sampling.sampler.Sampler`, on the text before it), so drafts never change it:
verification accepts a drafted token if and only if it is the sampled token.

    logits -> bias -> penalties -> / temperature -> top_k -> top_p -> min_p -> random number of the position
              `----- Sampler ----'
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import InvalidConfigError, ModelError
from suffixsvc.types import FloatArray
from suffixsvc_driver.sampling.structured import Structured
from suffixsvc_driver.settings.checks import as_integer, as_real, invalid

_MASK: Final = (1 << 64) - 1
#: distinguishes the second random number of a position from the first
_SECOND: Final = 0xD1B54A32D192ED03
#: scaled logits could overflow below it
_LOWEST_TEMPERATURE: Final = 1e-30
#: bound of penalties and biases; larger ones have no other effect and could overflow
_LARGEST: Final = 1e6
#: number of most probable tokens among which top_p is computed first
_TOP_P_CANDIDATES: Final = 256
#: block size of the maxima from which the largest values are found
_BLOCK: Final = 128
_LARGEST_ID: Final = 2**31 - 1
_WITHIN: Final = f"-{_LARGEST:g} .. {_LARGEST:g}"
#: field -> lowest value, highest value, and the condition as text
_RANGES: Final = {
    "temperature": (0.0, sys.float_info.max, f"0, or a finite number >= {_LOWEST_TEMPERATURE:g}"),
    "top_p": (sys.float_info.min, 1.0, "0 < top_p <= 1"),
    "min_p": (0.0, 1.0, "0 <= min_p <= 1"),
    "repeat_penalty": (1 / _LARGEST, _LARGEST, f"{1 / _LARGEST:g} .. {_LARGEST:g}"),
    "frequency_penalty": (-_LARGEST, _LARGEST, _WITHIN),
    "presence_penalty": (-_LARGEST, _LARGEST, _WITHIN),
}

IdArray = npt.NDArray[np.int64]
WideArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings. The defaults are greedy sampling of the unchanged logits.

    Attributes:
        temperature: 0 for greedy sampling (argmax, the lowest id on ties).
        top_k: number of most probable tokens to keep, the lower id on ties; 0 keeps all.
        top_p: then, share of probability that the smallest set of most probable tokens to keep must reach.
        seed: of the uniform random numbers, two per position.
        min_p: then, smallest probability to keep relative to the most probable token; 0 keeps all.
        repeat_penalty: divisor of positive logits and factor of negative logits of the tokens among the last
            ``penalty_last_n`` of the text; 1 disables it.
        frequency_penalty: subtracted from a logit once per occurrence there; 0 disables it.
        presence_penalty: subtracted from a logit once if the token occurs there; 0 disables it.
        penalty_last_n: window of the penalties, tokens of the text with the prompt; -1 for the whole text.
        logit_bias: by token id, added to the logit before the penalties; -inf bans the token. A mapping or
            pairs; stored as pairs sorted by id.
        grammar: what the emitted text must match; None for no grammar. GBNF text (llama.cpp's
            grammars/README.md, from rule ``root`` on), checked at the start of a generation
            (:mod:`suffixsvc_driver.sampling.gbnf`), or a value of
            :mod:`suffixsvc_driver.sampling.structured`, which llguidance compiles.
        logprobs: number of most probable tokens to report with the log probability of each emitted token
            (:mod:`suffixsvc_driver.sampling.logprobs`); None reports nothing.

    Raises:
        InvalidConfigError: a value is of the wrong type or out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    grammar: str | Structured | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, limits in _RANGES.items():
            object.__setattr__(self, name, as_real(name, getattr(self, name), *limits))
        if 0 < self.temperature < _LOWEST_TEMPERATURE:
            raise invalid("temperature", _RANGES["temperature"][2], self.temperature)
        for name, least in (("top_k", 0), ("penalty_last_n", -1), ("seed", None)):
            object.__setattr__(self, name, as_integer(name, getattr(self, name), least))
        if self.logprobs is not None:
            object.__setattr__(self, "logprobs", as_integer("logprobs", self.logprobs, 0))
        object.__setattr__(self, "logit_bias", _bias_pairs(self.logit_bias))
        if self.grammar is not None and not isinstance(self.grammar, str | Structured):
            raise InvalidConfigError(
                "grammar must be GBNF text, a structured-output value or None",
                expected="str, JsonSchema, JsonObject, Lark or Regex",
                got=type(self.grammar).__name__,
            )

    @property
    def greedy(self) -> bool:
        """Whether the token of the largest logit is taken."""
        return self.temperature == 0.0

    @property
    def penalizes(self) -> bool:
        """Whether penalties apply, so that tokens depend on the text before them."""
        neutral = self.repeat_penalty == 1 and self.frequency_penalty == 0 and self.presence_penalty == 0
        return self.penalty_last_n != 0 and not neutral

    @property
    def needs_text(self) -> bool:
        """Whether tokens depend on the text before them: penalties or a grammar."""
        return self.penalizes or self.grammar is not None


def _bias_pairs(bias: Any) -> tuple[tuple[int, float], ...]:
    try:
        pairs = dict(bias)
    except (TypeError, ValueError):
        raise invalid("logit_bias", "a mapping from token id to bias", bias) from None
    out = []
    for key, value in pairs.items():
        token = as_integer("a token id of logit_bias", key, 0)
        if token > _LARGEST_ID:
            raise invalid("a token id of logit_bias", f"0 .. {_LARGEST_ID}", token)
        banned = isinstance(value, float) and value == -math.inf
        name, expected = f"logit_bias of token {token}", f"{_WITHIN}, or -inf"
        out.append((token, value if banned else as_real(name, value, -_LARGEST, _LARGEST, expected)))
    return tuple(sorted(out))


GREEDY: Final = Sampling()


def uniform(seed: int, position: int, *, second: bool = False) -> float:
    """Return the first or ``second`` random number of a position, in [0, 1).

    Both are hashes of the position: 53 bits of splitmix64 (Steele, Lea and Flood 2014) as a counter-based
    generator.
    """
    z = _mix((_mix(seed & _MASK) + position * 0x9E3779B97F4A7C15) & _MASK)
    if second:
        z = _mix(z ^ _SECOND)
    return (z >> 11) * 2.0**-53


def _mix(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def sample_token(logits: FloatArray, sampling: Sampling, position: int) -> int:
    """Return the token of absolute ``position`` (prompt included) from logits float32[n_vocab].

    Bias, penalties and grammar are not applied.

    Raises:
        ModelError: the largest logit is NaN or infinite, or every token is banned.
    """
    best = int(logits.argmax())
    if not math.isfinite(logits[best]):
        raise _unusable(float(logits[best]))
    if sampling.greedy:
        return best
    ids, scaled = truncate(logits, sampling)
    return draw(ids, scaled, uniform(sampling.seed, position))


def _unusable(best: float) -> ModelError:
    if best == -math.inf:
        return ModelError(
            "logit_bias must leave a token that is not banned",
            got="-inf for every token",
            remedy="Ban fewer tokens in logit_bias.",
        )
    name = "NaN" if math.isnan(best) else "infinity"
    return ModelError("logits of the target must be finite", got=name, remedy="Check the model file.")


def draw(ids: IdArray, scaled: WideArray, number: float) -> int:
    """Return the token whose interval holds a number in [0, 1), from ascending ids and scaled logits."""
    # in order of ids: in order of probability, two nearly equal tokens could change places and move every
    # boundary between them
    bounds = np.cumsum(np.exp(scaled - scaled.max()))
    bounds /= bounds[-1]
    index = int(np.searchsorted(bounds, number, side="right"))
    return int(ids[min(index, len(ids) - 1)])


def truncate(logits: FloatArray, sampling: Sampling) -> tuple[IdArray, WideArray]:
    """Apply top_k, top_p and min_p.

    Returns the ids of the kept tokens, ascending, and their logits divided by the temperature.
    """
    total = len(logits)
    ids = largest(logits, sampling.top_k) if 0 < sampling.top_k < total else np.arange(total)
    scaled = logits[ids].astype(np.float64) / sampling.temperature
    if sampling.top_p < 1.0:
        at = _reaching(scaled, sampling.top_p)
        ids, scaled = ids[at], scaled[at]
    if sampling.min_p > 0.0:
        at = np.flatnonzero(scaled >= scaled.max() + math.log(sampling.min_p))
        ids, scaled = ids[at], scaled[at]
    return ids, scaled


def largest(values: FloatArray | WideArray, count: int) -> IdArray:
    """Return the indices of the largest ``count`` values, ascending; the first ones among equals."""
    blocks = len(values) // _BLOCK
    near = None
    if count <= blocks // 2:
        # at least ``count`` values reach the count-th largest block maximum: ten times faster
        tops = values[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
        near = np.flatnonzero(values >= np.partition(tops, blocks - count)[blocks - count])
        values = values[near]
    rank = len(values) - count
    edge = np.partition(values, rank)[rank]
    above = np.flatnonzero(values > edge)
    level = np.flatnonzero(values == edge)[: count - len(above)]
    out = np.sort(np.concatenate([above, level]))
    return out if near is None else near[out]


def _reaching(scaled: WideArray, share: float) -> IdArray:
    """Return the indices, ascending, of the smallest set of most probable tokens that reaches ``share``."""
    weights = np.exp(scaled - scaled.max())
    total, whole = len(scaled), weights.sum()
    count = _TOP_P_CANDIDATES
    while True:
        # sorting the whole vocabulary would dominate the cost of sampling
        top = largest(scaled, count) if count < total else np.arange(total)
        order = top[np.argsort(-scaled[top], kind="stable")]
        shares = np.cumsum(weights[order]) / whole
        if count >= total or shares[-1] >= share:
            return np.sort(order[: int(np.searchsorted(shares, share, side="left")) + 1])
        count *= 16
