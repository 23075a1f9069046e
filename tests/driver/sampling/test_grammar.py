"""llama.cpp's grammar sampler against derivatives of regular expressions, and the filter of drafts
by a grammar."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from suffixsvc.errors import GrammarError, ModelError
from suffixsvc.types import Draft, DraftSource
from suffixsvc_driver.drafts.chain import valid_draft
from suffixsvc_driver.sampling.grammar_filter import cut_forbidden
from suffixsvc_driver.targets.llama.grammar import LlamaGrammar
from suffixsvc_driver.targets.llama.model import LlamaModel
from support.layers import chain
from support.long_form import rounds
from support.regular_grammar import NOTHING, Expression, after, as_gbnf, may_end, random_expression
from support.tiny_gguf import SPECIAL, byte_texts, write_tiny_llama

#: tokens of several characters besides the bytes: rules of a grammar end inside them
WORDS = ["ab", "abc", "ba", "bb", "ca", "aa", "aab", "bca", "cc", "<|", "a<"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = write_tiny_llama(
        tmp_path_factory.mktemp("words") / "w.gguf", texts=[*byte_texts(), *SPECIAL, *WORDS]
    )
    with LlamaModel(path, vocab_only=True) as model:
        yield model


@cache
def pieces_of(model: LlamaModel) -> list[str]:
    """Bytes of each token, as characters."""
    return [model.token_bytes(token).decode("latin-1") for token in range(model.vocab_size)]


def permitted_ids(model: LlamaModel, rest: Expression) -> set[int]:
    """Return the oracle's permitted tokens: end tokens if the expression may end, and all that
    may continue it."""
    out = model.eog_ids if may_end(rest) else frozenset[int]()
    others = ((token, piece) for token, piece in enumerate(pieces_of(model)) if token not in model.eog_ids)
    return {*out, *(token for token, piece in others if piece and after(rest, piece) != NOTHING)}


@pytest.mark.parametrize("seed", range(rounds(3, full=6)))
def test_what_is_permitted(model: LlamaModel, seed: int) -> None:
    """At every step of random walks: single tokens, all tokens at once, and prefixes of drafts."""
    chance = random.Random(seed)
    everything = np.arange(model.vocab_size)
    for _ in range(6):
        rest = random_expression(chance, "abc<", 3)
        grammar = LlamaGrammar(model, as_gbnf(rest))
        for _ in range(12):
            expected = permitted_ids(model, rest)
            assert set(everything[grammar.permits(everything)].tolist()) == expected
            some = np.array(chance.sample(range(model.vocab_size), 30))
            assert grammar.permits(some).tolist() == [int(t) in expected for t in some]
            assert all(grammar.permits_one(t) == (t in expected) for t in range(model.vocab_size))
            check_a_draft(chance, model, grammar, rest)
            going_on = sorted(expected - model.eog_ids)
            if not going_on:
                break
            token = chance.choice(going_on)
            grammar.accept(token)
            rest = after(rest, model.token_bytes(token).decode())


def check_a_draft(chance: random.Random, model: LlamaModel, grammar: LlamaGrammar, rest: Expression) -> None:
    """Check a draft that is permitted for some tokens, by the oracle, followed by random ones."""
    drafted: list[int] = []
    fitting = 0
    there: Expression = rest
    for _ in range(chance.randint(0, 6)):
        options = sorted(permitted_ids(model, there) - model.eog_ids)
        if not options:
            break
        drafted.append(chance.choice(options))
        there = after(there, model.token_bytes(drafted[-1]).decode())
        fitting += 1
    tail = [chance.choice([256, 97, 98, chance.randrange(model.vocab_size)]) for _ in range(4)]
    ended = False
    for token in tail:
        options_now = set() if ended else permitted_ids(model, there)
        if token not in options_now:
            break
        ended = token in model.eog_ids
        there = there if ended else after(there, model.token_bytes(token).decode())
        fitting += 1
    assert grammar.allowed([*drafted, *tail]) == fitting
    assert grammar.allowed([*drafted, *tail]) == fitting, "nothing changed"


def test_brackets_inside_brackets(model: LlamaModel) -> None:
    """A language that is not regular."""
    grammar = LlamaGrammar(model, 'root ::= "(" root* ")" | "x"')
    text = list(b"((x)(xx))")
    assert grammar.allowed([*text, 256]) == len(text) + 1
    assert grammar.allowed(list(b"((x)(xx)))")) == len(text)
    for token in text[:-1]:
        assert not grammar.permits_one(256)
        grammar.accept(token)
    grammar.accept(text[-1])
    assert grammar.permits(np.arange(model.vocab_size)).nonzero()[0].tolist() == sorted(model.eog_ids)


def test_characters_of_several_bytes(model: LlamaModel) -> None:
    grammar = LlamaGrammar(model, 'root ::= [à-ü]+ "漢"')
    text = list("éü漢".encode())
    assert grammar.allowed([*text, 256]) == len(text) + 1
    assert grammar.allowed(list("éa".encode())) == 2
    grammar.accept(text[0])
    assert grammar.permits(np.array([256, 97, 0xA9, 0xC3])).tolist() == [False, False, True, False]


def test_what_is_not_permitted_is_not_accepted(model: LlamaModel) -> None:
    """llama.cpp would abort the process."""
    grammar = LlamaGrammar(model, 'root ::= "ab"')
    for token in (98, 256, -1, 10**6, 300):
        with pytest.raises(GrammarError, match="does not permit"):
            grammar.accept(token)
    grammar.accept(97)
    with pytest.raises(GrammarError):
        grammar.accept(97)
    grammar.accept(98)
    grammar.accept(256)
    grammar.accept(258)
    assert grammar.allowed([-5]) == grammar.allowed([10**6]) == grammar.allowed([]) == 0


def test_copies_are_independent(model: LlamaModel) -> None:
    first = LlamaGrammar(model, 'root ::= [ab] "c"')
    second = first.copy()
    second.accept(97)
    assert first.permits_one(98)
    assert not second.permits_one(98)
    assert second.permits_one(99)
    del first
    gc.collect()
    third = second.copy()
    second.close()
    second.close()
    assert third.allowed([99, 256]) == 2
    with pytest.raises(ModelError, match="closed"):
        second.permits_one(97)


def test_a_closed_model(tiny_model: Path) -> None:
    model = LlamaModel(tiny_model, vocab_only=True)
    grammar = LlamaGrammar(model, 'root ::= "a"')
    model.close()
    for call in (lambda: grammar.accept(97), lambda: grammar.allowed([97]), grammar.copy):
        with pytest.raises(ModelError, match="closed"):
            call()


def test_grammars_that_the_vocabulary_cannot_start(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "letters.gguf", texts=[*"abc", "<|endoftext|>"], eos_id=3)
    with LlamaModel(path, vocab_only=True) as model:
        LlamaGrammar(model, 'root ::= "cab"')
        LlamaGrammar(model, 'root ::= "x"?')
        with pytest.raises(GrammarError, match="at its start"):
            LlamaGrammar(model, 'root ::= "x" "a"')


def test_the_time_to_check_a_draft_is_bounded(model: LlamaModel) -> None:
    """This grammar triples its states with each character."""
    grammar = LlamaGrammar(model, 'root ::= "a" root "b" | "a" root "c" | "a" root "a" | "b"')
    grammar.time_limit = 1.0  # enough for some, also on a busy machine
    assert 3 < grammar.allowed([97] * 40) < 40


def test_llama_cpp_aborts_on_rules_for_whole_tokens(tmp_path: Path) -> None:
    """Reason for refusing rules for whole tokens; when this test fails, they can be permitted."""
    program = """
