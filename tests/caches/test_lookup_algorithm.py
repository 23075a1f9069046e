"""Lookup drafting: comparison with a reference implementation, and single cases."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.lookup.algorithm import LookupDrafter, NgramCounts
from suffixsvc_caches.lookup.hash_order import iteration_order
from support import lookup_oracle as oracle
from support.long_form import rounds
from support.lookup_tables import table_of
from support.text_strategies import text_of

#: 13 and 26 share a bucket with 0; an alphabet of two tokens has many ties
ALPHABET = [0, 1, 2, 13, 26, 2**31 - 1]
tokens_ = st.sampled_from(ALPHABET)
texts_ = text_of(ALPHABET, 40, shortest=0)
counts_ = st.integers(1, 4)
records_ = st.lists(
    st.tuples(
        text_of(ALPHABET, 4).map(tuple),
        st.dictionaries(tokens_, counts_, min_size=1, max_size=5),
    ),
    max_size=12,
    unique_by=lambda record: record[0],
)


def drafter(static: Sequence[int] = (), wide: int = 1) -> LookupDrafter:
    counts = NgramCounts(orders=[2])
    counts.extend(list(static), 0)
    return LookupDrafter(counts, NgramCounts(), draft_tokens=wide)


def drafts(of: LookupDrafter, text: Sequence[int]) -> list[int]:
    of.begin(text)
    return of.draft()


# ------------------------------------------------------------------------------------------------ hash order

#: printed by a program compiled with g++ 12.2 that fills a std::unordered_map<int32_t, int32_t>: number of
#: keys, the first ones that a loop over a copy of it sees, and FNV-1a over all of them
GNU = {
    1: ([105558], 12754206568052838505),
    2: ([97450, 148588], 4124831114104264547),
    5: ([103823, 127277, 16442, 30621, 105520], 15829367566989953956),
    13: ([86259, 141956, 60082, 48909, 72374, 100658], 1952335163079254282),
    14: ([36388, 42742, 71889, 120811, 52883, 108824], 8563608970515223210),
    29: ([6535, 111231, 3773, 62883, 136870, 102338], 5063565869218931312),
    30: ([65941, 87227, 56410, 58092, 143306, 97109], 6245249879045344941),
    127: ([48137, 11313, 64799, 5041, 106749, 64036], 15839664997373427631),
    128: ([136500, 31268, 10706, 117640, 59096, 143708], 14378674897207264066),
    2000: ([121548, 21457, 123483, 78934, 93067, 44053], 4812306347554825773),
}


@pytest.mark.parametrize("n", list(GNU))
def test_keys_are_listed_as_by_the_real_library(n: int) -> None:
    state, keys = n, dict[int, None]()
    while len(keys) < n:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        keys[(state >> 33) % 151936] = None
    listed = iteration_order(keys)
    digest = 14695981039346656037
    for key in listed:
        digest = (digest ^ key) * 1099511628211 % 2**64
    assert (listed[:6], digest) == GNU[n]


@given(st.lists(st.integers(0, 300), unique=True, max_size=140))
def test_keys_are_listed_as_by_a_list_of_buckets(keys: list[int]) -> None:
    slow = oracle.GnuMap()
    for key in keys:
        slow.emplace(key, 1)
    assert iteration_order(keys) == [key for key, _ in slow.items]


# ----------------------------------------------------------------------------------------------- the rules


@settings(deadline=None, max_examples=rounds(90, full=300))
@given(
    static=records_,
    dynamic=records_,
    calls=st.lists(st.tuples(texts_, st.lists(text_of(ALPHABET, 4, shortest=0), max_size=12)), max_size=4),
    wide=st.integers(1, 8),
    pieces=st.booleans(),
)
@example(static=[], dynamic=[], calls=[([0, 1, 0, 2], [[0], [1, 0]])], wide=2, pieces=False)
def test_drafts_are_those_of_the_rules_written_out(
    static: list, dynamic: list, calls: list, wide: int, pieces: bool
) -> None:
    fast = LookupDrafter(
        NgramCounts(table_of(dict(static))),
        NgramCounts(table_of(dict(dynamic))),
        draft_tokens=wide,
        pieces=pieces,
    )
    slow_static = oracle.loaded([(ngram, [*pairs.items()]) for ngram, pairs in static])
    slow_dynamic = oracle.loaded([(ngram, [*pairs.items()]) for ngram, pairs in dynamic])
    for prompt, steps in calls:
        context: oracle.Cache = {}
        text = list(prompt)
        oracle.update(context, text, len(text))
        fast.begin(prompt)
        for written in steps:
            assert fast.draft() == oracle.draft(text, wide, context, slow_dynamic, slow_static)
            text += written
            if pieces:
                oracle.update(context, written, len(written))
            else:
                oracle.update(context, text, len(written))
            fast.append(written)
        fast.end()
        oracle.merge(slow_dynamic, context)


def test_the_context_has_lax_thresholds_and_the_dynamic_cache_strict_ones() -> None:
    # 3-gram (1 2 3) was followed by 9 once: enough for the own text (lax: 1), and 4-grams never stood
    one = drafter()
    assert drafts(one, [7, 1, 2, 3, 9, 1, 2, 3]) == [9]
    one.end()
    # as another text once is too little (strict: 2 for 3-grams), three times is enough
    assert drafts(one, [8, 1, 2, 3]) == []
    one.end()
    one.begin([6, 1, 2, 3, 9])
    one.end()
    assert drafts(one, [8, 1, 2, 3]) == [9]


def test_a_draft_needs_a_majority() -> None:
    # 1-gram 5 -> 6 6 8: 66 % of 3 is 1.98, so 2 are enough; one more 8: half and half is not
    assert drafts(drafter(), [5, 6, 0, 5, 6, 1, 5, 8, 2, 5]) == [6]
    assert drafts(drafter(), [5, 6, 0, 5, 6, 1, 5, 8, 2, 5, 8, 3, 5]) == []


def test_the_static_cache_comes_last_and_decides_between_candidates() -> None:
    static = [1, 2, 30, 1, 2, 30]
    assert drafts(drafter(static, 2), [1, 2]) == [30]  # 1 followed (2 30) only once
    # 40 stood twice behind (1 2), 30 once; the static cache knows 30, with 2 * 100: no majority, no draft
    text = [1, 2, 40, 0, 1, 2, 40, 9, 1, 2, 30, 8, 1, 2]
    assert drafts(drafter(), text) == [40]
    assert drafts(drafter(static), text) != [40]


def test_of_two_equal_followers_the_later_is_drafted() -> None:
    assert drafts(drafter(), [7, 7, 1, 2, 8, 1, 2, 9, 1, 2]) == [9]
    assert drafts(drafter([1, 2, 8, 1, 2, 9]), [1, 2]) == [9]


def test_texts_too_short_for_an_ngram() -> None:
    one = drafter([1, 2, 3, 1, 2, 3])
    assert drafts(one, []) == []
    assert drafts(one, [2]) == []
    assert drafts(one, [1, 2]) == [3]
    assert drafts(one, [0, 1, 2]) == [3]


def test_ngrams_do_not_span_pieces() -> None:
    whole, pieces = drafter(), LookupDrafter(NgramCounts(), NgramCounts(), draft_tokens=1, pieces=True)
    for one, expected in ((whole, [3]), (pieces, [])):
        one.begin([9])
        for token in [0, 1, 2, 3, 0, 1, 2]:
            one.append([token])
        assert one.draft() == expected
    pieces.begin([9, 0, 1, 2, 3])
    for token in [0, 1, 2]:
        pieces.append([token])
    assert pieces.draft() == [3]


def test_files_count_bytes_as_llama_cpp_writes_them() -> None:
    """(10 11) -> 12 or 13, (11 12) and (12 10) -> one each: 92 bytes of 2-grams."""
    counts = NgramCounts(orders=[2])
    counts.extend([10, 11, 12, 10, 11, 13], 0)
    assert counts.file_bytes() == 92


@pytest.mark.parametrize("field", ["ngrams", "tokens"])
def test_malformed_ngrams_are_refused(field: str) -> None:
    table = table_of({(1, 2): {3: 4}})
    getattr(table, field).flat[0] = -1
    with pytest.raises(InvalidInputError, match="must be token ids"):
        NgramCounts(table)
