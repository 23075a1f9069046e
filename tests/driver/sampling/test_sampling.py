"""Sampling: settings, random numbers, truncation, penalties and biases, against plain versions."""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc.errors import InvalidConfigError, ModelError
from suffixsvc_driver.sampling.sampler import Sampler
from suffixsvc_driver.sampling.settings import GREEDY, Sampling, sample_token, truncate, uniform
from suffixsvc_driver.targets.llama.binding import llama

# -- settings


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"temperature": -1}, "0, or a finite"),
        ({"temperature": math.nan}, "0, or a finite"),
        ({"temperature": math.inf}, "0, or a finite"),
        ({"temperature": 1e-300}, "0, or a finite"),
        ({"temperature": 10**400}, "0, or a finite"),
        ({"temperature": "0.7"}, "0, or a finite"),
        ({"temperature": False}, "0, or a finite"),
        ({"top_k": -1}, "an int >= 0"),
        ({"top_k": 4.0}, "an int >= 0"),
        ({"top_k": True}, "an int >= 0"),
        ({"top_p": 0.0}, "0 < top_p <= 1"),
        ({"top_p": 1.01}, "0 < top_p <= 1"),
        ({"top_p": math.nan}, "0 < top_p <= 1"),
        ({"min_p": -0.1}, "0 <= min_p <= 1"),
        ({"min_p": 2}, "0 <= min_p <= 1"),
        ({"seed": 1.5}, "an int"),
        ({"seed": None}, "an int"),
        ({"repeat_penalty": 0}, "1e-06 .. 1e+06"),
        ({"repeat_penalty": math.inf}, "1e-06 .. 1e+06"),
        ({"frequency_penalty": math.nan}, "-1e+06 .. 1e+06"),
        ({"presence_penalty": -1e9}, "-1e+06 .. 1e+06"),
        ({"penalty_last_n": -2}, "an int >= -1"),
        ({"logit_bias": {-1: 1.0}}, "an int >= 0"),
        ({"logit_bias": {2**31: 1.0}}, "0 .. 2147483647"),
        ({"logit_bias": {"a": 1.0}}, "an int >= 0"),
        ({"logit_bias": {1: math.nan}}, "or -inf"),
        ({"logit_bias": {1: math.inf}}, "or -inf"),
        ({"logit_bias": [1, 2]}, "a mapping"),
        ({"logit_bias": 7}, "a mapping"),
        ({"grammar": b"root ::= 1"}, "GBNF text"),
    ],
    ids=str,
)
def test_invalid_settings_are_refused(wrong: dict[str, object], expected: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        Sampling(**wrong)  # type: ignore[arg-type]  # that is the point
    assert expected in str(caught.value)
    assert caught.value.got is not None


def test_settings_are_values() -> None:
    assert Sampling() == GREEDY
    assert GREEDY.greedy
    assert not GREEDY.needs_text
    numbers = Sampling(temperature=np.float32(0.5), top_k=np.int64(3), top_p=1)  # type: ignore[arg-type]  # numpy's
    assert repr(numbers) == repr(Sampling(0.5, 3))
    bias = Sampling(logit_bias={7: -math.inf, 2: 1})
    assert bias.logit_bias == ((2, 1.0), (7, -math.inf))
    assert bias == Sampling(logit_bias=((7, -math.inf), (2, 1.0)))
    assert hash(bias) == hash(Sampling(logit_bias=bias.logit_bias))
    assert not bias.needs_text
    assert Sampling(presence_penalty=0.1).needs_text
    assert not Sampling(presence_penalty=0.1, penalty_last_n=0).needs_text
    assert Sampling(grammar='root ::= "a"').needs_text


# -- random numbers


def test_random_numbers_are_uniform_and_differ_by_position() -> None:
    numbers = np.array([uniform(7, i) for i in range(20_000)])
    assert 0 <= numbers.min() < numbers.max() < 1
    counts = np.histogram(numbers, 20, (0, 1))[0]
    assert (np.abs(counts - 1000) < 150).all()
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03
    assert uniform(7, 5) != uniform(8, 5)
    # pinned: a seed must always give the same text
    assert [uniform(7, 5), uniform(-1, 3)] == [0.18228523894280202, 0.9269618291063265]
    assert uniform(-1, 3) == uniform(2**64 - 1, 3)


def test_the_second_number_is_independent_of_the_first() -> None:
    for seed in (0, 7):
        first = np.array([uniform(seed, i) for i in range(20_000)])
        second = np.array([uniform(seed, i, second=True) for i in range(20_000)])
        pairs = np.histogram2d(first, second, 10, ((0, 1), (0, 1)))[0]
        chi2 = float(((pairs - 200) ** 2 / 200).sum())
        assert 50 < chi2 < 160, "99 degrees of freedom"
        for ahead in range(3):
            assert abs(np.corrcoef(first[ahead:], second[: len(second) - ahead])[0, 1]) < 0.03


# -- truncation and sampling


def test_greedy_takes_the_lowest_id_on_ties() -> None:
    logits = np.array([1, 3, 3, 2], np.float32)
    assert sample_token(logits, GREEDY, 0) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite(bad: float) -> None:
    logits = np.full(4, bad, np.float32)
    for sampling in (GREEDY, Sampling(1.0), Sampling(1.0, 2, 0.9, min_p=0.1)):
        with pytest.raises(ModelError):
            sample_token(logits, sampling, 0)


#: hash of 360 sampled tokens
GOLDEN = {
    (0.0,): "65802daf429f5f6f",
    (1.0,): "b4a1f9617b7ea5b1",
    (0.7, 40, 0.95, 2): "d24ad197c8801773",
    (1.3, 0, 0.8, -5): "421c590ba15837d6",
    (0.3, 5, 1.0, 9): "d70abcdf5b648e64",
    (2.0, 1, 1.0, 1): "65802daf429f5f6f",
    (0.01, 0, 1.0, 2**70): "53a7c2a586e91669",
    (0.6, 300, 0.999, 4): "0f69440e2e744d78",
}


@pytest.mark.parametrize("values", GOLDEN, ids=str)
def test_sampled_tokens_never_change(values: tuple[float, ...]) -> None:
    sampling = Sampling(*values)  # type: ignore[arg-type]  # in order
    rng = np.random.default_rng(7)
    tokens = []
    for size, count in ((300, 300), (20_000, 60)):
        for i in range(count):
            logits = (rng.standard_normal(size) * 3).astype(np.float32)
            if i % 3 == 0:
                logits = np.round(logits)  # ties
            tokens.append(sample_token(logits, sampling, i))
    assert hashlib.sha256(np.array(tokens, np.int32).tobytes()).hexdigest()[:16] == GOLDEN[values]


def plain_truncate(logits: Sequence[float], sampling: Sampling) -> tuple[list[int], float]:
    """Return the kept tokens by the definitions, and how close top_p or min_p was to another result."""
    top = max(logits)
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[: sampling.top_k or len(logits)]
    weights = {i: math.exp((logits[i] - top) / sampling.temperature) for i in order}
    total = sum(weights.values())
    out, reached, close = [], 0.0, 1.0
    for i in order:
        close = min(close, abs(reached - sampling.top_p), abs(weights[i] - sampling.min_p))
        if reached < sampling.top_p and weights[i] >= sampling.min_p:
            out.append(i)
        reached += weights[i] / total
    return sorted(out), close


@given(
    logits=st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=30),
    temperature=st.floats(0.1, 3),
    top_k=st.integers(0, 35),
    top_p=st.floats(0.05, 1),
    min_p=st.floats(0, 1),
    position=st.integers(0, 1000),
)
def test_truncation_and_sampling_against_a_plain_version(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, position: int
) -> None:
    sampling = Sampling(temperature, top_k, top_p, 3, min_p)
    array = np.array(logits, np.float32)
    expected, close = plain_truncate([float(x) for x in array], sampling)
    ids, _ = truncate(array, sampling)
    token = sample_token(array, sampling, position)
    assert token in ids
    if close > 1e-9:  # rounding decides
        assert ids.tolist() == expected
    weights = [math.exp(float(array[i]) / temperature) for i in ids]
    ends = np.cumsum(weights) / sum(weights)
    at = ids.tolist().index(token)
    assert ends[at] - weights[at] / sum(weights) - 1e-9 <= uniform(3, position) <= ends[at] + 1e-9


