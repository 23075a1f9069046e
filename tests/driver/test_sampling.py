"""Choosing a token: the settings, the numbers, what is kept, penalties, biases, and choosing again where a
grammar refuses. Each against a slow and plain version of itself."""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suffixsvc_driver.chooser import Chooser
from suffixsvc_driver.sampling import GREEDY, IdArray, Sampling, choose, kept, uniform
from suffixsvc_driver.targets.llama_binding import llama

from suffixsvc.errors import GrammarError, InvalidConfigError, ModelError
from suffixsvc.types import FloatArray

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
        ({"repeat_penalty": 0}, "1 being none"),
        ({"repeat_penalty": math.inf}, "1 being none"),
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
def test_settings_that_make_no_sense(wrong: dict[str, object], expected: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        Sampling(**wrong)  # type: ignore[arg-type]  # that is the point
    assert expected in str(caught.value)
    assert caught.value.got is not None


def test_settings_are_plain_values() -> None:
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


# -- the numbers


def test_uniform_numbers_are_uniform_and_their_own() -> None:
    numbers = np.array([uniform(7, i) for i in range(20_000)])
    assert 0 <= numbers.min() < numbers.max() < 1
    counts = np.histogram(numbers, 20, (0, 1))[0]
    assert (np.abs(counts - 1000) < 150).all()
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03
    assert uniform(7, 5) != uniform(8, 5)
    # pinned: a seed must give the same text tomorrow
    assert [uniform(7, 5), uniform(-1, 3)] == [0.18228523894280202, 0.9269618291063265]
    assert uniform(-1, 3) == uniform(2**64 - 1, 3)


def test_the_second_number_does_not_know_the_first() -> None:
    for seed in (0, 7):
        first = np.array([uniform(seed, i) for i in range(20_000)])
        second = np.array([uniform(seed, i, second=True) for i in range(20_000)])
        pairs = np.histogram2d(first, second, 10, ((0, 1), (0, 1)))[0]
        chi2 = float(((pairs - 200) ** 2 / 200).sum())
        assert 50 < chi2 < 160, "99 degrees of freedom"
        for ahead in range(3):
            assert abs(np.corrcoef(first[ahead:], second[: len(second) - ahead])[0, 1]) < 0.03


# -- what is kept, and chosen


def test_greedy_takes_the_lowest_id_on_ties() -> None:
    logits = np.array([1, 3, 3, 2], np.float32)
    assert choose(logits, GREEDY, 0) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_decide_nothing(bad: float) -> None:
    logits = np.full(4, bad, np.float32)
    for sampling in (GREEDY, Sampling(1.0), Sampling(1.0, 2, 0.9, min_p=0.1)):
        with pytest.raises(ModelError):
            choose(logits, sampling, 0)


#: hash of 360 choices: what they were before there were penalties and grammars
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
def test_choices_never_change(values: tuple[float, ...]) -> None:
    sampling = Sampling(*values)  # type: ignore[arg-type]  # in order
    rng = np.random.default_rng(7)
    tokens = []
    for size, count in ((300, 300), (20_000, 60)):
        for i in range(count):
            logits = (rng.standard_normal(size) * 3).astype(np.float32)
            if i % 3 == 0:
                logits = np.round(logits)  # ties
            tokens.append(choose(logits, sampling, i))
    assert hashlib.sha256(np.array(tokens, np.int32).tobytes()).hexdigest()[:16] == GOLDEN[values]


def plainly_kept(logits: Sequence[float], sampling: Sampling) -> tuple[list[int], float]:
    """By the definitions, and how close top_p or min_p was to deciding otherwise."""
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
def test_what_is_kept_and_chosen_against_a_plain_version(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, position: int
) -> None:
    sampling = Sampling(temperature, top_k, top_p, 3, min_p)
    array = np.array(logits, np.float32)
    expected, close = plainly_kept([float(x) for x in array], sampling)
    ids, _ = kept(array, sampling)
    token = choose(array, sampling, position)
    assert token in ids
    if close > 1e-9:  # rounding decides
        assert ids.tolist() == expected
    weights = [math.exp(float(array[i]) / temperature) for i in ids]
    ends = np.cumsum(weights) / sum(weights)
    at = ids.tolist().index(token)
    assert ends[at] - weights[at] / sum(weights) - 1e-9 <= uniform(3, position) <= ends[at] + 1e-9


def test_large_vocabularies_are_cut_as_small_ones() -> None:
    """Where there are many tokens the largest are found in blocks, and top_p sorts a few of them first."""
    rng = np.random.default_rng(3)
    for trial in range(60):
        logits = (rng.standard_normal(9000) * rng.choice([0.01, 1, 3])).astype(np.float32)
        if trial % 2:
            logits = np.round(logits)
        sampling = Sampling(
            1.0, int(rng.choice([0, 1, 40, 8999])), float(rng.choice([1, 0.9, 0.1])), 0, rng.choice([0, 0.1])
        )
        expected, close = plainly_kept(logits.tolist(), sampling)
        ids, scaled = kept(logits, sampling)
        if close > 1e-9:
            assert ids.tolist() == expected
        assert (scaled == logits[ids]).all()


def test_sampled_frequencies_follow_the_distribution() -> None:
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    tokens = [choose(logits, Sampling(1.0, seed=1), i) for i in range(10_000)]
    shares = np.bincount(tokens) / len(tokens)
    assert shares == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.02)
    tokens = [choose(logits, Sampling(1.0, seed=1, min_p=0.45), i) for i in range(10_000)]
    shares = np.bincount(tokens) / len(tokens)
    assert shares == pytest.approx([0, 2 / 9, 3 / 9, 4 / 9], abs=0.02)


