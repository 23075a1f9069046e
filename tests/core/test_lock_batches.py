"""Long jobs of the native core hold the locks that decode steps wait for in bounded batches.

The tests bound work (nodes touched in one hold), which is the same on every machine. A test that needs two
threads to overlap retries until they do.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from suffixsvc.core import Index, Session, new_learner
from suffixsvc.core._ext import longest_holds, reset_holds
from suffixsvc.core.segments import Segment, SegmentText, build_segment
from support.segment_levels import levels_of

#: nodes, or edges, of one hold: those of a batch, and what its last token may add
MOST_WORK = 6_000
CURVE = 1.0 + 0.02 * np.arange(17)


def tokens(rng: np.random.Generator, count: int, vocabulary: int = 150_000) -> np.ndarray:
    return rng.integers(0, vocabulary, count).astype(np.int32)


def session_at(index: Index, prompt: list[int], writer: int) -> Session:
    session = Session(index, [], new_learner(), writer, 64)
    session.append_context(np.array(prompt, dtype=np.int32))
    return session


def step(session: Session, token: int) -> None:
    session.record_step(1.0, 1)
    session.append(np.array([token], dtype=np.int32), True)
    session.draft(8, CURVE, False, b"\0\1")


def work_of(lock: str, job: Callable[[], object]) -> int:
    reset_holds()
    job()
    return longest_holds()[lock][1]


def longest_part(lock: str, job: Callable[[], object]) -> float:
    """The part of the processor time of a job that its longest hold takes."""
    reset_holds(processor_time=True)
    try:
        before = time.thread_time()
        job()
        return longest_holds()[lock][0] / (time.thread_time() - before)
    finally:
        reset_holds()


def meets(job: Callable[[], object], other: Callable[[], bool], wanted: int) -> bool:
    """Whether ``other``, repeated while the job runs, returned true at least ``wanted`` times."""
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(job)
        met = 0
        while not under_way.done():
            met += other()
        under_way.result()
    return met >= wanted


def test_siblings_step_while_a_long_session_is_discarded() -> None:
    """Discarding a session of half a million tokens held the lock of all writers of its namespace from the
    first token to the last: a sibling's step waited 112 ms or longer. It is now removed in batches of 128
    tokens, from its end on, and waiting threads run between two batches."""
    rng = np.random.default_rng(1)
    for writer in range(1, 40, 2):
        index = Index()
        long = session_at(index, [1, 2, 3], writer)
        for _ in range(20):
            long.append(tokens(rng, 10_000), False)
        sibling = session_at(index, [4, 5, 6], writer + 1)
        step(sibling, 1)

        def half_removed() -> bool:
            return 100_000 < index.stats().tokens < 180_000  # noqa: B023

        def step_between() -> bool:
            before = half_removed()
            step(sibling, int(rng.integers(1000)))  # noqa: B023
            return before and half_removed()

        if meets(long.retract, step_between, 3):
            break
        sibling.retract()
    else:
        pytest.fail("no step overlapped with a retraction in twenty attempts")
    sibling.retract()
    assert index.stats().tokens == 0
    assert index.check() == ""


def test_a_batch_has_a_bounded_amount_of_work() -> None:
    """For texts of any content and length: also for one that repeats itself for a million tokens and stops,
    whose last token would touch them all in an undivided text."""
    rng = np.random.default_rng(2)
    period = tokens(rng, 37)
    texts = {
        "new": tokens(rng, 300_000),
        "small vocabulary": tokens(rng, 100_000, 7),
        "one token": np.append(np.full(300_000, 7, np.int32), np.int32(8)),
        "periodic": np.append(np.tile(period, 5_000), np.int32(9)),
    }
    for name, text in texts.items():
        # One token may end a repetition of kMaxText tokens: a piece is not divided.
        most = MOST_WORK + (2 << 15 if name in {"one token", "periodic"} else 0)
        index = Index()
        assert work_of("index", lambda: index.add(text, 0, 1)) <= most, name  # noqa: B023
        index.add(text[: len(text) // 2], 0, 2)
        assert work_of("index", lambda: index.remove(text, 0)) <= most, name  # noqa: B023
        assert work_of("index", index.propagate_counts) <= MOST_WORK, name
        # A node's edges are listed in one batch.
        edges = len(set(text.tolist()))
        assert work_of("index", lambda: index.ngrams(2)) <= MOST_WORK + edges, name  # noqa: B023
        assert index.check() == "", name


def test_an_index_is_checked_in_batches() -> None:
    """check() held the lock from its first node to its last without counting work: writers of the namespace
    waited 1.8 s for the check of three million tokens. It now runs in batches, also within a node with many
    edges."""
    rng = np.random.default_rng(4)
    index = Index()
    index.add(tokens(rng, 300_000, 3_000), 0, 1)
    assert longest_part("index", index.check) < 0.2
    wide = Index()
    wide.add(np.arange(100_000, dtype=np.int32), 0, 1)  # all of them follow the root
    for checked in (index, wide):
        assert 500 <= work_of("index", checked.check) <= MOST_WORK


def test_others_write_while_the_index_is_checked() -> None:
    """Sessions are opened, write and are discarded, outputs are added and forgotten: the index is consistent
    at any time, although check() reads its parts at different times."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = np.random.default_rng(seed)
    index = Index()
    kept = tokens(rng, 200_000, 60)
    index.add(kept, 0, 1)
    problems: list[str] = []

    def write() -> bool:
        text = tokens(rng, int(rng.integers(1, 400)), int(rng.choice([3, 60, 3_000])))
        index.add(text, 0, 2)
        session = session_at(index, text[:50].tolist(), 3)
        for token in text[:5].tolist():
            step(session, token)
        session.retract()
        assert index.remove(text, 0)
        if rng.random() < 0.1:
            index.propagate_counts()
        return True

    for _ in range(20):
        if meets(lambda: problems.append(index.check()), write, 20):
            break
    else:
        pytest.fail("no write overlapped with a check in twenty attempts")
    assert {*problems} == {""}
    assert index.check() == ""
    assert index.remove(kept, 0)
    assert index.stats().nodes == 1