import ctypes, resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from suffixsvc_driver.targets.llama.binding import llama
from suffixsvc_driver.targets.llama.model import LlamaModel
lib, model = llama(), LlamaModel(sys.argv[1], vocab_only=True)
grammar = lib.llama_sampler_init_grammar(model.vocab, b'root ::= "a" !<[5]> "c"', b"root")
data = (lib.llama_token_data * 1)(lib.llama_token_data(id=259))
array = lib.llama_token_data_array(data=data, size=1)
lib.llama_sampler_apply(grammar, ctypes.byref(array))
assert data[0].logit == 0, "not permitted"
print("permitted", flush=True)
lib.llama_sampler_accept(grammar, 259)
print("accepted")
"""
    path = write_tiny_llama(tmp_path / "w.gguf", texts=[*byte_texts(), *SPECIAL, *WORDS])
    command = [sys.executable, "-c", program, str(path)]
    quietly = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=quietly)
    assert done.stdout == "permitted\n"
    assert done.returncode < 0, "it was killed"


# -- drafts


def only_small(drafted: list[int]) -> int:
    """Permit ids below 10."""
    return next((i for i, t in enumerate(drafted) if t >= 10), len(drafted))


def test_a_chain_is_truncated() -> None:
    draft = chain([1, 2, 30, 4])
    cut, count = cut_forbidden(draft, 9, 100, only_small)
    assert (cut.token_ids.tolist(), count) == ([1, 2], 2)
    assert valid_draft(cut, 9, 100, DraftSource.CORPUS).token_ids == (1, 2)
    assert cut_forbidden(chain([1, 2]), 9, 100, only_small)[1] == 0
    assert cut_forbidden(draft, 2, 100, only_small) == (draft, 0), "tokens beyond the budget are not checked"
    assert cut_forbidden(draft, 0, 100, only_small) == (draft, 0), "nothing was queried"
    junk = chain([1, 200, 30])
    assert cut_forbidden(junk, 9, 100, only_small) == (junk, 0), "not the grammar's business"


def test_forbidden_nodes_are_removed_from_a_tree() -> None:
    #        1 ─ 30 ─ 3        the better branch is forbidden, the other one stays
    #        └── 4 ─ 5
    draft = Draft(
        np.array([1, 30, 4, 3, 5], np.int32),
        np.array([-1, 0, 0, 1, 2], np.int32),
        np.array([0.9, 0.8, 0.3, 0.9, 0.7], np.float32),
        np.full(5, 2, np.uint8),
        np.arange(5, dtype=np.int32),
    )
    cut, count = cut_forbidden(draft, 9, 100, only_small)
    assert count == 2
    assert cut.token_ids.tolist() == [1, 4, 5]
    assert cut.parents.tolist() == [-1, 0, 1]
    assert cut.match_lens.tolist() == [0, 2, 4]
    assert valid_draft(cut, 9, 100, DraftSource.CORPUS).token_ids == (1, 4, 5)


class Odd:
    """Object with the fields of a draft that is not a draft."""

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


@pytest.mark.parametrize("seed", range(rounds(4, full=10)))
def test_no_forbidden_token_passes(model: LlamaModel, seed: int) -> None:
    """Whatever a layer answers: the grammar permits the driver's chain, which is as long as the draft's
    own permitted chain."""
    rng = np.random.default_rng(seed)
    chance = random.Random(seed)
    grammar = LlamaGrammar(model, as_gbnf(random_expression(chance, "abc", 3)))
    cuts = 0
    for _ in range(60):
        n = int(rng.integers(0, 14))
        tokens = rng.choice([97, 98, 99, 97, 98, 99, 256, 259, 260, 5, 10**6, -1], n).astype(np.int32)
        kind = int(rng.integers(0, 5))
        parents = np.arange(-1, n - 1, dtype=np.int32)
        if kind == 1:
            parents = np.array([rng.integers(-1, i) if i else -1 for i in range(n)], np.int32)
        if kind == 2:
            parents = rng.integers(-3, n + 2, n).astype(np.int32)
        probs = rng.random(n).astype(np.float32)
        if kind == 3 and n:
            probs[rng.integers(n)] = np.nan
        draft: object = Draft(tokens, parents, probs, np.full(n, 2, np.uint8), np.zeros(n, np.int32))
        if kind == 4:
            draft = chance.choice(
                [
                    Odd(token_ids=tokens, parents=parents, probs=probs, sources=np.full(n, 2)),
                    Odd(token_ids=tokens.astype(object), parents=parents, probs=probs, sources=np.full(n, 2)),
                    Odd(token_ids=tokens, parents=parents[:-1], probs=probs, sources=np.full(n, 2)),
                    Odd(token_ids=tokens + 0.5, parents=parents, probs=probs, sources=np.full(n, 2)),
                    Odd(token_ids=np.array(5), parents=parents, probs=probs, sources=parents),
                    None,
                    [1, 2],
                ]
            )
        budget = int(rng.integers(0, 10))
        before = valid_draft(draft, budget, model.vocab_size, DraftSource.CORPUS)
        cut, count = cut_forbidden(draft, budget, model.vocab_size, grammar.allowed)
        after_cut = valid_draft(cut, budget, model.vocab_size, DraftSource.CORPUS)
        assert grammar.allowed(after_cut.token_ids) == len(after_cut.token_ids), (draft, budget)
        if grammar.allowed(before.token_ids) == len(before.token_ids) and kind != 1 and kind != 2:
            assert after_cut.token_ids == before.token_ids
        if kind == 0:
            assert after_cut.token_ids == before.token_ids[: grammar.allowed(before.token_ids)]
        cuts += count
    assert cuts > 0
