"""The Arctic classes: documented behaviour, and the defects that are not reproduced."""

from __future__ import annotations

import inspect
import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
from compat_testing import PROMPT, SQL, drafted, wrote
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc import SuffixCache
from suffixsvc.compat.arctic import SuffixDecodingCache, SuffixDecodingDraft
from support.long_form import rounds

# ---------------------------------------------------------------------------------- documented behaviour


def test_the_signatures_are_arctics() -> None:
    def names(function: Any) -> list[str]:
        kinds = (inspect.Parameter.KEYWORD_ONLY,)  # added arguments are after the *
        return [p.name for p in inspect.signature(function).parameters.values() if p.kind not in kinds][1:]

    speculate = inspect.signature(SuffixDecodingCache.speculate).parameters
    assert names(SuffixDecodingCache.__init__) == ["max_tree_depth", "max_cached_requests"]
    assert names(SuffixDecodingCache.start_request) == ["req_id", "prompt_token_ids"]
    assert names(SuffixDecodingCache.stop_request) == ["req_id"]
    assert names(SuffixDecodingCache.add_active_response) == ["req_id", "token_ids"]
    assert names(SuffixDecodingCache.evict_cached_response) == ["req_id"]
    assert {
        name: p.default for name, p in speculate.items() if name not in ("self", "req_id", "context")
    } == {
        "max_spec_tokens": None,
        "max_spec_factor": 1.0,
        "max_spec_offset": 0.0,
        "min_token_prob": 0.1,
        "use_tree_spec": False,
    }
    assert SuffixDecodingDraft() == SuffixDecodingDraft([], [], [], 0.0, 0)
    with SuffixDecodingCache() as cache:
        assert (cache.max_tree_depth, cache.max_cached_requests) == (64, -1)


def test_a_request_drafts_what_another_one_wrote() -> None:
    with SuffixDecodingCache() as cache:
        wrote(cache, "a", SQL)
        cache.start_request("b", [9, 9])
        cache.add_active_response("b", SQL[:8])
        draft = cache.speculate("b", [9, 9, *SQL[:8]], max_spec_tokens=16)
        n = len(draft.token_ids)
        assert draft.token_ids == SQL[8 : 8 + n] != []
        assert draft.parents == list(range(-1, n - 1))
        assert draft.match_len == 8
        assert math.isclose(draft.score, sum(draft.probs))


def test_a_request_drafts_from_its_own_prompt() -> None:
    with SuffixDecodingCache(max_cached_requests=0) as cache:
        cache.start_request("a", [*SQL, 7])
        cache.add_active_response("a", SQL[:6])
        assert cache.speculate("a", SQL[:6]).token_ids[:3] == SQL[6:9]


def test_the_two_views_follow_the_requests() -> None:
    with SuffixDecodingCache() as cache:
        active, cached = cache.active_requests, cache.cached_requests
        cache.start_request("a", PROMPT)
        assert (list(active), list(cached)) == (["a"], ["a"])
        cache.add_active_response("a", SQL)
        cache.stop_request("a")
        assert (list(active), list(cached)) == ([], ["a"])
        cache.evict_cached_response("a")
        assert (list(active), list(cached)) == ([], [])


def test_calls_in_the_wrong_state_raise_value_error() -> None:
    with SuffixDecodingCache() as cache:
        cache.start_request("a", PROMPT)
        with pytest.raises(ValueError, match="must not be active"):
            cache.start_request("a", PROMPT)
        for call in (
            lambda: cache.stop_request("b"),
            lambda: cache.add_active_response("b", SQL),
            lambda: cache.speculate("b", SQL),
        ):
            with pytest.raises(ValueError, match="must be active"):
                call()
        with pytest.raises(ValueError, match="must be cached"):
            cache.evict_cached_response("b")


def test_starting_a_cached_id_again_evicts_its_response() -> None:
    with SuffixDecodingCache() as cache:
        wrote(cache, "a", SQL)
        cache.start_request("a", PROMPT)
        assert list(cache.cached_requests) == ["a"]
        assert drafted(cache, [9], SQL[:8]) == []


def test_an_evicted_response_is_not_drafted_from() -> None:
    with SuffixDecodingCache() as cache:
        wrote(cache, "a", SQL)
        cache.evict_cached_response("a")
        assert drafted(cache, [9], SQL[:8]) == []


