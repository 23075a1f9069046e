"""The hot index, compared with a brute-force oracle on adversarial inputs."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from suffixsvc.core import Index
from support import adversarial_inputs
from support.long_form import rounds
from support.oracle import BruteForceIndex
from support.text_strategies import text_of


def arr(tokens: list[int] | tuple[int, ...]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def require_equal(index: Index, oracle: BruteForceIndex) -> None:
    """Compare all queries of the index after its counts are propagated."""
    index.propagate_counts()
    assert index.check() == ""
    bound = min(index.max_context, 8)
    counts = oracle.counts(bound)
    for gram, n in counts.items():
        assert index.count(arr(gram)) == n, gram
    for n in range(1, min(4, bound) + 1):
        tokens, got = index.ngrams(n)
        table = {tuple(map(int, g)): int(c) for g, c in zip(tokens.reshape(-1, n), got, strict=True)}
        assert table == {g: c for g, c in counts.items() if len(g) == n}
    assert index.stats().tokens == sum(len(t) for t, _, _ in oracle.texts)


small_text = st.one_of(
    text_of([0, 1], 40),
    text_of([0, 1, 2, 3], 40),
    text_of([0, 7, 2**31 - 1], 30),
    st.builds(lambda p, n: (p * n)[:60], text_of([0, 1, 2], 5), st.integers(2, 20)),
    st.builds(lambda t, n: [t] * n, st.integers(0, 2), st.integers(1, 60)),
)


@settings(max_examples=rounds(300, full=1000), deadline=None)
@given(
    max_context=st.sampled_from([1, 2, 3, 5, 8, 64]),
    script=st.lists(
        st.tuples(st.booleans(), small_text, st.integers(0, 4), st.integers(0, 2), st.integers(0, 99)),
        max_size=12,
    ),
)
def test_index_counts_and_matches_as_brute_force_does(
    max_context: int, script: list[tuple[bool, list[int], int, int, int]]
) -> None:
    index, oracle = Index(max_context), BruteForceIndex()
    for removes, tokens, context, writer, pick in script:
        if removes and oracle.texts:
            text, uncounted, _ = oracle.texts[pick % len(oracle.texts)]
            assert index.remove(arr(text), uncounted)
            assert oracle.remove(text, uncounted)
        else:
            uncounted = min(context, len(tokens))
            index.add(arr(tokens), uncounted, writer)
            oracle.add(tokens, uncounted, writer)
        assert index.check() == ""
        assert index.longest_match(arr(tokens)) == oracle.longest_match(tokens, max_context)
    require_equal(index, oracle)


@pytest.mark.parametrize("name", sorted(adversarial_inputs.ALL))
def test_nodes_visited_per_appended_token_stay_bounded(name: str) -> None:
    """At most 8 on average whatever the input and the depth: appending is O(1) amortised."""
    for max_context in (8, 64, 512):
        index = Index(max_context)
        index.add(arr(adversarial_inputs.ALL[name](30_000, Random(f"{name} {max_context}"))), 0, 1)
        stats = index.stats()
        assert stats.visited / stats.appended <= 8.0, (name, max_context)
        assert index.check() == ""


def test_nodes_visited_stay_bounded_for_two_writers_in_lock_step() -> None:
    """Two texts alternate in being one token ahead: in a tree of the forward texts each would take over all
    open leaves of the other at every token."""
    from suffixsvc.core import Learner, Session

    random = Random(7)
    index = Index(64)
    sessions = [Session(index, [], Learner(), w, 8) for w in (2, 3)]
    for i, session in enumerate(sessions):
        session.append_context(arr([100 + i]))
    text = [random.randrange(50) for _ in range(3_000)]
    for i, token in enumerate(text):
        for session in sessions if i % 2 else sessions[::-1]:
            session.append(arr([token]), False)
    stats = index.stats()
    assert stats.visited / stats.appended <= 8.0
    assert index.check() == ""


@pytest.mark.parametrize("name", sorted(adversarial_inputs.ALL))
def test_removing_everything_leaves_an_empty_index(name: str) -> None:
    random = Random(f"remove {name}")
    index = Index(64)
    empty = index.stats()
    texts = [adversarial_inputs.ALL[name](random.randint(1, 400), random) for _ in range(20)]
    for text in texts:
        index.add(arr(text), 0, random.randrange(1, 4))
    random.shuffle(texts)
    for text in texts:
        assert index.remove(arr(text), 0)
        assert index.check() == ""
    stats = index.stats()
    assert (stats.nodes, stats.edges, stats.tokens) == (1, 0, 0)
    assert stats.bytes <= empty.bytes


def test_a_text_that_was_not_added_cannot_be_removed() -> None:
    """A prefix, a substring and a longer text share nodes with the text, but are not the text."""
    index, oracle = Index(), BruteForceIndex()
    index.add(arr([1, 2, 3, 4]), 0, 1)
    oracle.add([1, 2, 3, 4], 0)
    for wrong in ([1, 2, 3], [2, 3, 4], [1, 2, 3, 4, 5], [9], [1]):
        assert not index.remove(arr(wrong), 0)
        require_equal(index, oracle)
    assert index.remove(arr([1, 2, 3, 4]), 0)
    assert not index.remove(arr([1, 2, 3, 4]), 0)


def test_equal_texts_are_counted_and_removed_one_by_one() -> None:
    index = Index()
    for _ in range(3):
        index.add(arr([5, 6, 7]), 0, 1)
    for left in (2, 1, 0):
        assert index.remove(arr([5, 6, 7]), 0)
        index.propagate_counts()
        assert index.count(arr([6, 7])) == left
    assert index.stats().nodes == 1


def test_context_only_tokens_are_matched_but_not_counted() -> None:
    index = Index()
    index.add(arr([1, 2, 3, 4]), 2, 1)
    index.propagate_counts()
    assert index.longest_match(arr([1, 2])) == 2
    assert index.count(arr([1])) == 0
    assert index.count(arr([2])) == 0
    assert index.count(arr([1, 2, 3])) == 1


def test_pending_counts_never_exceed_the_truth() -> None:
    """Before propagate_counts() counts may lag, but never exceed the truth: drafts would be overconfident."""
    random = Random(11)
    index, oracle = Index(16), BruteForceIndex()
    for _ in range(60):
        text = [random.randrange(4) for _ in range(50)]
        index.add(arr(text), 0, 1)
        oracle.add(text, 0)
    for gram, n in oracle.counts(5).items():
        assert 0 <= index.count(arr(gram)) <= n


class IndexMachine(RuleBasedStateMachine):
    """Random interleavings of all operations that change the index, with check() after each."""

    @initialize(max_context=st.sampled_from([2, 4, 64]))
    def start(self, max_context: int) -> None:
        self.index, self.oracle = Index(max_context), BruteForceIndex()

    @rule(tokens=small_text, context=st.integers(0, 3), writer=st.integers(1, 3))
    def add(self, tokens: list[int], context: int, writer: int) -> None:
        context = min(context, len(tokens))
        self.index.add(arr(tokens), context, writer)
        self.oracle.add(tokens, context, writer)

    @precondition(lambda self: self.oracle.texts)
    @rule(pick=st.integers(0, 1000))
    def remove(self, pick: int) -> None:
        text, context, _ = self.oracle.texts[pick % len(self.oracle.texts)]
        assert self.index.remove(arr(text), context)
        self.oracle.remove(text, context)

    @precondition(lambda self: self.oracle.texts)
    @rule(pick=st.integers(0, 1000), tail=small_text)
    def add_a_text_that_begins_as_another(self, pick: int, tail: list[int]) -> None:
        text = [*self.oracle.texts[pick % len(self.oracle.texts)][0], *tail]
        self.index.add(arr(text), 0, 1)
        self.oracle.add(text, 0)

    @rule()
    def propagate_counts(self) -> None:
        note("propagate_counts")
        require_equal(self.index, self.oracle)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "index"):
            assert self.index.check() == ""

    def teardown(self) -> None:
        if hasattr(self, "index"):
            require_equal(self.index, self.oracle)


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=rounds(45, full=150), stateful_step_count=25, deadline=None)
