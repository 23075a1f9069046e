"""Sampling after a refusal of the grammar: greedy and random, against slow and plain versions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc.errors import GrammarError, InvalidConfigError
from suffixsvc.types import FloatArray
from suffixsvc_driver.sampling.sampler import Sampler
from suffixsvc_driver.sampling.settings import GREEDY, IdArray, Sampling, sample_token, truncate
from support.long_form import rounds


class Only:
    """Grammar that always permits these tokens."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = set(tokens)
        self.checked = 0

    def permits(self, ids: IdArray) -> npt.NDArray[np.bool_]:
        self.checked += len(ids)
        return np.array([int(i) in self.tokens for i in ids], np.bool_)

    def permits_one(self, token: int) -> bool:
        return token in self.tokens

    def accept(self, token: int) -> None:
        if token not in self.tokens:
            raise GrammarError("not permitted")

    def allowed(self, drafted: Sequence[int]) -> int:
        return next((i for i, t in enumerate(drafted) if t not in self.tokens), len(drafted))


def with_grammar(grammar: Only, vocab: int, **values: float) -> Sampler:
    return Sampler(Sampling(grammar="root ::= .", **values), vocab, (), grammar)  # type: ignore[arg-type]  # mixed


@given(
    logits=st.lists(st.integers(-3, 3), min_size=1, max_size=100),
    permitted=st.sets(st.integers(0, 99), min_size=1),
)
def test_greedy_takes_the_best_permitted_token(logits: list[int], permitted: set[int]) -> None:
    inside = [i for i in sorted(permitted) if i < len(logits)]
    sampler = with_grammar(Only(*inside), len(logits))
    array = np.array(logits, np.float32)
    if inside:
        assert sampler.sample(array, 0) == max(inside, key=lambda i: (logits[i], -i))
    else:
        with pytest.raises(GrammarError, match="position 0"):
            sampler.sample(array, 0)


def test_greedy_checks_few_tokens_first() -> None:
    rng = np.random.default_rng(1)
    logits = rng.standard_normal(50_000).astype(np.float32)
    order = np.argsort(-logits)
    for rank, at_most in ((0, 0), (5, 64), (1500, 64 + 2048), (40_000, 64 + 2048 + 50_000)):
        grammar = Only(int(order[rank]), int(order[-1]))
        assert with_grammar(grammar, 50_000).sample(logits, 0) == order[rank]
        assert grammar.checked <= at_most


def chi2(tokens: list[int], expected: dict[int, float]) -> float:
    """Return the chi-square statistic, in standard deviations from its mean."""
    counts = np.bincount(tokens, minlength=max(expected) + 1)
    assert set(np.flatnonzero(counts)) <= set(expected)
    n = len(tokens)
    total = sum((counts[t] - n * p) ** 2 / (n * p) for t, p in expected.items())
    freedom = len(expected) - 1
    return float((total - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize("values", [{}, {"top_k": 6}, {"top_p": 0.7}, {"min_p": 0.35}], ids=str)
def test_a_refused_token_is_sampled_again_among_the_kept_ones(values: dict[str, float]) -> None:
    """p(t) / P over the kept tokens, as in rejection sampling. llama.cpp's truncation among the permitted
    tokens alone is another distribution, which the test distinguishes."""
    logits = np.log(np.array([4, 9, 1, 7, 2, 6, 3, 5, 8], np.float32))
    grammar = Only(0, 2, 3, 5, 6)
    sampler = with_grammar(grammar, 9, temperature=1.0, seed=5, **values)
    ids, scaled = truncate(logits, sampler.sampling)
    weights = {int(i): math.exp(s) for i, s in zip(ids, scaled, strict=True) if int(i) in grammar.tokens}
    share = {i: w / sum(weights.values()) for i, w in weights.items()}
    tokens = [sampler.sample(logits, i) for i in range(8000)]
    assert abs(chi2(tokens, share)) < 4
    if not values:
        return

    def llama_cpps(position: int) -> int:
        token = sample_token(logits, sampler.sampling, position)
        if token in grammar.tokens:
            return token
        masked = np.where([i in grammar.tokens for i in range(9)], logits, -np.inf).astype(np.float32)
        return sample_token(masked, sampler.sampling, position + 1_000_000)

    theirs = [llama_cpps(i) for i in range(8000)]
    assert set(theirs) > set(share)


def test_no_kept_token_is_permitted() -> None:
    """The settings apply to the permitted tokens alone: top_k of those."""
    logits = np.log(np.array([4, 900, 1, 700, 2, 600, 3, 500, 800], np.float32))
    sampler = with_grammar(Only(0, 2, 4, 6), 9, temperature=1.0, top_k=3, seed=2)
    tokens = [sampler.sample(logits, i) for i in range(8000)]
    assert abs(chi2(tokens, {0: 4 / 9, 6: 3 / 9, 4: 2 / 9})) < 4


def test_permitted_but_banned() -> None:
    logits = np.zeros(4, np.float32)
    banned = Sampling(1.0, grammar="root ::= .", logit_bias={2: -math.inf})
    sampler = Sampler(banned, 4, (), Only(2, 3))
    assert {sampler.sample(logits, i) for i in range(100)} == {3}
    dead = Sampler(banned, 4, (), Only(2))
    with pytest.raises(GrammarError, match="permits none"):
        dead.sample(logits, 5)


@settings(max_examples=rounds(10, full=30))
@given(st.lists(st.floats(-4, 4, width=32), min_size=3, max_size=20), st.integers(0, 2**20))
def test_a_token_depends_on_its_position_only(logits: list[float], seed: int) -> None:
    """It does not depend on earlier tokens or on the order."""
    array: FloatArray = np.array(logits, np.float32)
    forward = with_grammar(Only(0, 2), len(logits), temperature=0.7, seed=seed)
    backward = with_grammar(Only(0, 2), len(logits), temperature=0.7, seed=seed)
    there = [forward.sample(array, i) for i in range(20)]
    back = [backward.sample(array, i) for i in reversed(range(20))]
    assert there == back[::-1]


def test_the_text_and_the_state_of_a_grammar_are_required_together() -> None:
    for sampling, grammar in ((GREEDY, Only(1)), (Sampling(grammar="root ::= ."), None)):
        with pytest.raises(InvalidConfigError, match="both or none"):
            Sampler(sampling, 4, (), grammar)