def test_a_removal_visits_many_followers_in_batches() -> None:
    """Whether a text ends in a node that thousands of texts pass is determined by summing over its followers.
    That took one hold without counting work: 20,000 nodes for 20,000 followers."""
    index = Index()
    first = np.array([1], np.int32)
    for follower in range(2, 20_002):
        index.add(np.array([1, follower], np.int32), 0, follower)
    found: list[bool] = []
    assert 2_000 <= work_of("index", lambda: found.append(index.remove(first, 0))) <= MOST_WORK
    index.add(first, 0, 1)
    assert 2_000 <= work_of("index", lambda: found.append(index.remove(first, 0))) <= MOST_WORK
    assert found == [False, True]
    assert index.check() == ""


def test_as_many_are_removed_as_were_added_beside_their_followers() -> None:
    """Texts of one token are added, and removed by two threads, while texts that begin with it are added,
    extended and removed: each is removed once, and no other text is removed instead."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = np.random.default_rng(seed)
    index = Index()
    first = np.array([1], np.int32)
    for follower in range(2, 8_002):
        index.add(np.array([1, follower], np.int32), 0, follower)
    added = 0

    def remove() -> int:
        return sum(index.remove(first, 0) for _ in range(60))

    with ThreadPoolExecutor(2) as pool:
        removals = [pool.submit(remove) for _ in range(2)]
        while not all(each.done() for each in removals):
            index.add(first, 0, 1)
            added += 1
            session = session_at(index, [0], 9_000)
            follower = int(rng.integers(2, 12_000))
            index.add(np.array([1, follower], np.int32), 0, 1)
            index.add(np.array([1, 8_000, 1, follower], np.int32), 0, 1)
            session.append(np.array([1, follower, 1], np.int32), False)
            session.retract()
            assert index.remove(np.array([1, 8_000, 1, follower], np.int32), 0)
            assert index.remove(np.array([1, follower], np.int32), 0)
        removed = sum(each.result() for each in removals)
    while index.remove(first, 0):
        removed += 1
    assert removed == added
    assert index.check() == ""
    for follower in range(2, 8_002):
        assert index.remove(np.array([1, follower], np.int32), 0)
    assert index.stats().nodes == 1


def test_a_long_session_writes_and_is_retracted_in_batches() -> None:
    rng = np.random.default_rng(3)
    index = Index()

    def write() -> None:
        session = session_at(index, tokens(rng, 200_000).tolist(), 1)
        session.append(tokens(rng, 100_000), False)
        session.append_context(tokens(rng, 1_000))
        session.append(tokens(rng, 40_000), False)
        session.retract()

    assert work_of("index", write) <= MOST_WORK
    assert index.stats().tokens == 0


@pytest.mark.parametrize("length", [32_767, 32_768, 32_769, 70_000])
def test_a_long_text_is_kept_in_pieces_that_count_as_one(length: int) -> None:
    """Counts, matches and what can be removed are those of the whole text."""
    rng = np.random.default_rng(length)
    text, uncounted = tokens(rng, length, 50), 20
    index = Index()
    index.add(text, uncounted, 1)
    session = session_at(index, text[:uncounted].tolist(), 2)
    session.append(text[uncounted:], False)
    assert index.check() == ""
    grams, counts = index.ngrams(3)
    expected: dict[tuple[int, ...], int] = {}
    for end in range(max(uncounted, 2), length):
        gram = tuple(text[end - 2 : end + 1].tolist())
        expected[gram] = expected.get(gram, 0) + 2
    assert dict(zip(map(tuple, grams.reshape(-1, 3).tolist()), counts.tolist(), strict=True)) == expected
    at = min(length, 32_768)
    assert index.longest_match(text[at - 70 : at + 10]) == 64
    assert index.remove(text, uncounted)
    session.retract()
    assert index.stats().nodes == 1
    assert not index.remove(text, uncounted)


def test_the_index_is_consistent_between_batches() -> None:
    """While a text is removed, other threads see the index of a shorter text. A part of a text that is being
    removed is not a text, and cannot be removed meanwhile."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = np.random.default_rng(seed)
    index, kept = Index(), tokens(rng, 5_000, 60)
    text = tokens(rng, 150_000, 60)
    index.add(kept, 0, 1)

    def observe() -> bool:
        assert index.check() == ""
        cut = int(rng.integers(1, 30_000))
        assert not index.remove(text[:cut], 0)
        assert not index.remove(kept[: int(rng.integers(1, 4_999))], 0)
        assert index.longest_match(kept[:100]) == 64
        return len(kept) < index.stats().tokens < len(kept) + len(text)

    for _ in range(20):
        index.add(text, 0, 2)
        if meets(lambda: index.remove(text, 0), observe, 1):
            break
    else:
        pytest.fail("no observation overlapped with a removal in twenty attempts")
    assert index.check() == ""
    assert index.stats().tokens == len(kept)
    assert index.remove(kept, 0)
    assert index.stats().nodes == 1


