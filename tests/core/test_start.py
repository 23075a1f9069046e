"""What a namespace that has seen nothing starts from."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.core import Learner, new_learner, pack_weights
from suffixsvc.core.start import starting_weights
from suffixsvc.errors import InvalidInputError

#: floats of all counters, in a saved learner (kFeatures and kCostClasses in learner.cpp, two each)
NUM_COUNTERS = 2 * (19_936 + 24)


def taught() -> Learner:
    """A learner that saw a text twice."""
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