def test_large_vocabularies_are_truncated_like_small_ones() -> None:
    """In a large vocabulary the largest logits are found in blocks, and top_p sorts a few of them first."""
    rng = np.random.default_rng(3)
    for trial in range(60):
        logits = (rng.standard_normal(9000) * rng.choice([0.01, 1, 3])).astype(np.float32)
        if trial % 2:
            logits = np.round(logits)
        sampling = Sampling(
            1.0, int(rng.choice([0, 1, 40, 8999])), float(rng.choice([1, 0.9, 0.1])), 0, rng.choice([0, 0.1])
        )
        expected, close = plain_truncate(logits.tolist(), sampling)
        ids, scaled = truncate(logits, sampling)
        if close > 1e-9:
            assert ids.tolist() == expected
        assert (scaled == logits[ids]).all()


def test_sampled_frequencies_follow_the_distribution() -> None:
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    tokens = [sample_token(logits, Sampling(1.0, seed=1), i) for i in range(10_000)]
    shares = np.bincount(tokens) / len(tokens)
    assert shares == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.02)
    tokens = [sample_token(logits, Sampling(1.0, seed=1, min_p=0.45), i) for i in range(10_000)]
    shares = np.bincount(tokens) / len(tokens)
    assert shares == pytest.approx([0, 2 / 9, 3 / 9, 4 / 9], abs=0.02)