def test_the_oldest_response_goes_first() -> None:
    texts = {name: list(range(start, start + 40)) for name, start in (("a", 100), ("b", 200), ("c", 300))}
    with SuffixDecodingCache(max_cached_requests=2) as cache:
        for name, text in texts.items():
            wrote(cache, name, text)
        assert list(cache.cached_requests) == ["b", "c"]
        cache.start_request("d", [9])  # evicts "b"
        assert list(cache.cached_requests) == ["c", "d"]
        cache.add_active_response("d", texts["b"][:8])
        assert cache.speculate("d", texts["b"][:8]).token_ids == []
        cache.add_active_response("d", texts["c"][:8])
        assert cache.speculate("d", texts["c"][:8]).token_ids != []


def test_with_no_cached_requests_everyone_is_alone() -> None:
    with SuffixDecodingCache(max_cached_requests=0) as cache:
        cache.start_request("a", PROMPT)
        cache.add_active_response("a", SQL)
        assert list(cache.cached_requests) == []
        assert drafted(cache, [9], SQL[:8]) == []
        cache.stop_request("a")
        assert drafted(cache, [9], SQL[:8]) == []


def test_an_evicted_active_request_goes_on_for_itself() -> None:
    with SuffixDecodingCache() as cache:
        cache.start_request("a", PROMPT)
        cache.add_active_response("a", SQL)
        cache.evict_cached_response("a")
        cache.add_active_response("a", SQL[:8])
        assert cache.speculate("a", SQL[:8]).token_ids[:3] == SQL[8:11]  # from its own response
        assert drafted(cache, [9], SQL[:8]) == []
        cache.stop_request("a")
        assert drafted(cache, [9], SQL[:8]) == []


def test_tokens_come_one_at_a_time_too() -> None:
    with SuffixDecodingCache() as cache:
        cache.start_request(("any", "hashable"), np.array(PROMPT, np.int32))
        for token in SQL:
            cache.add_active_response(("any", "hashable"), token)
        cache.stop_request(("any", "hashable"))
        assert drafted(cache, [9], SQL[:8])[:3] == SQL[8:11]


def test_a_tree_has_branches() -> None:
    with SuffixDecodingCache(verify_cost=0.0) as cache:
        for i in range(6):
            wrote(cache, i, [*SQL[:10], 500 + i % 2, *range(600, 610)])
        cache.start_request("b", [9])
        cache.add_active_response("b", SQL[:10])
        bounds = {"max_spec_tokens": 16, "max_spec_factor": 4.0, "min_token_prob": 0.01}
        tree = cache.speculate("b", SQL[:10], use_tree_spec=True, **bounds)
        chain = cache.speculate("b", SQL[:10], use_tree_spec=False, **bounds)
        roots = {token for token, parent in zip(tree.token_ids, tree.parents, strict=True) if parent == -1}
        assert roots == {500, 501}
        assert chain.parents == list(range(-1, len(chain.parents) - 1))


@settings(deadline=None, max_examples=rounds(20, full=60))
@given(
    seed=st.integers(0, 2**32),
    most=st.integers(0, 40),
    factor=st.floats(0, 4),
    offset=st.floats(-4, 8),
    least=st.floats(0, 1),
    tree=st.booleans(),
)
def test_no_draft_exceeds_its_bounds(
    seed: int, most: int, factor: float, offset: float, least: float, tree: bool
) -> None:
    rng = random.Random(seed)
    with SuffixDecodingCache(verify_cost=rng.choice([0.0, 0.02, 0.2])) as cache:
        for i in range(4):
            wrote(cache, i, [rng.randrange(3) for _ in range(60)])
        cache.start_request("b", [rng.randrange(3) for _ in range(20)])
        for _ in range(5):
            text = [rng.randrange(3) for _ in range(rng.randrange(1, 12))]
            cache.add_active_response("b", text)
            free = cache.speculate("b", text, 40, 100.0, 0.0, 0.0, tree)
            draft = cache.speculate("b", text, most, factor, offset, least, tree)
            n = len(draft.token_ids)
            # the bounds cut the draft of the cost alone, at the first bound that applies
            assert (draft.token_ids, draft.parents) == (free.token_ids[:n], free.parents[:n])
            behind = math.floor(free.match_len * factor + offset + 1e-6)
            bound = min(most, behind + 1 if behind > 0 else 0)
            assert draft.probs == list(itertools.takewhile(lambda p: p >= least, free.probs))[:bound]
            assert n <= bound
            assert all(p >= least for p in draft.probs)
            assert all(-1 <= parent < i for i, parent in enumerate(draft.parents))
            assert math.isclose(draft.score, sum(draft.probs), abs_tol=1e-9)


