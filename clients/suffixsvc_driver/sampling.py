"""How the target picks a token from its logits: the settings, and the choice itself.

A choice depends on the logits, the seed and the absolute position alone (and, through
:class:`suffixsvc_driver.chooser.Chooser`, on the text before it), so drafts never change it: verification
keeps a drafted token exactly where this choice is that token.

    logits -> bias -> penalties -> / temperature -> top_k -> top_p -> min_p -> the position's number picks one
              `---- the Chooser's ----'
"""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import InvalidConfigError, ModelError
from suffixsvc.types import FloatArray

__all__ = ["GREEDY", "Sampling", "choose", "draw", "kept", "uniform"]

_MASK: Final = (1 << 64) - 1
#: sets the second numbers of all positions apart from the first ones
_SECOND: Final = 0xD1B54A32D192ED03
#: below it the scaled logits could overflow
_LOWEST_TEMPERATURE: Final = 1e-30
#: penalties and biases beyond it say nothing that this does not, and could overflow
_LARGEST: Final = 1e6
#: of how many of the most probable tokens top_p is tried first
_FEW: Final = 256
#: values of which one maximum is taken, to find the largest ones
_BLOCK: Final = 128
_LARGEST_ID: Final = 2**31 - 1
_WITHIN: Final = f"-{_LARGEST:g} .. {_LARGEST:g}"
#: field -> lowest and highest value, and how to say so
_RANGES: Final = {
    "temperature": (0.0, sys.float_info.max, f"0, or a finite number >= {_LOWEST_TEMPERATURE:g}"),
    "top_p": (sys.float_info.min, 1.0, "0 < top_p <= 1"),
    "min_p": (0.0, 1.0, "0 <= min_p <= 1"),
    "repeat_penalty": (1 / _LARGEST, _LARGEST, f"{1 / _LARGEST:g} .. {_LARGEST:g}, 1 being none"),
    "frequency_penalty": (-_LARGEST, _LARGEST, _WITHIN),
    "presence_penalty": (-_LARGEST, _LARGEST, _WITHIN),
}