# -- penalties and biases


@pytest.mark.parametrize("last", [1, 5, 64])
def test_penalties_are_llama_cpps(last: int) -> None:
    """The same logits as its sampler, but for the last bit."""
    lib = llama()
    rng = np.random.default_rng(last)
    for repeat, frequency, presence in ((1.3, 0.0, 0.0), (0.8, 0.5, -0.25), (1.0, 0.1, 0.7)):
        theirs = lib.llama_sampler_init_penalties(50, last, repeat, frequency, presence)
        prompt = rng.integers(0, 50, 20).tolist()
        ours = Chooser(Sampling(0, 0, 1, 0, 0, repeat, frequency, presence, last), 50, prompt)
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
    """Bias first; then by how often a token is among the last ones, wherever the prompt ends."""
    sampling = Sampling(
        repeat_penalty=repeat,
        frequency_penalty=frequency,
        presence_penalty=presence,
        penalty_last_n=last,
        logit_bias=bias,
    )
    chooser = Chooser(sampling, 7, text[:prompt])
    for token in text[prompt:]:
        chooser.accept(token)
    logits = np.array([-2, -1, 0, 1, 2, 3, 4], np.float32)
    window = text if last < 0 else text[max(0, len(text) - last) :]
    expected = []
    for token, logit in enumerate(logits.tolist()):
        value = logit + bias.get(token, 0.0)
        if token in window:
            value = value / repeat if value > 0 else value * repeat
            value -= window.count(token) * frequency + presence
        expected.append(value)
    np.testing.assert_allclose(chooser.adjusted(logits), expected, rtol=1e-5, atol=1e-5)


def test_banned_tokens_never_come() -> None:
    logits = np.array([1, 5, 5, 2], np.float32)
    for sampling in (Sampling(logit_bias={1: -math.inf}), Sampling(1.0, 2, logit_bias={1: -math.inf})):
        chooser = Chooser(sampling, 4)
        assert 1 not in {chooser.choose(logits, i) for i in range(300)}
    nothing = Chooser(Sampling(logit_bias=dict.fromkeys(range(4), -math.inf)), 4)
    with pytest.raises(ModelError, match="no token is left"):
        nothing.choose(logits, 0)


def test_a_bias_outside_the_vocabulary() -> None:
    with pytest.raises(InvalidConfigError, match=r"expected 0 \.\. 3; got 4"):
        Chooser(Sampling(logit_bias={4: 1.0}), 4)


# -- choosing again