# ------------------------------------------------------------------------------------------ known defects


def test_the_default_of_max_spec_tokens_works() -> None:
    """Arctic: None, the documented default, reads an attribute that does not exist: AttributeError."""
    with SuffixDecodingCache(max_tree_depth=5) as cache:
        for i in range(8):
            wrote(cache, i, SQL)
        cache.start_request("b", [9])
        cache.add_active_response("b", SQL[:20])
        assert cache.speculate("b", SQL[:20]).token_ids == SQL[20:25]  # as long as the tree is deep
        assert cache.speculate("b", SQL[:20], max_spec_tokens=2).token_ids == SQL[20:22]


def test_a_context_of_one_token_drafts() -> None:
    """Arctic: the loop over match lengths ends one short of the context, so one token matched nothing."""
    with SuffixDecodingCache() as cache:
        wrote(cache, "a", [*SQL, *SQL])
        cache.start_request("b", [100])
        assert cache.speculate("b", [100]).token_ids == [101, 102]  # the bound on the match, and one more


def test_a_short_context_is_matched_whole() -> None:
    """The same defect: of three tokens two were matched, and the wrong continuation won."""
    with SuffixDecodingCache() as cache:
        for i in range(4):
            wrote(cache, f"x{i}", [50, 51, 52, 70, 71, 72])
        wrote(cache, "y", [60, 51, 52, 80, 81, 82])
        cache.start_request("b", [60, 51, 52])
        assert cache.speculate("b", [60, 51, 52]).token_ids[0] == 80


def test_an_active_request_is_never_evicted_to_make_room() -> None:
    """Arctic: first in, first out, also of active requests: a long request lost its slot to newer ones,
    and its later tokens were silently not cached."""
    with SuffixDecodingCache(max_cached_requests=2) as cache:
        cache.start_request("long", PROMPT)
        cache.add_active_response("long", SQL[:10])
        for i in range(4):
            wrote(cache, i, [900 + i] * 5)
        assert list(cache.cached_requests) == ["long", 3]
        cache.add_active_response("long", SQL[10:])
        assert drafted(cache, [9], SQL[20:30])[:3] == SQL[30:33]
        cache.stop_request("long")
        assert list(cache.cached_requests) == ["long"]


def test_more_active_requests_than_may_be_cached() -> None:
    """The limit is enforced when requests finish: the next start reduces the number."""
    with SuffixDecodingCache(max_cached_requests=2) as cache:
        for i in range(5):
            cache.start_request(i, PROMPT)
            cache.add_active_response(i, [1000 * i + k for k in range(1, 30)])
        assert list(cache.cached_requests) == [0, 1, 2, 3, 4]
        for i in range(5):
            cache.stop_request(i)
        cache.start_request("next", PROMPT)
        assert list(cache.cached_requests) == [4, "next"]


def test_the_prompt_leads_to_the_response() -> None:
    """Arctic: prompts are not in the global tree, so the beginning of a cached response was never drafted."""
    with SuffixDecodingCache() as cache:
        wrote(cache, "a", SQL, prompt=[1, 2, 3, 4, 5, 6])
        cache.start_request("b", [77, 2, 3, 4, 5, 6])
        assert cache.speculate("b", [77, 2, 3, 4, 5, 6]).token_ids[:3] == SQL[:3]


def test_memory_of_evicted_responses_is_freed() -> None:
    """Arctic: nodes stay allocated after every sequence was removed."""
    rng = random.Random(5)
    with SuffixCache() as engine, SuffixDecodingCache(cache=engine) as cache:
        wrote(cache, "warm", [7] * 50)
        cache.evict_cached_response("warm")
        empty = engine.stats().index_bytes
        for i in range(60):
            wrote(cache, i, [rng.randrange(50_000) for _ in range(500)])
        full = engine.stats().index_bytes
        for i in range(60):
            cache.evict_cached_response(i)
        left = engine.stats()
        assert (left.outputs, left.tokens, left.index_nodes) == (0, 0, 1)
        assert left.index_bytes < empty + (full - empty) // 10
        engine.check()
