"""Starting weights of new namespaces."""

from __future__ import annotations

import gc
import resource
import zlib
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.core import Index, Learner, Session, draft_from, new_learner, pack_weights
from suffixsvc.core.start import starting_weights
from suffixsvc.errors import InvalidInputError

#: floats of all counters, in a saved learner (kFeatures and kCostClasses in learner.cpp, two each)
NUM_COUNTERS = 2 * (19_936 + 24)


def taught() -> Learner:
    """A learner trained on a text twice."""
    with SuffixCache(starting_weights=b"") as cache:
        space = cache.namespace("a")
        for _ in range(2):
            session = space.open_session([1, 2, 3])
            for token in [*range(10, 40)] * 3:
                session.step([token], 8)
            session.close()
        learner = Learner()
        assert learner.load(zlib.decompress(space.learned_weights()))
        return learner


def parts(saved: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Counters of features and gains, and weights of mixers."""
    numbers = np.frombuffer(saved[8:], "<f4")
    return numbers[:NUM_COUNTERS], numbers[NUM_COUNTERS:]


def test_the_shipped_weights_are_of_this_version_and_general() -> None:
    learner = new_learner()
    assert not learner.changed
    general = new_learner()
    general.generalise()
    counters, mixers = parts(learner.save())
    again, halved = parts(general.save())
    assert np.array_equal(counters, again)
    nothing = parts(Learner().save())[1]
    assert np.abs(mixers - nothing).max() > 0.1
    assert np.allclose(halved - nothing, (mixers - nothing) / 2, atol=1e-6)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="measured with /proc")
def test_a_namespace_that_nothing_was_drafted_in_takes_no_memory_for_weights() -> None:
    """Every namespace had tables of 266 KiB from its creation on, used or not: 2000 of them took half a
    gigabyte after every start. They read the shared starting weights until something is learned."""
    with SuffixCache() as cache:
        cache.namespace("first")
        gc.collect()
        before = resident_bytes()
        for i in range(400):
            cache.namespace(f"n/{i}")
        assert (resident_bytes() - before) / 400 < 100 << 10


def test_a_learner_copies_the_shared_weights_when_it_first_learns() -> None:
    learner, sibling = new_learner(), new_learner()
    start = sibling.save()
    session = Session(Index(), [], learner, 1, 0)
    session.append_context(np.arange(100, dtype=np.int32))
    session.draft(8, np.ones(9), False, b"\0\1")
    assert learner.own_bytes == 0
    assert learner.save() == start
    session.append(np.arange(20, dtype=np.int32), True)
    assert learner.own_bytes > 200 << 10
    assert learner.save() != start
    assert sibling.own_bytes == 0
    assert sibling.save() == start


def test_drafts_are_those_of_a_learner_that_was_given_the_weights() -> None:
    """Bit for bit: while a learner reads the shared weights, while it copies them, and later."""
    rng = np.random.default_rng(5)
    given = Learner()
    assert given.load(new_learner().save())
    texts = [rng.integers(0, 6, 300).astype(np.int32) for _ in range(3)]
    curve = 1.0 + 0.02 * np.arange(17)
    drafts = []
    for learner in (new_learner(), given):
        index, seen = Index(), []
        for writer, text in enumerate(texts):
            session = Session(index, [], learner, writer + 1, 16)
            session.append_context(text[:40])
            for i in range(40, 300, 3):
                draft = draft_from(session, 16, curve, tree=i % 2 == 0)
                seen.append([np.asarray(column).tobytes() for column in (draft.token_ids, draft.probs)])
                session.record_step(1.1, 3)
                session.append(text[i : i + 3], True)
        drafts.append((seen, learner.save()))
    assert drafts[0] == drafts[1]


def test_without_weights_a_learner_starts_from_nothing() -> None:
    assert new_learner(b"").save() == Learner().save()
    assert new_learner().save() != Learner().save()


def test_weights_of_a_namespace_start_another_one() -> None:
    weights = pack_weights(taught())
    assert new_learner(weights).save() == zlib.decompress(weights)
    with SuffixCache(starting_weights=weights) as cache:
        started = zlib.decompress(cache.namespace("b").learned_weights())
        assert np.array_equal(parts(started)[0], parts(zlib.decompress(weights))[0])


def test_packing_keeps_counters_small_and_leaves_the_learner_alone() -> None:
    learner = taught()
    before = learner.save()
    packed = zlib.decompress(pack_weights(learner))
    assert learner.save() == before
    counters, mixers = parts(packed)
    assert np.isfinite(counters).all()
    assert 0 < counters.max() <= 8
    _, learned = parts(before)
    _, nothing = parts(Learner().save())
    kept = np.abs(mixers - nothing)
    assert kept.max() > 0
    assert kept.max() <= np.abs(learned - nothing).max() / 2 + 1e-6  # half of what was learned


@pytest.mark.parametrize(
    "bad",
    [
        b"weights",
        zlib.compress(b"weights"),
        zlib.compress(b"\0" * (1 << 25)),
        starting_weights()[:-5],
        zlib.compress(Learner().save()[:-4]),
    ],
    ids=["no zlib", "other bytes", "too many", "truncated", "short"],
)
def test_other_bytes_are_refused(bad: bytes) -> None:
    with pytest.raises(InvalidInputError, match="starting weights"):
        SuffixCache(starting_weights=bad)