def test_equal_texts_are_removed_at_the_same_time() -> None:
    """Each is removed once: a removal fails if as many others are in progress as there are texts."""
    rng = np.random.default_rng(6)
    text = tokens(rng, 60_000, 40)
    index = Index()
    for writer in range(3):
        index.add(text, 0, writer)
    with ThreadPoolExecutor(5) as pool:
        found = [each.result() for each in [pool.submit(index.remove, text, 0) for _ in range(5)]]
    assert sorted(found) == [False, False, True, True, True]
    assert index.stats().nodes == 1
    assert index.check() == ""


def test_ngrams_are_exported_while_others_write() -> None:
    rng = np.random.default_rng(7)
    index = Index()
    index.add(tokens(rng, 200_000, 3_000), 0, 1)
    lasting = index.ngrams(2)
    wanted = {
        tuple(g): c for g, c in zip(lasting[0].reshape(-1, 2).tolist(), lasting[1].tolist(), strict=True)
    }
    exported: list[tuple[np.ndarray, np.ndarray]] = []
    text = tokens(rng, 2_000, 3_000)

    def write() -> bool:
        index.add(text, 0, 2)
        assert index.remove(text, 0)
        return True

    for _ in range(3):
        meets(lambda: exported.append(index.ngrams(2)), write, 0)
    for grams, counts in exported:
        pairs = list(map(tuple, grams.reshape(-1, 2).tolist()))
        assert len(set(pairs)) == len(pairs)
        found = dict(zip(pairs, counts.tolist(), strict=True))
        assert all(found.get(pair, 0) >= count for pair, count in wanted.items())


def segment_with_hubs(folder: Path, outputs: int, length: int) -> Segment:
    """Texts from few templates: nearly every context is frequent."""
    rng = np.random.default_rng(8)
    templates = [tokens(rng, length, 3_000) for _ in range(4)]
    texts = []
    for i in range(outputs):
        text = templates[i % 4].copy()
        text[rng.integers(0, length, length // 20)] = rng.integers(0, 3_000, length // 20)
        texts.append(SegmentText(text, 0, i + 1))
    build_segment(folder / "hubs.seg", texts)
    return Segment(folder / "hubs.seg")


def test_outputs_are_forgotten_while_hubs_are_corrected(tmp_path: Path) -> None:
    """Correcting the hubs for 256 texts held the segment's lock for up to 0.7 s; a Forget waited for it with
    the cache's lock held, and so did every open. Hubs are now corrected outside of the lock."""
    path = segment_with_hubs(tmp_path, 400, 1_000).path
    outputs = Segment(path).outputs()

    def corrected_beside_forgets() -> Segment | None:
        segment = Segment(path, outputs[:200])
        rest = iter(outputs[200:])
        reset_holds()
        forgotten = 0

        def forget() -> bool:
            nonlocal forgotten
            if segment.stats().uncorrected == 200 and forgotten == 0:
                return False  # not started yet
            forgotten += segment.forget([next(rest, 0)])
            return segment.stats().uncorrected > forgotten  # afterwards none of the first ones is left

        return segment if meets(lambda: segment.correct_hubs(200), forget, 1) else None

    segment = next(filter(None, (corrected_beside_forgets() for _ in range(20))), None)
    assert segment is not None, "no forget overlapped with a correction in twenty attempts"
    assert longest_holds()["segment"][1] == 1  # an occurrence
    forgotten = {*outputs} - {*segment.outputs()}
    assert segment.correct_hubs() == 0
    again = Segment(segment.path, forgotten)
    again.correct_hubs()
    rng = np.random.default_rng(9)
    for _ in range(50):
        context = tokens(rng, 2, 3_000)
        assert levels_of(segment, context) == levels_of(again, context)
