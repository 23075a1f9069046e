"""What a namespace that has seen nothing starts from."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.core import Learner, new_learner, pack_weights
from suffixsvc.core.start import starting_weights
from suffixsvc.errors import InvalidInputError


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


def test_the_shipped_weights_are_of_this_version_and_general() -> None:
    learner = new_learner()
    assert not learner.changed
    assert pack_weights(learner) == zlib.compress(zlib.decompress(starting_weights()), 9)


def test_without_weights_a_learner_starts_from_nothing() -> None:
    assert new_learner(b"").save() == Learner().save()
    assert new_learner().save() != Learner().save()


def test_weights_of_a_namespace_start_another_one() -> None:
    weights = pack_weights(taught())
    assert new_learner(weights).save() == zlib.decompress(weights)
    with SuffixCache(starting_weights=weights) as cache:
        assert cache.namespace("b").learned_weights() == weights


def test_packing_keeps_counters_small_and_leaves_the_learner_alone() -> None:
    learner = taught()
    before = learner.save()
    packed = zlib.decompress(pack_weights(learner))
    assert learner.save() == before
    assert zlib.decompress(pack_weights(new_learner(zlib.compress(packed)))) == packed
    counters = np.frombuffer(packed[8:], "<f4")
    assert np.isfinite(counters).all()
    assert counters.max() <= 16


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
