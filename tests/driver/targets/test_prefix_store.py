"""Stored prefixes against a brute-force oracle."""

from __future__ import annotations

import ctypes
import random

import pytest

from suffixsvc_driver.targets.prefix_store import PrefixStore, StoredPrefix
from support.long_form import rounds
from support.targets import shared_prefix

#: tokens after a common beginning that are not worth an entry of their own
TAIL = 32


def entry(principal: str, tokens: tuple[int, ...], *, whole: bool = False) -> StoredPrefix:
    return StoredPrefix(principal, tokens, (ctypes.c_uint8 * 1)(), len(tokens) if whole else 0)


@pytest.mark.parametrize("seed", range(rounds(4, full=10)))
@pytest.mark.parametrize("whole", [False, True], ids=["any length", "whole texts"])
def test_entries_are_those_of_brute_force(seed: int, whole: bool) -> None:
    """The most recently used ones are kept, up to the capacity, at the cost of the principal with the most
    tokens; none that another one of its principal continues; the longest common prefix is found."""
    print("seed", seed)
    rng = random.Random(seed)
    capacity = rng.choice((60, 300, 1000))
    store = PrefixStore(capacity)
    held: list[tuple[str, tuple[int, ...]]] = []  # the most recently used last
    found = covered = replaced = dropped = 0

    def serves(tokens: tuple[int, ...], count: int) -> bool:
        """Whether the KV of a stored text can be cut to so many tokens."""
        return count == len(tokens) if whole else count > 0

    for _ in range(400):
        owner = rng.choice("ab")
        text = tuple(rng.choices((1, 2), k=rng.randint(1, 4)) + [7] * rng.choice((0, 1, 20, 40)))
        if held and rng.random() < 0.5:  # a next turn, or a part of someone's text
            text = rng.choice(held)[1]
            text = text[: rng.randint(1, len(text))] if rng.random() < 0.5 else (*text, 1, 2)
        if len(text) > capacity:
            continue

        prompt = [*text, rng.choice((1, 2))]
        lengths = [
            shared_prefix(t, text) for w, t in held if w == owner and serves(t, shared_prefix(t, text))
        ]
        length, best = store.longest(prompt, owner)
        assert length == max(lengths, default=0)
        assert (best is None) == (length == 0)
        if best is not None:
            assert best.principal == owner
            assert best.token_ids[:length] == text[:length]
            found += 1
            store.use(best)
            # of equally long ones the most recently used
            at = max(
                i
                for i, (w, t) in enumerate(held)
                if w == owner and shared_prefix(t, text) >= length and serves(t, shared_prefix(t, text))
            )
            assert held[at] == (best.principal, best.token_ids)
            held.append(held.pop(at))

        covering = [
            i
            for i, (w, t) in enumerate(held)
            if w == owner and t[: len(text)] == text and serves(t, len(text))
        ]
        assert store.covers(owner, text) == bool(covering)
        if covering:
            held.append(held.pop(covering[0]))
            covered += 1
            continue
        store.add(entry(owner, text, whole=whole))
        for each in tuple(held):
            shared = shared_prefix(each[1], text)
            if each[0] != owner or not serves(text, shared):
                continue
            if len(each[1]) - shared <= min(TAIL, shared):
                held.remove(each)
                replaced += 1
        held.append((owner, text))
        while sum(len(tokens) for _, tokens in held) > capacity:
            sizes = {w: sum(len(t) for x, t in held if x == w) for w, _ in held}  # in order of use
            most = max(sizes, key=lambda w: sizes[w])
            held.remove(next(each for each in held if each[0] == most))
            dropped += 1
        assert store.tokens == sum(len(tokens) for _, tokens in held) <= capacity
    assert min(found, covered, replaced, dropped) > 3
    store.clear()
    assert store.tokens == 0
    assert store.longest([1, 2, 3], "a") == (0, None)


def test_the_number_of_entries_is_bounded() -> None:
    store = PrefixStore(10**6)
    for i in range(300):
        store.add(entry("", (i, *[7] * 50)))
    assert store.tokens == 256 * 51
    assert store.longest([0, 7, 7], "") == (0, None)
    assert store.longest([299, 7, 7], "")[0] == 2
