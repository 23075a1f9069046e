"""Replay of logs: the rules of each program, compared with a reference implementation."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.lookup.replay import (
    LookupReplayer,
    Program,
    ReplayStats,
    TokenCall,
)
from suffixsvc_caches.simulation import pruned_sizes
from support import lookup_oracle as oracle
from support.lookup_tables import records_of_table, table_of

tokens_ = st.integers(0, 3)
calls_ = st.lists(
    st.builds(TokenCall, st.lists(tokens_, max_size=12), st.lists(tokens_, max_size=40)), max_size=4
)
STATIC = {(0, 1): {2: 3, 1: 3}, (1, 2): {0: 5, 3: 1}, (2, 2): {2: 1}, (3, 3): {0: 2}}
SLOW_STATIC = oracle.loaded([(ngram, [*pairs.items()]) for ngram, pairs in STATIC.items()])


@settings(deadline=None)
@given(calls=calls_, ctx=st.integers(2, 20), wide=st.integers(1, 8))
def test_stats_replay_a_log_as_one_text_in_chunks(calls: list[TokenCall], ctx: int, wide: int) -> None:
    text = [token for call in calls for token in call.response]
    replayer = LookupReplayer(table_of(STATIC), program=Program.STATS, ctx=ctx, draft_tokens=wide)
    assert replayer.add_log(calls) == ReplayStats(wide, *oracle.stats(text, ctx, wide, SLOW_STATIC))


@settings(deadline=None)
@given(calls=calls_, wide=st.integers(1, 8), program=st.sampled_from([Program.LOOKUP, Program.SERVER]))
def test_calls_are_replayed_one_by_one(calls: list[TokenCall], wide: int, program: Program) -> None:
    dynamic: oracle.Cache = {}
    drafted = accepted = steps = tokens = 0
    for prompt, response in calls:
        if not response:
            continue
        text, context = [*prompt, response[0]], dict[tuple[int, ...], oracle.GnuMap]()
        oracle.update(context, text, len(text))
        steps, tokens, at = steps + 1, tokens + len(response), 1
        while at < len(response):
            draft = oracle.draft(text, wide, context, dynamic, SLOW_STATIC)
            right = 0
            while right < len(draft) and [draft[right]] == response[at + right : at + right + 1]:
                right += 1
            new = response[at : at + right + 1]
            text += new
            oracle.update(context, new if program is Program.SERVER else text, len(new))
            drafted, accepted, steps, at = drafted + len(draft), accepted + right, steps + 1, at + len(new)
        if program is Program.LOOKUP:
            oracle.merge(dynamic, context)
    found = LookupReplayer(table_of(STATIC), program=program, draft_tokens=wide).add_log(calls)
    assert found == ReplayStats(wide, tokens, drafted, accepted, steps, tokens)


def test_figures() -> None:
    one = ReplayStats(8, 100, 50, 25, 60, 90)
    assert (one.accept, one.hit_rate, one.tokens_per_step) == (0.5, 25 / 90, 1.5)
    none = ReplayStats(8)
    assert all(map(math.isnan, (none.accept, none.hit_rate, none.tokens_per_step)))
    assert none + one == one


def test_a_dynamic_cache_is_used_and_not_modified() -> None:
    table = table_of({(5, 6, 7): {8: 4}})
    calls = [TokenCall([5, 6], [7, 8, 9])]
    for _ in range(2):
        found = LookupReplayer(None, table, program=Program.LOOKUP).add_log(calls)
        assert (found.n_drafted, found.n_accept) == (1, 1)
    assert records_of_table(table) == {(5, 6, 7): {8: 4}}


@pytest.mark.parametrize("wrong", [{"ctx": 1}, {"draft_tokens": 0}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError):
        LookupReplayer(None, **wrong)


def test_sizes_rise_to_the_whole_table() -> None:
    table = table_of({(i, i + 1): {i + 2: i + 2, 0: 1} for i in range(2000)})
    points = pruned_sizes(table)
    sizes = [size for size, _ in points]
    assert sizes == sorted(set(sizes))
    assert len(sizes) == 10
    assert sizes[-1] == table.file_bytes() == 2000 * 36
    assert points[-1][1] is table
    assert all(28 * len(cut) == size for size, cut in points[:-1])
