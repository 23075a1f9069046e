"""Memory of the index: nodes with many edges, reuse of memory, and its return to the system."""

from __future__ import annotations

from collections import deque
from random import Random

import numpy as np
import pytest

from suffixsvc.core import Index


def arr(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


@pytest.mark.parametrize("followers", [1, 2, 3, 16, 17, 24, 25, 192, 193, 1_000, 50_000, 70_000])
def test_a_node_may_have_any_number_of_edges(followers: int) -> None:
    """Blocks and hash tables of every size: the context [7] and the root have this many followers. Texts are
    removed in another order than they were added."""
    random = Random(followers)
    index = Index(2)
    tokens = random.sample(range(8, 2**31 - 1), followers)
    texts = [arr([t for token in tokens[i : i + 500] for t in (7, token)]) for i in range(0, followers, 500)]
    for writer, text in enumerate(texts, 1):
        index.add(text, 0, writer)
    assert index.check() == ""
    index.propagate_counts()
    assert index.count(arr([7])) == followers
    for token in tokens[:: max(1, followers // 200)]:
        assert index.count(arr([7, token])) == 1
    random.shuffle(texts)
    for i, text in enumerate(texts):
        assert index.remove(text, 0)
        if i % 20 == 0:
            assert index.check() == ""
    stats = index.stats()
    assert (stats.nodes, stats.edges, stats.tokens) == (1, 0, 0)


def test_memory_is_reused_when_new_texts_replace_old_ones() -> None:
    """A cache at its limit: each addition removes as much. The index must not grow with the total added."""
    random = Random(5)
    phrases = [[random.randrange(5_000) for _ in range(random.randint(5, 40))] for _ in range(300)]

    def text() -> np.ndarray:
        tokens: list[int] = []
        while len(tokens) < 300:
            tokens += [
                t if random.random() < 0.95 else random.randrange(5_000) for t in random.choice(phrases)
            ]
        return arr(tokens)

    index = Index(64)
    live: deque[np.ndarray] = deque()
    for i in range(300):
        live.append(text())
        index.add(live[-1], 0, i)
    full = index.stats().bytes
    for i in range(1_500):
        live.append(text())
        index.add(live[-1], 0, 1_000 + i)
        assert index.remove(live.popleft(), 0)
    assert index.check() == ""
    assert index.stats().bytes < 1.25 * full


def test_memory_is_returned_before_all_is_removed() -> None:
    random = Random(6)
    texts = [arr([random.randrange(100_000) for _ in range(1_000)]) for _ in range(400)]
    index = Index(64)
    for i, text in enumerate(texts):
        index.add(text, 0, i)
    full = index.stats().bytes
    held = []
    for i, text in enumerate(texts[:-1]):
        assert index.remove(text, 0)
        if i % 100 == 99:
            held.append(index.stats().bytes / full)
    assert held == sorted(held, reverse=True)
    assert held[-1] < 0.75
    assert index.check() == ""
    assert index.remove(texts[-1], 0)
    assert index.stats().bytes <= 1.1 * Index(64).stats().bytes