IdArray = npt.NDArray[np.int64]
WideArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target picks a token. The defaults are greedy and change nothing.

    Attributes:
        temperature: 0 is greedy (argmax, the lowest id on ties).
        top_k: keep only so many of the most probable tokens, the lower id on ties; 0 keeps all.
        top_p: then keep the smallest set of the most probable ones that reaches this share.
        seed: of the uniform numbers, two per position.
        min_p: then keep only tokens at least so probable as this share of the most probable one; 0 keeps all.
        repeat_penalty: logits of tokens in the last ``penalty_last_n`` of the text are divided by it where
            positive and multiplied where negative; 1 is none.
        frequency_penalty: subtracted from a logit once for each occurrence there; 0 is none.
        presence_penalty: subtracted once from a logit if the token occurs there; 0 is none.
        penalty_last_n: tokens of the text, prompt included, that penalties look at; -1 is all of it.
        logit_bias: id -> what is added to its logit, before the penalties; -inf bans the token. A mapping or
            pairs; kept as pairs, by id.
        grammar: GBNF text (llama.cpp's grammars/README.md) that what is written must match, from rule
            ``root`` on; None is none. Its text is checked when a generation starts: see
            :mod:`suffixsvc_driver.gbnf`.

    Raises:
        InvalidConfigError: a value that makes no sense.
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
    grammar: str | None = None

    def __post_init__(self) -> None:
        for name, (low, high, expected) in _RANGES.items():
            value = _real(name, getattr(self, name), low, high, expected)
            if name == "temperature" and 0 < value < _LOWEST_TEMPERATURE:
                raise _senseless(name, expected, value)
            object.__setattr__(self, name, value)
        for name, least in (("top_k", 0), ("penalty_last_n", -1), ("seed", None)):
            object.__setattr__(self, name, _integer(name, getattr(self, name), least))
        object.__setattr__(self, "logit_bias", _bias_pairs(self.logit_bias))
        if self.grammar is not None and not isinstance(self.grammar, str):
            raise InvalidConfigError(
                "a grammar is a text", expected="GBNF text or None", got=type(self.grammar).__name__
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalizes(self) -> bool:
        """Whether a choice depends on the text before it, grammar aside."""
        neutral = self.repeat_penalty == 1 and self.frequency_penalty == 0 and self.presence_penalty == 0
        return self.penalty_last_n != 0 and not neutral

    @property
    def needs_text(self) -> bool:
        """Whether the logits of a position alone do not decide: penalties or a grammar."""
        return self.penalizes or self.grammar is not None


def _senseless(name: str, expected: str, got: object) -> InvalidConfigError:
    return InvalidConfigError(f"{name} makes no sense", expected=expected, got=repr(got)[:80])


def _real(name: str, value: Any, low: float, high: float, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _senseless(name, expected, value)
    try:
        number = float(value)
    except OverflowError:
        number = math.nan
    if not low <= number <= high:
        raise _senseless(name, expected, value)
    return number


def _integer(name: str, value: Any, least: int | None) -> int:
    fits = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not fits or (least is not None and value < least):
        raise _senseless(name, "an int" if least is None else f"an int >= {least}", value)
    return int(value)


def _bias_pairs(bias: Any) -> tuple[tuple[int, float], ...]:
    try:
        pairs = dict(bias)
    except (TypeError, ValueError):
        raise _senseless("logit_bias", "a mapping from token id to bias", bias) from None
    out = []
    for key, value in pairs.items():
        token = _integer("a token id of logit_bias", key, 0)
        if token > _LARGEST_ID:
            raise _senseless("a token id of logit_bias", f"0 .. {_LARGEST_ID}", token)
        banned = isinstance(value, float) and value == -math.inf
        name, expected = f"logit_bias of token {token}", f"{_WITHIN}, or -inf"
        out.append((token, value if banned else _real(name, value, -_LARGEST, _LARGEST, expected)))
    return tuple(sorted(out))


GREEDY: Final = Sampling()


def uniform(seed: int, position: int, *, second: bool = False) -> float:
    """The number in [0, 1) that belongs to a position: splitmix64 of the counter, 53 bits of it. Its
    ``second`` number is another hash of the same counter."""
    z = _mix((_mix(seed & _MASK) + position * 0x9E3779B97F4A7C15) & _MASK)
    if second:
        z = _mix(z ^ _SECOND)
    return (z >> 11) * 2.0**-53


def _mix(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def choose(logits: FloatArray, sampling: Sampling, position: int) -> int:
    """The token for absolute ``position`` (prompt included) from logits float32[n_vocab].

    Bias, penalties and grammar are not applied in here.

    Raises:
        ModelError: the logits hold NaN or infinity where it decides, or every token is banned.
    """
    best = int(logits.argmax())
    if not math.isfinite(logits[best]):
        raise _unusable(float(logits[best]))
    if sampling.greedy:
        return best
    ids, scaled = kept(logits, sampling)
    return draw(ids, scaled, uniform(sampling.seed, position))


def _unusable(best: float) -> ModelError:
    if best == -math.inf:
        return ModelError(
            "no token is left to choose",
            expected="a token that is not banned",
            got="-inf everywhere",
            remedy="Ban fewer tokens in logit_bias.",
        )
    name = "NaN" if math.isnan(best) else "infinity"
    return ModelError(
        f"the target computed {name}", expected="finite logits", got=best, remedy="Check the model file."
    )


def draw(ids: IdArray, scaled: WideArray, number: float) -> int:
    """The token that a number in [0, 1) picks from these ids, ascending, and their scaled logits."""
    index = int(np.searchsorted(_bounds(scaled), number, side="right"))
    return int(ids[min(index, len(ids) - 1)])


def _bounds(scaled: WideArray) -> WideArray:
    """Upper ends of the tokens' intervals. In order of ids, not of probability: two nearly equal tokens
    would swap places and move every boundary between them."""
    bounds: WideArray = np.cumsum(np.exp(scaled - scaled.max()))
    bounds /= bounds[-1]
    return bounds


def kept(logits: FloatArray, sampling: Sampling) -> tuple[IdArray, WideArray]:
    """What top_k, top_p and min_p leave: ids, ascending, and their logits divided by the temperature."""
    total = len(logits)
    ids = _largest(logits, sampling.top_k) if 0 < sampling.top_k < total else np.arange(total)
    scaled = logits[ids].astype(np.float64) / sampling.temperature
    if sampling.top_p < 1.0:
        at = _reaching(scaled, sampling.top_p)
        ids, scaled = ids[at], scaled[at]
    if sampling.min_p > 0.0:
        at = np.flatnonzero(scaled >= scaled.max() + math.log(sampling.min_p))
        ids, scaled = ids[at], scaled[at]
    return ids, scaled


def _largest(values: FloatArray | WideArray, count: int) -> IdArray:
    """Where the largest ``count`` are, ascending; the first ones among equals."""
    blocks = len(values) // _BLOCK
    near = None
    if count <= blocks // 2:
        # at least ``count`` values reach the count-th largest maximum of a block: ten times faster
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
    """Where the smallest set of the most probable ones is that reaches ``share``, ascending."""
    weights = np.exp(scaled - scaled.max())
    total, whole = len(scaled), weights.sum()
    few = _FEW
    while True:
        # sorting a whole vocabulary takes longer than everything else
        top = _largest(scaled, few) if few < total else np.arange(total)
        order = top[np.argsort(-scaled[top], kind="stable")]
        shares = np.cumsum(weights[order]) / whole
        if few >= total or shares[-1] >= share:
            return np.sort(order[: int(np.searchsorted(shares, share, side="left")) + 1])
        few *= 16
