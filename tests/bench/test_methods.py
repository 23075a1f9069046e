"""The peers' drafting rules: worked by hand, and against slow ones that only do what the rule says."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc.types import Draft, TokenArray
from suffixsvc_bench.methods import Method, Settings, known_methods, missing_methods
from suffixsvc_bench.methods.arctic import Arctic, find_python
from suffixsvc_bench.methods.compat import KEY as DROP_IN
from suffixsvc_bench.methods.compat import DropIn
from suffixsvc_bench.methods.ngram_cache import NgramCache
from suffixsvc_bench.methods.ngram_mod import NgramMod
from suffixsvc_bench.methods.peer_process import PeerFailedError
from suffixsvc_bench.methods.prompt_lookup import PromptLookup

small_texts = st.lists(st.integers(0, 3), max_size=40)


def ids(tokens: Sequence[int]) -> TokenArray:
    return np.array(tokens, np.int32)


def wide(k: int) -> Settings:
    return Settings(k, 0.05)


def drafted(method: Method) -> list[int]:
    draft = method.draft()
    assert draft.parents.tolist() == list(range(-1, len(draft) - 1))
    return draft.token_ids.tolist()


def write(method: Method, prompt: Sequence[int], response: Sequence[int]) -> None:
    """A whole call, a token a step."""
    method.begin(ids(prompt), "")
    for token in response:
        method.draft()
        method.accept(ids([token]), 0)
    method.end()


@pytest.mark.parametrize("key", list(known_methods()))
def test_every_method_handles_calls_of_every_length(key: str) -> None:
    spec = known_methods()[key]
    method = spec.make(Settings(min(spec.default_k, 7), 0.05))
    try:
        for prompt in ([], [1], [1, 2, 3], list(range(100)) * 2):
            method.begin(ids(prompt), "agent")
            for new in ([5], [6, 7], list(range(60))):
                draft = method.draft()
                assert isinstance(draft, Draft)
                assert len(draft) <= 7
                assert all(p < i for i, p in enumerate(draft.parents.tolist()))
                method.accept(ids(new), 0)
            method.end()
        assert method.memory_bytes() >= 0
    finally:
        method.close()
        method.close()


# ----------------------------------------------------------------------------------------- prompt lookup


def test_prompt_lookup_takes_the_longest_and_then_the_earliest_match() -> None:
    method = PromptLookup(wide(3), max_n=2, min_n=1)
    #                 (2 3)->4 5 6        (2 3)->7           3->8          the end: 2 3
    method.begin(ids([1, 2, 3, 4, 5, 6, 9, 2, 3, 7, 0, 3, 8, 0, 2, 3]), "")
    assert drafted(method) == [4, 5, 6]
    method.accept(ids([3]), 0)  # 3 3 never stood before; 3 first stood before 4
    assert drafted(method) == [4, 5, 6]
    method.accept(ids([77]), 0)
    assert drafted(method) == []


def test_prompt_lookup_copies_no_further_than_the_text() -> None:
    method = PromptLookup(wide(10), max_n=2, min_n=1)
    method.begin(ids([5, 5]), "")
    assert drafted(method) == [5]
    method.begin(ids([1, 2, 1]), "")
    assert drafted(method) == [2, 1]


def test_prompt_lookup_compares_tokens_and_not_bytes() -> None:
    """Tokens lie in memory as four bytes each; the bytes of one can stand across two others."""
    method = PromptLookup(wide(4), max_n=1, min_n=1)
    method.begin(ids([0x00010000, 0, 9, 1]), "")
    assert drafted(method) == []
    method.begin(ids([0x01000000, 0x01000000, 7, 1, 8, 1]), "")
    assert drafted(method) == [8, 1]


@settings(deadline=None)
@given(small_texts, st.integers(1, 5), st.integers(1, 5), st.integers(1, 6))
def test_prompt_lookup_against_a_scan(text: list[int], longest: int, shortest: int, k: int) -> None:
    method = PromptLookup(wide(k), max_n=max(longest, shortest), min_n=shortest)
    method.begin(ids(text[: len(text) // 2]), "")
    method.accept(ids(text[len(text) // 2 :]), 0)

    def slowly() -> list[int]:
        for n in range(max(longest, shortest), shortest - 1, -1):
            for at in range(len(text) - n):
                if text[at : at + n] == text[len(text) - n :]:
                    return text[at + n : at + n + k]
        return []

    assert drafted(method) == slowly()


# ------------------------------------------------------------------------------------------- ngram-cache
# Its rules: tests/caches/test_lookup_algorithm.py.


def test_ngram_cache_stores_calls_and_trains_on_texts() -> None:
    method = NgramCache(wide(2))
    write(method, [6, 1, 2, 3, 9], [1, 2, 3, 9])
    method.begin(ids([8, 1, 2, 3]), "")
    assert drafted(method)[:1] == [9]
    method.end()

    method = NgramCache(wide(1))
    method.train([ids([1, 2, 30, 4]), ids([1, 2, 30, 5])])
    method.begin(ids([1, 2]), "")
    assert drafted(method) == [30]  # only the static cache knows it
    # as llama.cpp's file: (1 2) -> 30, (2 30) -> 4 or 5
    assert method.memory_bytes() == (20 + 8) + (20 + 16)
    spec = known_methods()["ngram-cache-static"]
    assert spec.trains_offline
    assert not spec.swept


# --------------------------------------------------------------------------------------------- ngram-mod


def mod(k: int, match: int, shortest: int, slots: int = 1 << 22) -> NgramMod:
    return NgramMod(wide(k), match=match, shortest=shortest, slots=slots)


def test_ngram_mod_follows_the_table_and_drops_what_is_too_short() -> None:
    text = list(range(100, 150))
    known = [*text, 1, 2, 3]
    for shortest, expected in ((5, [103, 104, 105, 106, 107]), (6, [])):
        # the table ends at 107: what it was shown later overwrote nothing
        method = mod(64, match=3, shortest=shortest)
        write(method, known[:8], [])
        method.begin(ids([9, 9, 9, 9, 100, 101, 102]), "")
        assert drafted(method) == expected, shortest
        assert drafted(mod(64, match=3, shortest=shortest)) == []


def test_ngram_mod_keeps_the_last_writer() -> None:
    method = mod(1, match=2, shortest=1)
    write(method, [1, 2, 3, 1, 2, 4, 0], [])
    method.begin(ids([7, 7, 1, 2]), "")
    assert drafted(method) == [4]


def test_ngram_mod_learns_what_is_written_in_chunks() -> None:
    method = mod(1, match=2, shortest=1)
    method.begin(ids([50, 51, 52]), "")
    for token in range(200, 300):
        method.draft()
        method.accept(ids([token]), 0)
    method.end()
    method.begin(ids([0, 0, 210, 211]), "")
    assert drafted(method) == [212]
    method.begin(ids([0, 0, 297, 298]), "")
    assert drafted(method) == [], "the end of a call had not become a chunk"


def test_ngram_mod_empties_a_table_that_is_a_quarter_full() -> None:
    method = mod(1, match=2, shortest=1, slots=64)
    write(method, [*range(10)], [])
    method.begin(ids([90, 91, 3, 4]), "")
    assert drafted(method) == [5]
    write(method, [*range(500, 560)], [])  # 58 n-grams: full, and emptied as the call begins
    method.begin(ids([90, 91, 3, 4]), "")
    assert drafted(method) == []


def test_ngram_mod_empties_the_table_after_five_bad_drafts() -> None:
    text = [*range(100, 140)]
    for bad, expected in ((4, [103, 104, 105, 106]), (5, [])):
        method = mod(4, match=3, shortest=1)
        write(method, text, [])
        for _ in range(bad):
            method.begin(ids([7, 7, 7, 100, 101, 102]), "")
            assert len(method.draft()) == 4
            method.accept(ids([1]), 0)
            method.end()
        method.begin(ids([8, 8, 8, 100, 101, 102]), "")
        assert drafted(method) == expected, bad


@pytest.mark.parametrize("seed", range(30))
def test_ngram_mod_against_a_dictionary(seed: int) -> None:
    """Without collisions the table is a dictionary of n-grams; few enough of them do not collide."""
    chance = random.Random(seed)
    match, k = chance.randint(2, 5), 6
    method = mod(k, match=match, shortest=2)
    table: dict[tuple[int, ...], int] = {}
    for _ in range(4):
        text = [chance.randrange(4) for _ in range(chance.randint(0, 30))]
        method.begin(ids(text), "")
        looked = 0
        if len(text) >= match:
            for i in range(len(text) - match):
                table[tuple(text[i : i + match])] = text[i + match]
            looked = len(text) - match
        for _ in range(80):
            known = len(text) - 1
            if known < match:
                expected: list[int] = []
            else:
                if looked + 32 < known:
                    for i in range(looked, known - match):
                        table[tuple(text[i : i + match])] = text[i + match]
                    looked = known - match
                follow = text[-match:]
                while len(follow) < match + k and tuple(follow[-match:]) in table:
                    follow.append(table[tuple(follow[-match:])])
                expected = follow[match:] if len(follow) >= match + 2 else []
            assert drafted(method) == expected, f"seed {seed}"
            token = chance.randrange(4)
            text.append(token)
            method.accept(ids([token]), len(expected))  # never a bad draft: no reset
        method.end()


# ------------------------------------------------------------------------------------------------ Arctic

needs_arctic = pytest.mark.skipif(find_python() is None, reason="Arctic is not built here: make peers")


def test_the_drop_in_class_is_called_as_arctics_is() -> None:
    """The same calls with the same arguments as the worker makes of Arctic's class, in the same order."""
    spec = known_methods()[DROP_IN]
    method = spec.make(Settings(8, 0.05))
    assert isinstance(method, DropIn)
    text = list(range(100, 140))
    try:
        write(method, [1, 2, 3], text)
        method.begin(ids([1, 2, 3]), "agent")
        method.accept(ids(text[:10]), 0)
        draft = method.draft()
        n = len(draft.token_ids)
        assert 4 <= n <= 8  # how sure it is of a text seen once, the weights it starts with decide
        assert draft.token_ids.tolist() == text[10 : 10 + n]
        assert draft.parents.tolist() == list(range(-1, n - 1))
        assert ((draft.probs > 0.3) & (draft.probs <= 1)).all()
        assert (draft.sources == 0).all()  # the interface does not say
        method.accept(ids(text[10 : 11 + n]), n)
        method.end()
        assert method.memory_bytes() > 0
    finally:
        method.close()
    assert spec.instead_of == "arctic-24-1-chain"
    assert not spec.cost_aware