# -- penalties and biases


@pytest.mark.parametrize("last", [1, 5, 64])
def test_penalties_are_llama_cpps(last: int) -> None:
    """The logits equal those of llama.cpp's sampler except for the last bit."""
    lib = llama()
    rng = np.random.default_rng(last)
    for repeat, frequency, presence in ((1.3, 0.0, 0.0), (0.8, 0.5, -0.25), (1.0, 0.1, 0.7)):
        theirs = lib.llama_sampler_init_penalties(50, last, repeat, frequency, presence)
        prompt = rng.integers(0, 50, 20).tolist()
        ours = Sampler(Sampling(0, 0, 1, 0, 0, repeat, frequency, presence, last), 50, prompt)
        for token in prompt:
            lib.llama_sampler_accept(theirs, token)
        for _ in range(60):
            logits = (rng.standard_normal(50) * 5).astype(np.float32)
            data = (lib.llama_token_data * 50)()
            for i in range(50):
                data[i] = lib.llama_token_data(i, logits[i], 0)
            candidates = lib.llama_token_data_array(data=data, size=50, selected=-1, sorted=False)
            lib.llama_sampler_apply(theirs, ctypes.byref(candidates))
            expected = np.array([d.logit for d in sorted(data, key=lambda d: d.id)], np.float32)
            before = logits.copy()
            np.testing.assert_allclose(ours.adjusted(logits), expected, rtol=3e-7, atol=1e-6)
            assert (logits == before).all(), "the target's own logits are not written into"
            token = int(rng.integers(0, 50))
            lib.llama_sampler_accept(theirs, token)
            ours.accept(token)
        lib.llama_sampler_free(theirs)


@given(
    text=st.lists(st.integers(0, 5), max_size=40),
    prompt=st.integers(0, 40),
    last=st.integers(-1, 10),
    repeat=st.floats(0.5, 2),
    frequency=st.floats(-1, 1),
    presence=st.floats(-1, 1),
    bias=st.dictionaries(st.integers(0, 6), st.floats(-3, 3), max_size=3),
)
def test_penalties_and_biases_against_a_plain_version(
    text: list[int],
    prompt: int,
    last: int,
    repeat: float,
    frequency: float,
    presence: float,
    bias: dict[int, float],
) -> None:
    """Bias first; then by the occurrences among the last tokens, wherever the prompt ends."""
    sampling = Sampling(
        repeat_penalty=repeat,
        frequency_penalty=frequency,
        presence_penalty=presence,
        penalty_last_n=last,
        logit_bias=bias,
    )
    sampler = Sampler(sampling, 7, text[:prompt])
    for token in text[prompt:]:
        sampler.accept(token)
    logits = np.array([-2, -1, 0, 1, 2, 3, 4], np.float32)
    window = text if last < 0 else text[max(0, len(text) - last) :]
    expected = []
    for token, logit in enumerate(logits.tolist()):
        value = logit + bias.get(token, 0.0)
        if token in window:
            value = value / repeat if value > 0 else value * repeat
            value -= window.count(token) * frequency + presence
        expected.append(value)
    np.testing.assert_allclose(sampler.adjusted(logits), expected, rtol=1e-5, atol=1e-5)


def test_banned_tokens_never_come() -> None:
    logits = np.array([1, 5, 5, 2], np.float32)
    for sampling in (Sampling(logit_bias={1: -math.inf}), Sampling(1.0, 2, logit_bias={1: -math.inf})):
        sampler = Sampler(sampling, 4)
        assert 1 not in {sampler.sample(logits, i) for i in range(300)}
    nothing = Sampler(Sampling(logit_bias=dict.fromkeys(range(4), -math.inf)), 4)
    with pytest.raises(ModelError, match="must leave a token that is not banned"):
        nothing.sample(logits, 0)


def test_a_bias_outside_the_vocabulary() -> None:
    with pytest.raises(InvalidConfigError, match=r"expected 0 \.\. 3; got 4"):
        Sampler(Sampling(logit_bias={4: 1.0}), 4)
