"""Which tokens rounding may have swapped: all that a little noise can do is excused, and little else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from suffixsvc_driver.chooser import Chooser
from suffixsvc_driver.exactness import MAX_DISTANCE, MAX_GAP
from suffixsvc_driver.near_ties import near_tie_distance
from suffixsvc_driver.sampling import IdArray, Sampling, choose, kept, uniform


class Some:
    """A grammar that permits these tokens, always."""

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


def chooser_of(vocab: int, tokens: set[int] | None = None, **values: Any) -> Chooser:
    if tokens is None:
        return Chooser(Sampling(**values), vocab)
    return Chooser(Sampling(grammar="root ::= .", **values), vocab, (), Some(tokens))


def distance(logits: Sequence[float], chooser: Chooser, position: int, token: int) -> float:
    array = np.array(logits, np.float32)
    return near_tie_distance(array, chooser, position, token, gap=MAX_GAP, share=MAX_DISTANCE)


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
def test_what_noise_can_do_is_a_near_tie(values: dict[str, Any], grammar: bool) -> None:
    """Logits with a little noise, many near-ties and many tokens near every cut-off: whatever other token is
    chosen then, its distance is small. And the one that is chosen without noise has none."""
    rng = np.random.default_rng(len(str(values)) + grammar)
    swapped = at_a_cut = 0
    for trial in range(250):
        logits = (rng.standard_normal(24) * rng.choice([0.3, 1.5, 4])).astype(np.float32)
        if trial % 3 == 0:
            logits = np.round(logits)
        tokens = set(rng.choice(24, 9, replace=False).tolist()) if grammar else None
        chooser = chooser_of(24, tokens, temperature=float(rng.choice([0.5, 1, 1.5])), seed=trial, **values)
        noisy = logits + rng.uniform(-0.02, 0.02, 24).astype(np.float32)
        alone, other = chooser.choose(logits, trial), chooser.choose(noisy, trial)
        assert distance(logits.tolist(), chooser, trial, alone) == 0.0
        assert distance(logits.tolist(), chooser, trial, other) <= MAX_DISTANCE
        swapped += alone != other
        at_a_cut += other not in kept(logits, chooser.sampling)[0]
    assert swapped > 0 or values == {"top_k": 1}
    if values and not grammar:
        assert at_a_cut > 0 or "min_p" in values or values == {"top_p": 0.01}


@pytest.mark.parametrize("grammar", [False, True], ids=["free", "grammar"])
@pytest.mark.parametrize("values", SETTINGS, ids=str)
def test_other_tokens_are_not_excused(values: dict[str, Any], grammar: bool) -> None:
    """Of tokens taken at random where one is chosen clearly, few are near ties."""
    rng = np.random.default_rng(5)
    excused = tried = 0
    for trial in range(200):
        logits = (rng.standard_normal(24) * 4).astype(np.float32)
        tokens = set(rng.choice(24, 9, replace=False).tolist()) if grammar else None
        chooser = chooser_of(24, tokens, temperature=1.0, seed=trial, **values)
        token = int(rng.choice(sorted(tokens or set(range(24)))))
        if token != chooser.choose(logits, trial):
            tried += 1
            excused += distance(logits.tolist(), chooser, trial, token) <= MAX_DISTANCE
    assert tried > 80
    assert excused / tried < 0.2


@given(
    st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=20),
    st.integers(0, 1000),
    st.integers(0, 5),
    st.floats(0, 0.9),
)
def test_without_slack_it_is_the_distance_to_the_interval(
    logits: list[float], position: int, top_k: int, min_p: float
) -> None:
    array = np.array(logits, np.float32)
    sampling = Sampling(0.9, top_k, min_p=min_p, seed=1)
    chooser = Chooser(sampling, len(logits))
    ids, scaled = kept(array, sampling)
    ends = np.cumsum(np.exp(scaled - scaled.max()))
    ends /= ends[-1]
    number = uniform(1, position)
    assert choose(array, sampling, position) in ids
    ties = len(set(array.tolist())) < len(logits)
    for at, token in enumerate(ids):
        low = ends[at - 1] if at else 0.0
        plain = max(0.0, low - number, number - ends[at])
        here = near_tie_distance(array, chooser, position, int(token), gap=0.0, share=0.0)
        assert here <= plain + 1e-9
        if not ties and min_p == 0:
            assert here == pytest.approx(plain, abs=1e-9)
    for token in set(range(len(logits))) - set(ids.tolist()):
        if not ties:
            assert near_tie_distance(array, chooser, position, token, gap=0.0, share=0.0) == math.inf


def position_with(low: float, high: float, *, seed: int = 1, second: bool = False, start: int = 0) -> int:
    """One whose number is in there."""
    return next(i for i in range(start, 10**6) if low <= uniform(seed, i, second=second) < high)


def test_a_token_that_top_k_just_dropped() -> None:
    """The third and the fourth are nearly equal: which of them is kept moves all boundaries."""
    logits = [0.0, 2.0, 1.0, 0.99]
    chooser = chooser_of(4, None, temperature=1.0, top_k=3, seed=1)
    last = position_with(0.95, 1.0)
    # 0 is dropped by far, 3 has the last interval
    assert distance(logits, chooser, last, 3) == 0.0
    assert distance([-9.0, *logits[1:]], chooser, last, 0) == math.inf
    two = chooser_of(4, None, temperature=1.0, top_k=2, seed=1)
    # kept are 1 and 2; 3 was dropped by a hair, and would have been picked by numbers close to 1
    assert two.choose(np.array(logits, np.float32), last) == 2
    assert distance(logits, two, last, 3) == 0.0
    first = position_with(0.0, 0.5)
    assert distance(logits, two, first, 3) > 0.2


def test_a_share_that_top_p_just_reached() -> None:
    """0.6 + 0.3 reach 0.9 or do not, by a hair; no two logits are near."""
    logits = np.log([0.6, 0.3, 0.1]).tolist()
    for top_p in (0.899, 0.901):
        chooser = chooser_of(3, None, temperature=1.0, top_p=top_p, seed=1)
        last = position_with(0.95, 1.0)
        assert distance(logits, chooser, last, 1) == 0.0
        assert distance(logits, chooser, last, 2) == 0.0
    clear = chooser_of(3, None, temperature=1.0, top_p=0.7, seed=1)
    assert distance(logits, clear, last, 2) == math.inf


def test_a_probability_that_min_p_just_dropped() -> None:
    logits = np.log([0.5, 0.3, 0.049, 0.001]).tolist()
    chooser = chooser_of(4, None, temperature=1.0, min_p=0.1, seed=1)
    last = position_with(0.98, 1.0)
    assert chooser.choose(np.array(logits, np.float32), last) == 1
    assert distance(logits, chooser, last, 2) == 0.0
    assert distance(logits, chooser, last, 3) == math.inf


def test_a_choice_that_was_just_refused() -> None:
    """Token 0 is refused, tokens 1 and 2 are permitted. A first number just inside token 0 gives the second
    number's choice, one just outside token 1."""
    logits = np.log([0.5, 0.25, 0.25]).tolist()
    chooser = chooser_of(3, {1, 2}, temperature=1.0, seed=1)
    near = next(i for i in range(10**6) if 0.5 <= uniform(1, i) < 0.51 and uniform(1, i, second=True) > 0.6)
    assert chooser.choose(np.array(logits, np.float32), near) == 1
    assert distance(logits, chooser, near, 2) == pytest.approx(uniform(1, near) - 0.5, abs=1e-6)
    far = next(i for i in range(10**6) if 0.7 < uniform(1, i) < 0.74 and uniform(1, i, second=True) > 0.6)
    assert distance(logits, chooser, far, 2) == pytest.approx(0.75 - uniform(1, far), abs=1e-6), "by boundary"
    wrong = next(i for i in range(10**6) if 0.5 <= uniform(1, i) < 0.51 and uniform(1, i, second=True) < 0.3)
    # the second number is further off than the boundary of the first
    assert distance(logits, chooser, wrong, 2) == pytest.approx(0.75 - uniform(1, wrong), abs=1e-6)


def test_banned_tokens_are_in_nobodys_way() -> None:
    chooser = Chooser(Sampling(1.0, logit_bias={0: -math.inf, 1: -math.inf}), 4)
    logits = np.zeros(4, np.float32)
    for position in range(50):
        token = chooser.choose(logits, position)
        assert near_tie_distance(logits, chooser, position, token, gap=0.5, share=0.05) == 0.0