class Only:
    """A grammar that permits these tokens, always."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = set(tokens)
        self.asked = 0

    def permits(self, ids: IdArray) -> npt.NDArray[np.bool_]:
        self.asked += len(ids)
        return np.array([int(i) in self.tokens for i in ids], np.bool_)

    def permits_one(self, token: int) -> bool:
        return token in self.tokens

    def accept(self, token: int) -> None:
        if token not in self.tokens:
            raise GrammarError("not permitted")

    def allowed(self, drafted: Sequence[int]) -> int:
        return next((i for i, t in enumerate(drafted) if t not in self.tokens), len(drafted))


def with_grammar(grammar: Only, vocab: int, **values: float) -> Chooser:
    return Chooser(Sampling(grammar="root ::= .", **values), vocab, (), grammar)  # type: ignore[arg-type]  # mixed


@given(
    logits=st.lists(st.integers(-3, 3), min_size=1, max_size=100),
    permitted=st.sets(st.integers(0, 99), min_size=1),
)
def test_greedy_takes_the_best_that_is_permitted(logits: list[int], permitted: set[int]) -> None:
    inside = [i for i in sorted(permitted) if i < len(logits)]
    chooser = with_grammar(Only(*inside), len(logits))
    array = np.array(logits, np.float32)
    if inside:
        assert chooser.choose(array, 0) == max(inside, key=lambda i: (logits[i], -i))
    else:
        with pytest.raises(GrammarError, match="position 0"):
            chooser.choose(array, 0)


def test_greedy_asks_about_few_tokens_first() -> None:
    rng = np.random.default_rng(1)
    logits = rng.standard_normal(50_000).astype(np.float32)
    order = np.argsort(-logits)
    for rank, at_most in ((0, 0), (5, 64), (1500, 64 + 2048), (40_000, 64 + 2048 + 50_000)):
        grammar = Only(int(order[rank]), int(order[-1]))
        assert with_grammar(grammar, 50_000).choose(logits, 0) == order[rank]
        assert grammar.asked <= at_most


def chi2(tokens: list[int], expected: dict[int, float]) -> float:
    """In standard deviations from what chance gives."""
    counts = np.bincount(tokens, minlength=max(expected) + 1)
    assert set(np.flatnonzero(counts)) <= set(expected)
    n = len(tokens)
    total = sum((counts[t] - n * p) ** 2 / (n * p) for t, p in expected.items())
    freedom = len(expected) - 1
    return float((total - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize("values", [{}, {"top_k": 6}, {"top_p": 0.7}, {"min_p": 0.35}], ids=str)
def test_a_refused_choice_is_made_again_among_what_is_kept(values: dict[str, float]) -> None:
    """p(t) / P over the kept tokens, as if p were sampled until the grammar agrees. What llama.cpp does, to
    keep tokens anew from the permitted ones alone, is another distribution, and is told apart here."""
    logits = np.log(np.array([4, 9, 1, 7, 2, 6, 3, 5, 8], np.float32))
    grammar = Only(0, 2, 3, 5, 6)
    chooser = with_grammar(grammar, 9, temperature=1.0, seed=5, **values)
    ids, scaled = kept(logits, chooser.sampling)
    weights = {int(i): math.exp(s) for i, s in zip(ids, scaled, strict=True) if int(i) in grammar.tokens}
    share = {i: w / sum(weights.values()) for i, w in weights.items()}
    tokens = [chooser.choose(logits, i) for i in range(8000)]
    assert abs(chi2(tokens, share)) < 4
    if not values:
        return

    def llama_cpps(position: int) -> int:
        token = choose(logits, chooser.sampling, position)
        if token in grammar.tokens:
            return token
        masked = np.where([i in grammar.tokens for i in range(9)], logits, -np.inf).astype(np.float32)
        return choose(masked, chooser.sampling, position + 1_000_000)

    theirs = [llama_cpps(i) for i in range(8000)]
    assert set(theirs) > set(share)


def test_nothing_that_is_kept_is_permitted() -> None:
    """Then the settings apply to the permitted tokens alone: top_k of those."""
    logits = np.log(np.array([4, 900, 1, 700, 2, 600, 3, 500, 800], np.float32))
    chooser = with_grammar(Only(0, 2, 4, 6), 9, temperature=1.0, top_k=3, seed=2)
    tokens = [chooser.choose(logits, i) for i in range(8000)]
    assert abs(chi2(tokens, {0: 4 / 9, 6: 3 / 9, 4: 2 / 9})) < 4


def test_permitted_but_banned() -> None:
    logits = np.zeros(4, np.float32)
    banned = Sampling(1.0, grammar="root ::= .", logit_bias={2: -math.inf})
    chooser = Chooser(banned, 4, (), Only(2, 3))
    assert {chooser.choose(logits, i) for i in range(100)} == {3}
    dead = Chooser(banned, 4, (), Only(2))
    with pytest.raises(GrammarError, match="permits none"):
        dead.choose(logits, 5)


@settings(max_examples=30)
@given(st.lists(st.floats(-4, 4, width=32), min_size=3, max_size=20), st.integers(0, 2**20))
def test_a_choice_depends_on_nothing_but_its_position(logits: list[float], seed: int) -> None:
    """Not on what was chosen before, nor in which order."""
    array: FloatArray = np.array(logits, np.float32)
    forward = with_grammar(Only(0, 2), len(logits), temperature=0.7, seed=seed)
    backward = with_grammar(Only(0, 2), len(logits), temperature=0.7, seed=seed)
    there = [forward.choose(array, i) for i in range(20)]
    back = [backward.choose(array, i) for i in reversed(range(20))]
    assert there == back[::-1]


def test_a_grammars_text_and_its_state_go_together() -> None:
    for sampling, grammar in ((GREEDY, Only(1)), (Sampling(grammar="root ::= ."), None)):
        with pytest.raises(InvalidConfigError, match="both or none"):
            Chooser(sampling, 4, (), grammar)
