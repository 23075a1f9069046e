"""Runs of tokens that k principals wrote, against brute force over all substrings."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc.core import _ext
from suffixsvc.core.segments import SegmentJob
from suffixsvc.errors import InvalidInputError, SegmentCancelledError
from support.runs_oracle import Run, maximal, shared_substrings, substrings

Text = tuple[int, list[int]]  # number of the principal, tokens


def shared_runs(texts: list[Text], principals: int, least: int) -> list[Run]:
    tokens, lengths, dropped = _ext.shared_runs(
        np.array([token for _, text in texts for token in text], np.int32),
        np.array([len(text) for _, text in texts], np.uint64),
        np.array([number for number, _ in texts], np.uint32),
        principals,
        least,
    )
    assert dropped == 0
    if not len(lengths):
        return []
    return [tuple(part.tolist()) for part in np.split(tokens, np.cumsum(lengths.astype(np.int64))[:-1])]


def agrees(texts: list[Text], principals: int, least: int) -> None:
    """Each maximal run once, in order; all of its parts are shared, and nothing that is shared is missing."""
    found = shared_runs(texts, principals, least)
    named = [(str(number), text) for number, text in texts]
    shared = shared_substrings(named, principals, least)
    published = {part for run in found for part in substrings(run, least)}
    assert published <= shared, "a published run was not written by enough principals"
    assert shared <= published, "a run that enough principals wrote is missing"
    assert found == sorted(maximal(shared))


def _numbered(texts: list[Text]) -> list[Text]:
    """Numbers of principals below the number of texts."""
    numbers: dict[int, int] = {}
    return [(numbers.setdefault(number, len(numbers)), text) for number, text in texts]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.lists(st.integers(0, 2), max_size=18)), min_size=1, max_size=9),
    st.integers(2, 4),
    st.integers(1, 4),
)
def test_runs_are_those_of_brute_force(texts: list[Text], principals: int, least: int) -> None:
    agrees(_numbered(texts), principals, least)


@pytest.mark.parametrize("seed", range(12))
def test_texts_that_share_long_parts(seed: int) -> None:
    """Many principals copy parts of each other's texts: overlaps, prefixes, repeats, a whole text."""
    chance = random.Random(seed)
    texts: list[Text] = []
    for number in range(chance.randint(2, 14)):
        text: list[int] = []
        while len(text) < 30:
            if texts and chance.random() < 0.7:
                _, other = chance.choice(texts)
                first = chance.randrange(len(other))
                text += other[first : first + chance.randint(1, 25)]
            else:
                text += [chance.choice([0, 1, 2**31 - 1, 77])] * chance.randint(1, 4)
        texts.append((number if chance.random() < 0.8 else chance.randrange(number + 1), text))
    for principals in (2, 3, 5):
        for least in (1, 6):
            print(f"seed {seed}, {principals} principals, at least {least} tokens")
            agrees(_numbered(texts), principals, least)


def test_overlapping_runs_are_not_joined() -> None:
    texts = [(0, [1, 2, 3, 4, 9]), (1, [7, 1, 2, 3, 4]), (2, [3, 4, 9, 8])]
    assert shared_runs(texts, 2, 2) == [(1, 2, 3, 4), (3, 4, 9)]


def test_a_principal_counts_once() -> None:
    assert shared_runs([(0, [1, 2, 3])] * 5, 2, 1) == []
    assert shared_runs([(0, [1, 2, 3]), (0, [1, 2, 3]), (1, [2, 3, 4])], 2, 1) == [(2, 3)]


def test_runs_do_not_cross_the_ends_of_texts() -> None:
    both = [[1, 2], [3, 4]]
    assert shared_runs([(n, text) for n in range(2) for text in both], 2, 1) == [(1, 2), (3, 4)]


@pytest.mark.parametrize("length", [1, 63, 64, 65, 5000])
def test_runs_of_any_length_are_whole(length: int) -> None:
    """Longer than the contexts that a segment distinguishes, too, and periodic."""
    text = [n % 7 for n in range(length)]
    texts = [(n, [100 + n, *text, 200 + n]) for n in range(4)]
    assert shared_runs(texts, 4, 1) == [tuple(text)]


def test_no_texts_no_runs() -> None:
    assert shared_runs([], 2, 8) == []
    assert shared_runs([(0, []), (1, [])], 2, 1) == []


@pytest.mark.parametrize(
    ("tokens", "lengths", "principals", "at_least", "message"),
    [
        ([1, 2], [2], [0], (1, 1), "min_principals must be at least 2"),
        ([1, 2], [2], [0], (2, 0), "min_length must be at least 1"),
        ([1, 2], [2], [0, 1], (2, 1), "principals must have one element per text"),
        ([1, 2], [1, 2], [0, 1], (2, 1), "lengths must add up to the number of tokens"),
        ([1, 2], [1], [0], (2, 1), "lengths must add up to the number of tokens"),
        ([1, 2], [2**63, 2**63 + 2], [0, 0], (2, 1), "lengths must add up to the number of tokens"),
        ([1, 2], [2], [1], (2, 1), "principals must be below the number of texts"),
        ([1, -2], [2], [0], (2, 1), "token id at position 1 must not be negative"),
    ],
)
def test_invalid_input_is_refused(
    tokens: list[int], lengths: list[int], principals: list[int], at_least: tuple[int, int], message: str
) -> None:
    arrays = np.array(tokens, np.int32), np.array(lengths, np.uint64), np.array(principals, np.uint32)
    with pytest.raises(InvalidInputError, match=message):
        _ext.shared_runs(*arrays, *at_least)


def test_too_many_tokens_are_refused() -> None:
    size = _ext.MAX_SHARED_TOKENS + 1
    tokens = np.zeros(size, np.int32)
    with pytest.raises(InvalidInputError, match="texts must be limited"):
        _ext.shared_runs(tokens, np.array([size], np.uint64), np.zeros(1, np.uint32), 2, 1)


def test_a_cancelled_job_ends() -> None:
    job = SegmentJob()
    job.cancel()
    tokens = np.zeros(2, np.int32)
    with pytest.raises(SegmentCancelledError):
        _ext.shared_runs(tokens, np.ones(2, np.uint64), np.arange(2, dtype=np.uint32), 2, 1, job)
