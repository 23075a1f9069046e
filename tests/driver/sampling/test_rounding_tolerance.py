"""Rounding tolerance: every effect of small noise is within it, and few other tokens are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc_driver.decode.exactness import MAX_DISTANCE, MAX_GAP
from suffixsvc_driver.sampling.rounding_tolerance import near_tie_distance
from suffixsvc_driver.sampling.sampler import Sampler
from suffixsvc_driver.sampling.settings import IdArray, Sampling, sample_token, truncate, uniform


class Some:
    """Grammar that always permits these tokens."""

    def __init__(self, tokens: set[int]) -> None:
        self.tokens = tokens

    def permits(self, ids: IdArray) -> npt.NDArray[np.bool_]:
        return np.array([int(i) in self.tokens for i in ids], np.bool_)

    def permits_one(self, token: int) -> bool:
        return token in self.tokens

    def accept(self, token: int) -> None:
        assert token in self.tokens

    def allowed(self, drafted: Sequence[int]) -> int:
        return next((i for i, t in enumerate(drafted) if t not in self.tokens), len(drafted))


def sampler_of(vocab: int, tokens: set[int] | None = None, **values: Any) -> Sampler:
    if tokens is None:
        return Sampler(Sampling(**values), vocab)
    return Sampler(Sampling(grammar="root ::= .", **values), vocab, (), Some(tokens))


def distance(logits: Sequence[float], sampler: Sampler, position: int, token: int) -> float:
    array = np.array(logits, np.float32)
    return near_tie_distance(array, sampler, position, token, gap=MAX_GAP, share=MAX_DISTANCE)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"top_k": 5},
    {"top_p": 0.9},
    {"min_p": 0.1},
    {"top_k": 12, "top_p": 0.8},
    {"top_k": 12, "top_p": 0.95, "min_p": 0.05},
    {"top_p": 0.01},
    {"top_k": 1},
]


@pytest.mark.parametrize("grammar", [False, True], ids=["free", "grammar"])
@pytest.mark.parametrize("values", SETTINGS, ids=str)
def test_every_effect_of_noise_is_a_near_tie(values: dict[str, Any], grammar: bool) -> None:
    """Logits with small noise, many near-ties and many tokens near every cut-off: any token sampled then
    has a small distance, and the token sampled without noise has none."""
    rng = np.random.default_rng(len(str(values)) + grammar)
    swapped = at_a_cut = 0
    for trial in range(250):
        logits = (rng.standard_normal(24) * rng.choice([0.3, 1.5, 4])).astype(np.float32)
        if trial % 3 == 0:
            logits = np.round(logits)
        tokens = set(rng.choice(24, 9, replace=False).tolist()) if grammar else None
        sampler = sampler_of(24, tokens, temperature=float(rng.choice([0.5, 1, 1.5])), seed=trial, **values)
        noisy = logits + rng.uniform(-0.02, 0.02, 24).astype(np.float32)
        alone, other = sampler.sample(logits, trial), sampler.sample(noisy, trial)
        assert distance(logits.tolist(), sampler, trial, alone) == 0.0
        assert distance(logits.tolist(), sampler, trial, other) <= MAX_DISTANCE
        swapped += alone != other
        at_a_cut += other not in truncate(logits, sampler.sampling)[0]
    assert swapped > 0 or values == {"top_k": 1}
    if values and not grammar:
        assert at_a_cut > 0 or "min_p" in values or values == {"top_p": 0.01}


@pytest.mark.parametrize("grammar", [False, True], ids=["free", "grammar"])
@pytest.mark.parametrize("values", SETTINGS, ids=str)
def test_other_tokens_are_not_excused(values: dict[str, Any], grammar: bool) -> None:
    """Of random tokens at positions with a clear result, few are near-ties."""
    rng = np.random.default_rng(5)
    excused = tried = 0
    for trial in range(200):
        logits = (rng.standard_normal(24) * 4).astype(np.float32)
        tokens = set(rng.choice(24, 9, replace=False).tolist()) if grammar else None
        sampler = sampler_of(24, tokens, temperature=1.0, seed=trial, **values)
        token = int(rng.choice(sorted(tokens or set(range(24)))))
        if token != sampler.sample(logits, trial):
            tried += 1
            excused += distance(logits.tolist(), sampler, trial, token) <= MAX_DISTANCE
    assert tried > 80
    assert excused / tried < 0.2


@given(
    st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=20),
    st.integers(0, 1000),
    st.integers(0, 5),
    st.floats(0, 0.9),
)
def test_without_tolerance_it_is_the_distance_to_the_interval(
    logits: list[float], position: int, top_k: int, min_p: float
) -> None:
    array = np.array(logits, np.float32)
    sampling = Sampling(0.9, top_k, min_p=min_p, seed=1)
    sampler = Sampler(sampling, len(logits))
    ids, scaled = truncate(array, sampling)
    ends = np.cumsum(np.exp(scaled - scaled.max()))
    ends /= ends[-1]
    number = uniform(1, position)
    assert sample_token(array, sampling, position) in ids
    ties = len(set(array.tolist())) < len(logits)
    for at, token in enumerate(ids):
        low = ends[at - 1] if at else 0.0
        plain = max(0.0, low - number, number - ends[at])
        here = near_tie_distance(array, sampler, position, int(token), gap=0.0, share=0.0)
        assert here <= plain + 1e-9
        if not ties and min_p == 0:
            assert here == pytest.approx(plain, abs=1e-9)
    for token in set(range(len(logits))) - set(ids.tolist()):
        if not ties:
            assert near_tie_distance(array, sampler, position, token, gap=0.0, share=0.0) == math.inf


def position_with(low: float, high: float, *, seed: int = 1, second: bool = False, start: int = 0) -> int:
    """Return a position whose random number is in the interval."""
    return next(i for i in range(start, 10**6) if low <= uniform(seed, i, second=second) < high)


def test_a_token_that_top_k_just_dropped() -> None:
    """The third and the fourth are nearly equal: which of them is kept moves all boundaries."""
    logits = [0.0, 2.0, 1.0, 0.99]
    sampler = sampler_of(4, None, temperature=1.0, top_k=3, seed=1)
    last = position_with(0.95, 1.0)
    # 0 is far from being kept, 3 has the last interval
    assert distance(logits, sampler, last, 3) == 0.0
    assert distance([-9.0, *logits[1:]], sampler, last, 0) == math.inf
    two = sampler_of(4, None, temperature=1.0, top_k=2, seed=1)
    # 1 and 2 are kept; 3 is removed narrowly, and numbers close to 1 would have sampled it
    assert two.sample(np.array(logits, np.float32), last) == 2
    assert distance(logits, two, last, 3) == 0.0
    first = position_with(0.0, 0.5)
    assert distance(logits, two, first, 3) > 0.2


def test_a_share_that_top_p_just_reached() -> None:
    """0.6 + 0.3 reaches 0.9 or not, by rounding; no two logits are close."""
    logits = np.log([0.6, 0.3, 0.1]).tolist()
    for top_p in (0.899, 0.901):
        sampler = sampler_of(3, None, temperature=1.0, top_p=top_p, seed=1)
        last = position_with(0.95, 1.0)
        assert distance(logits, sampler, last, 1) == 0.0
        assert distance(logits, sampler, last, 2) == 0.0
    clear = sampler_of(3, None, temperature=1.0, top_p=0.7, seed=1)
    assert distance(logits, clear, last, 2) == math.inf


def test_a_probability_that_min_p_just_dropped() -> None:
    logits = np.log([0.5, 0.3, 0.049, 0.001]).tolist()
    sampler = sampler_of(4, None, temperature=1.0, min_p=0.1, seed=1)
    last = position_with(0.98, 1.0)
    assert sampler.sample(np.array(logits, np.float32), last) == 1
    assert distance(logits, sampler, last, 2) == 0.0
    assert distance(logits, sampler, last, 3) == math.inf


def test_a_token_near_a_refused_one() -> None:
    """Token 0 is refused, tokens 1 and 2 are permitted. A first number just inside token 0 leads to the
    token of the second number, one just outside to token 1."""
    logits = np.log([0.5, 0.25, 0.25]).tolist()
    sampler = sampler_of(3, {1, 2}, temperature=1.0, seed=1)
    near = next(i for i in range(10**6) if 0.5 <= uniform(1, i) < 0.51 and uniform(1, i, second=True) > 0.6)
    assert sampler.sample(np.array(logits, np.float32), near) == 1
    assert distance(logits, sampler, near, 2) == pytest.approx(uniform(1, near) - 0.5, abs=1e-6)
    far = next(i for i in range(10**6) if 0.7 < uniform(1, i) < 0.74 and uniform(1, i, second=True) > 0.6)
    assert distance(logits, sampler, far, 2) == pytest.approx(0.75 - uniform(1, far), abs=1e-6), "by boundary"
    wrong = next(i for i in range(10**6) if 0.5 <= uniform(1, i) < 0.51 and uniform(1, i, second=True) < 0.3)
    # the second number is farther than the boundary of the first
    assert distance(logits, sampler, wrong, 2) == pytest.approx(0.75 - uniform(1, wrong), abs=1e-6)


def test_banned_tokens_have_no_effect() -> None:
    sampler = Sampler(Sampling(1.0, logit_bias={0: -math.inf, 1: -math.inf}), 4)
    logits = np.zeros(4, np.float32)
    for position in range(50):
        token = sampler.sample(logits, position)
        assert near_tie_distance(logits, sampler, position, token, gap=0.5, share=0.05) == 0.0