def test_a_missing_peer_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suffixsvc_bench.methods.arctic.find_python", lambda: None)
    assert "make peers" in missing_methods()["arctic"]
    assert not any(key.startswith("arctic") for key in known_methods())


@needs_arctic
def test_arctic_drafts_what_another_call_wrote() -> None:
    python = find_python()
    assert python is not None
    method = Arctic(wide(24), python, depth=24, factor=1, tree=False)
    try:
        answer = list(range(500, 540))
        write(method, [1, 2, 3], answer)
        method.begin(ids([9, 8, 7]), "")
        assert drafted(method) == []
        method.accept(ids(answer[:6]), 0)
        draft = method.draft()
        # as many tokens as matched; its own text stands in the same tree, so the first has one vote of two
        assert draft.token_ids.tolist() == answer[6:12]
        assert draft.probs.tolist() == pytest.approx([1 / 2, 1, 1, 1, 1, 1])
        assert method.own_seconds() > 0
        assert method.memory_bytes() > 0
    finally:
        method.close()


@needs_arctic
def test_arctic_probabilities_are_given_the_parent() -> None:
    python = find_python()
    assert python is not None
    method = Arctic(wide(24), python, depth=24, factor=4, tree=True)
    try:
        for tail in ([7, 8], [7, 8], [7, 9], [6, 9]):
            write(method, [], [1, 2, 3, 4, *tail])
        method.begin(ids([50]), "")
        method.accept(ids([1, 2, 3, 4]), 0)
        draft = method.draft()
        found = {
            (int(t), int(draft.token_ids[p]) if p >= 0 else None): float(q)
            for t, p, q in zip(draft.token_ids, draft.parents, draft.probs, strict=True)
        }
        assert found[7, None] == pytest.approx(3 / 5)  # of the four calls and its own text
        assert found[8, 7] == pytest.approx(2 / 3)
        assert found[9, 7] == pytest.approx(1 / 3)
    finally:
        method.close()


def test_a_python_without_the_peer_says_what_is_wrong() -> None:
    with pytest.raises(PeerFailedError, match=r"arctic_inference.*make peers"):
        Arctic(wide(4), sys.executable, depth=24, factor=1, tree=False)
    with pytest.raises(PeerFailedError, match="cannot run"):
        Arctic(wide(4), "/nowhere/python", depth=24, factor=1, tree=False)


@needs_arctic
def test_a_killed_peer_is_an_error() -> None:
    python = find_python()
    assert python is not None
    method = Arctic(wide(4), python, depth=24, factor=1, tree=False)
    try:
        method.begin(ids([1, 2, 3]), "")
        method.peer.process.kill()
        method.peer.process.wait()
        with pytest.raises(PeerFailedError, match="it ended"):
            method.draft()
    finally:
        method.close()
