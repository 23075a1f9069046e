"""Selection of subtrees, against brute force over all of them; and functions on trees."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc.errors import InvalidInputError
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.drafts.tree import (
    branches_of,
    check_parents,
    depths_of,
    follow,
    is_chain,
    leaf_count,
    rows_of,
    walk,
)
from suffixsvc_driver.policy.expected_gain import StepParams, best_prefix, best_tree, path_probs, prune
from support.long_form import rounds

trees = st.integers(0, 9).flatmap(
    lambda n: st.tuples(*(st.integers(-1, i - 1) for i in range(n))) if n else st.just(())
)


def closed_subtrees(parents: tuple[int, ...], max_leaves: int) -> list[tuple[int, ...]]:
    """Yield every set of nodes closed under parents with at most so many leaves."""
    parts = []
    for bits in itertools.product((0, 1), repeat=len(parents)):
        nodes = tuple(i for i, bit in enumerate(bits) if bit)
        if any(parents[i] >= 0 and not bits[parents[i]] for i in nodes):
            continue
        if len(nodes) - len({parents[i] for i in nodes if parents[i] >= 0}) <= max_leaves:
            parts.append(nodes)
    return parts


def gain_of(part: tuple[int, ...], paths: list[float], room: StepParams) -> float:
    """Return the gain of the best width that holds the subtree, by the definition."""
    if not part:
        return 0.0
    if len(part) > room.limit or 1 + len(part) > room.room:
        return -math.inf
    curve, rate = room.curve, room.rate
    expected = sum(paths[i] for i in part)
    plain = curve.cost(1 + room.other_tokens)
    widths = range(1 + room.other_tokens + len(part), min(curve.max_width, room.room + room.other_tokens) + 1)
    return max((expected - rate * (curve.costs[w] - plain) for w in widths), default=-math.inf)


curves = st.one_of(
    st.floats(0.0, 0.9).map(lambda a: CostCurve.linear(a, 14)),
    st.lists(st.floats(0.0, 3.0), min_size=5, max_size=13).map(lambda c: CostCurve((0.0, 1.0, *c))),
)


@settings(max_examples=rounds(45, full=150), deadline=None)
@given(
    parents=trees,
    probs=st.lists(st.floats(0.0, 1.0), min_size=9, max_size=9),
    curve=curves,
    rate=st.floats(1.0, 3.0),
    max_leaves=st.integers(1, 5),
    room=st.integers(1, 14),
    limit=st.integers(0, 9),
    other_tokens=st.integers(0, 3),
)
def test_the_best_subtree_equals_brute_force(
    parents: tuple[int, ...],
    probs: list[float],
    curve: CostCurve,
    rate: float,
    max_leaves: int,
    room: int,
    limit: int,
    other_tokens: int,
) -> None:
    paths = path_probs(parents, probs[: len(parents)])
    step = StepParams(curve, rate, limit, room, other_tokens)
    choice, order = best_tree(parents, paths, step, max_leaves)
    gains = {p: gain_of(p, paths, step) for p in closed_subtrees(parents, max_leaves)}
    best = max(gains.values())
    nodes = tuple(sorted(order[: choice.length]))
    assert nodes in gains, "closed under parents, and no more leaves than allowed"
    assert math.isclose(gains[nodes], choice.gain, abs_tol=1e-9)
    assert choice.gain <= best + 1e-9
    assert all(tuple(sorted(order[:n])) in gains for n in range(len(order) + 1))
    # exact where documented
    bound = leaf_count(parents) > max_leaves
    line = all(
        abs(curve.cost(w) - curve.cost(1) - (w - 1) * (curve.cost(2) - 1)) < 1e-9 for w in range(1, 15)
    )
    wide = room + other_tokens >= curve.max_width >= 10 + other_tokens and limit >= len(parents)
    if not bound or (line and wide):
        assert math.isclose(choice.gain, best, abs_tol=1e-9)


def test_too_many_leaves_cost_little_on_any_curve() -> None:
    """With few leaves and a curve with steps, the selection is not exact; its mean loss is bounded."""
    rng = np.random.default_rng(7)
    reached = possible = 0.0
    for _ in range(300):
        n = int(rng.integers(4, 10))
        parents = tuple(int(rng.integers(-1, i)) if i else -1 for i in range(n))
        paths = path_probs(parents, (rng.random(n) ** 0.4).tolist())
        curve = CostCurve((0.0, 1.0, *np.cumsum(rng.exponential(0.12, 11)) + 1.0))
        step = StepParams(curve, 1.3, 9, int(rng.integers(4, 12)))
        leaves = int(rng.integers(1, 4))
        reached += best_tree(parents, paths, step, leaves)[0].gain
        possible += max(gain_of(p, paths, step) for p in closed_subtrees(parents, leaves))
    print(reached / possible)
    assert 0.985 * possible <= reached <= possible + 1e-9


@given(
    probs=st.lists(st.floats(0, 1), max_size=12), curve=curves, rate=st.floats(1, 3), room=st.integers(1, 14)
)
def test_a_chain_is_cut_as_chains_are(probs: list[float], curve: CostCurve, rate: float, room: int) -> None:
    parents = tuple(range(-1, len(probs) - 1))
    step = StepParams(curve, rate, 12, room)
    chain = best_prefix(probs, step)
    tree, order = best_tree(parents, path_probs(parents, probs), step, 3)
    assert tree == chain
    assert order == sorted(order)


def test_probabilities_of_siblings_sum_to_at_most_one() -> None:
    #            a     b     a1    b1
    assert path_probs((-1, -1, 0, 1), (0.9, 0.9, 0.5, 1.0)) == pytest.approx([0.5, 0.5, 0.25, 0.5])
    assert path_probs((-1, -1), (0.6, 0.3)) == pytest.approx([0.6, 0.3])


def test_the_leaves_of_the_largest_gain_are_kept() -> None:
    """The most probable token has no child; its sibling begins a long text."""
    parents = (-1, -1, 1, 2, 3)
    paths = path_probs(parents, (0.5, 0.45, 1.0, 1.0, 1.0))
    step = StepParams(CostCurve.linear(0.05, 10), 1.0, 9, 10)
    chain, order = best_tree(parents, paths, step, 1)
    assert order[: chain.length] == [1, 2, 3, 4]
    assert prune(parents, paths, range(5), 1, 0.05) == [1, 2, 3, 4]
    both, order = best_tree(parents, paths, step, 2)
    assert order[: both.length] == [0, 1, 2, 3, 4]


# -- shapes


@given(parents=trees)
def test_branches_are_runs_of_leaves(parents: tuple[int, ...]) -> None:
    runs = branches_of(parents)
    inner = {p for p in parents if p >= 0}
    leaves = [i for i in range(len(parents)) if i not in inner]
    assert leaf_count(parents) == len(leaves)
    assert sorted(runs[i] for i in leaves) == [(k, k + 1) for k in range(len(leaves))]
    for i, (first, end) in enumerate(runs):
        below = {runs[leaf][0] for leaf in leaves if i in ancestors(parents, leaf)}
        assert below == set(range(first, end))
    assert depths_of(parents) == [len(ancestors(parents, i)) - 1 for i in range(len(parents))]
    if parents:
        at, first_path = -1, []
        while at in parents:
            at = parents.index(at)
            first_path.append(at)
        assert runs[first_path[-1]][0] == 0, "the first child's leaf is the first"


def ancestors(parents: tuple[int, ...], i: int) -> list[int]:
    """Return the ancestors of a node, itself included."""
    path = []
    while i >= 0:
        path.append(i)
        i = parents[i]
    return path


def test_walk_is_preorder() -> None:
    #      0 - 2 - 5       in the order of their probability: 1 before 0, 3 before 2
    # root   ` 3
    #      1 - 4
    parents = (-1, -1, 0, 0, 1, 2)
    assert walk(parents, [1, 4, 0, 3, 2, 5]) == [1, 4, 0, 3, 2, 5]
    assert walk(parents, [0, 1, 2, 3, 4, 5]) == [0, 2, 5, 3, 1, 4]
    assert walk(parents, [1, 0, 3]) == [1, 0, 3]
    assert walk(parents, []) == []


def test_a_text_determines_its_path() -> None:
    tokens, parents = (5, 6, 7, 8, 9), (-1, -1, 0, 0, 3)
    assert follow(tokens, parents, (5, 8, 9, 1)) == [0, 3, 4]
    assert rows_of(tokens, parents, (5, 8, 9, 1)) == [0, 1, 4, 5]
    assert rows_of(tokens, parents, (5,)) == [0]
    assert follow(tokens, parents, (6, 8)) == [1]
    assert follow(tokens, parents, (4,)) == []
    assert follow((5, 6), (), (5, 6, 7)) == [0, 1]
    assert follow((5, 6), (), (5, 7)) == [0]
    assert rows_of((5, 6), (), (5, 7)) == [0, 1]
    assert is_chain((-1, 0, 1))
    assert not is_chain((-1, -1))


@pytest.mark.parametrize("parents", [(0,), (-1, 1), (-1, 2, 0), (-2,), (-1, -1, 5)])
def test_parents_come_first(parents: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInputError, match="before"):
        check_parents(parents, len(parents))


def test_every_token_has_a_parent() -> None:
    check_parents((), 3)
    with pytest.raises(InvalidInputError, match="expected 3"):
        check_parents((-1,), 3)
