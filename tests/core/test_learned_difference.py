"""Differences of learners: what merging them yields, their bytes, and what is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from suffixsvc.core import Index, Learner, _ext, new_learner
from support.learned_tables import (
    FEATURES,
    FINAL,
    GAINS,
    LIMIT,
    WEIGHTS,
    Floats,
    Tables,
    agent_texts,
    learner_of,
    replay,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "learned" / "v1.bin"
SEEDS = pytest.mark.parametrize("seed", range(5))

#: places in the bytes of a difference (docs/format.md)
FEATURE_BITS = 8
FEATURE_COUNTS = FEATURE_BITS + FEATURES // 8


def taught(base: bytes, seed: int, count: int = 24, kind: int = 0, first_token: int = 0) -> Learner:
    """A follower that started with ``base`` and learned from texts."""
    learner = learner_of(base)
    replay(learner, agent_texts(seed, count, first_token, kind), Index(), 1)
    return learner


def ratio(counters: Floats) -> Floats:
    """right / seen, 0 for counters without observations."""
    result: Floats = (counters[:, 0] / np.maximum(counters[:, 1], 1e-9)).astype(np.float32)
    return result


def require_between(x: Floats, a: Floats, b: Floats, within: float = 1e-4) -> None:
    assert (x >= np.minimum(a, b) - within).all()
    assert (x <= np.maximum(a, b) + within).all()


def grown(base: Floats, now: Floats) -> np.ndarray:
    """Counters that were not halved: whole numbers were added."""
    added = now - base
    whole = (np.abs(added - np.round(added)) < 1e-3).all(axis=1)
    result: np.ndarray = whole & (added[:, 0] >= -0.5) & (added[:, 1] >= added[:, 0] - 0.5)
    return result


@SEEDS
def test_merged_into_its_base_a_difference_yields_the_follower(seed: int) -> None:
    base = new_learner().save()
    follower, service = taught(base, seed), learner_of(base)
    difference = follower.difference(base)
    assert service.merge(difference)
    assert len(difference) < len(base) / 5
    before, learned, merged = Tables.of(base), Tables.of(follower), Tables.of(service)
    exact = grown(before.features, learned.features)
    assert 0 < np.count_nonzero(~exact) < 300 < np.count_nonzero(learned.features != before.features)
    assert np.allclose(merged.features[exact], learned.features[exact], atol=1e-3)
    require_between(ratio(merged.features), ratio(before.features), ratio(learned.features))
    assert np.array_equal(merged.gains, learned.gains)
    moved = np.abs(learned.weights - before.weights)
    assert moved.max() > 0.1
    assert (np.abs(merged.weights - learned.weights) <= moved / 200).all()


@SEEDS
def test_what_two_followers_learned_apart_is_all_in_the_service(seed: int) -> None:
    """Texts without a common token: disjoint features of tokens, and different weights that depend on the
    last token."""
    base = new_learner().save()
    followers = [taught(base, seed, kind=1), taught(base, seed, kind=2, first_token=50_000)]
    service = learner_of(base)
    for follower in followers:
        assert service.merge(follower.difference(base))
    before, merged = Tables.of(base), Tables.of(service)
    one, two = (Tables.of(follower) for follower in followers)
    summed = one.features + two.features - before.features
    kept = (
        grown(before.features, one.features) & grown(before.features, two.features) & (summed[:, 1] <= LIMIT)
    )
    assert np.count_nonzero(kept & (summed != before.features).any(axis=1)) > 300
    assert np.allclose(merged.features[kept], summed[kept], atol=1e-3)
    for own, other in ((one, two), (two, one)):
        alone = (own.weights != before.weights) & (other.weights == before.weights)
        assert np.count_nonzero(alone) > 100
        moved = np.abs(own.weights - before.weights)
        assert (np.abs(merged.weights - own.weights) <= moved / 200)[alone].all()


@SEEDS
def test_eight_followers_that_learned_the_same_move_the_service_as_far_as_one(seed: int) -> None:
    base = new_learner().save()
    follower, service = taught(base, seed), learner_of(base)
    for _ in range(8):
        assert service.merge(follower.difference(base))
    before, learned, merged = Tables.of(base), Tables.of(follower), Tables.of(service)
    observed = np.where(
        grown(before.features, learned.features)[:, None],
        learned.features - before.features,
        learned.features,
    )
    known = observed[:, 1] > 0.5
    require_between(
        ratio(merged.features)[known], ratio(before.features)[known], ratio(observed)[known], 1e-3
    )
    assert (merged.features[:, 1] <= LIMIT).all()
    assert np.allclose(ratio(merged.gains), ratio(learned.gains), rtol=1e-5)
    moved = np.abs(learned.weights - before.weights)
    assert (np.abs(merged.weights - learned.weights) <= moved / 100).all()


def random_tables(random: np.random.Generator) -> Tables:
    """Valid tables of any numbers; some are the same in all."""

    def counters(rows: int, most: float) -> Floats:
        seen = random.uniform(0, most, rows) * (random.random(rows) < 0.8)
        right = seen * random.choice([0.0, 0.3, 1.0, random.random()], rows)
        return np.stack([right, seen], axis=1).astype(np.float32)

    weights = random.choice([0.2, -20.0, 20.0, random.normal(0, 3)], WEIGHTS + FINAL)
    noise = random.normal(0, 1, len(weights)) * (random.random(len(weights)) < 0.5)
    return Tables(
        counters(FEATURES, 200.0),
        counters(GAINS, 1e6),
        np.clip(weights + noise, -20, 20).astype(np.float32),
    )


@SEEDS
def test_a_merge_of_any_tables_stays_between_them(seed: int) -> None:
    """Whatever the base was, and whatever the service has learned since."""
    random = np.random.default_rng(seed)
    base, follower, service = (random_tables(random) for _ in range(3))
    unchanged = random.random(FEATURES) < 0.3
    follower.features[unchanged] = base.features[unchanged]
    added = ~unchanged & (random.random(FEATURES) < 0.5) & (base.features[:, 1] < 100)
    more = np.sort(random.integers(0, 90, (FEATURES, 2)), axis=1)
    follower.features[added] = base.features[added] + more[added]
    difference = follower.learner().difference(base.learner().save())
    learner = service.learner()
    assert len(difference) <= len(learner.save())
    assert not learner_of(learner.save()).merge(difference[:-1])
    assert learner.merge(difference)
    merged = Tables.of(learner)
    assert np.array_equal(merged.features[unchanged], service.features[unchanged])
    learned = np.where(added[:, None], follower.features - base.features, follower.features)
    known = ~unchanged & (service.features[:, 1] > 0.1) & (learned[:, 1] > 0.1)
    require_between(
        ratio(merged.features)[known], ratio(service.features)[known], ratio(learned)[known], 2e-2
    )
    assert (merged.features[:, 0] <= merged.features[:, 1]).all()
    assert (merged.features >= 0).all()
    assert (merged.features[:, 1] <= LIMIT).all()
    total = service.features[:, 1] + more[:, 1]
    halved = np.where(total > LIMIT, total / 2, total)  # as Learner::learn does
    assert np.allclose(merged.features[added, 1], halved[added], atol=1e-2)
    require_between(merged.weights, service.weights, follower.weights, 0.2)
    same_way = (service.weights - base.weights) * (follower.weights - base.weights) > 0.01
    further = np.where(
        np.abs(service.weights - base.weights) > np.abs(follower.weights - base.weights),
        service.weights,
        follower.weights,
    )
    assert np.allclose(merged.weights[same_way], further[same_way], atol=0.2)
    other_way = (service.weights - base.weights) * (follower.weights - base.weights) < -0.01
    both = service.weights + follower.weights - base.weights
    assert np.count_nonzero(other_way) > 300
    assert np.allclose(merged.weights[other_way], both[other_way], atol=0.2)


def test_a_counter_that_was_halved_is_not_taken_for_one_that_grew() -> None:
    """From 100 right of 100 to 105 right of 160.5: subtracted, 5 right of 60. But there were 161
    observations, half of them right. Eight such differences, added up, yielded 0.24 instead of the follower's
    0.66."""
    base, follower = Tables.of(Learner()), Tables.of(Learner())
    right = seen = 100.0
    base.features[7] = right, seen
    for i in range(161):  # as Learner::learn does
        right, seen = right + i % 2, seen + 1
        if seen > LIMIT:
            right, seen = right / 2, seen / 2
    follower.features[7] = right, seen
    assert seen - right > 0
    assert right > 100
    difference = follower.learner().difference(base.learner().save())
    service = base.learner()
    for _ in range(8):
        assert service.merge(difference)
    assert abs(ratio(Tables.of(service).features)[7] - right / seen) < 0.02


def test_a_difference_without_news_has_no_bytes() -> None:
    base = new_learner().save()
    learner = learner_of(base)
    assert learner.difference(base) == b""
    service = learner_of(base)
    assert not service.merge(b"")
    assert service.save() == base


def test_a_merge_is_a_change_that_is_to_be_stored() -> None:
    service = new_learner()
    base = service.save()
    difference = taught(base, 1).difference(base)
    assert not service.merge(difference[:-1])
    assert not service.changed
    assert service.own_bytes == 0
    assert service.merge(difference)
    assert service.changed
    assert service.own_bytes > 0


@pytest.mark.parametrize("bad", [b"", b"SFXLRN02", Learner().save()[:-4], Learner().save() + b"\0" * 4])
def test_a_base_of_other_bytes_is_refused(bad: bytes) -> None:
    with pytest.raises(ValueError, match=r"base must be a result of Learner\.save"):
        Learner().difference(bad)


# ---------------------------------------------------------------------------------------------- bytes


def resealed(difference: bytes, change: Callable[[bytearray], None]) -> bytes:
    """A changed difference with the right checksum."""
    raw = bytearray(difference[:-4])
    change(raw)
    return bytes(raw) + struct.pack("<I", _ext.crc32c(bytes(raw)))


def golden_tables() -> tuple[Tables, Tables]:
    """Base and follower: a counter that grew, one that was halved, a gain, weights that moved."""
    base = Tables.of(Learner())
    follower = Tables.of(Learner())
    base.features[0] = 1.5, 2.25
    follower.features[0] = 4.5, 7.25  # 3 right of 5
    base.features[FEATURES - 1] = 150, 200
    follower.features[FEATURES - 1] = 75.25, 100.5
    follower.gains[3] = 1000, 640.5
    follower.weights[1] = 0.75
    follower.weights[WEIGHTS] = -0.5
    return base, follower


def test_golden_bytes() -> None:
    """Written with ``GOLDEN.write_bytes(difference)``; a change of the format changes the magic number."""
    base, follower = golden_tables()
    difference = follower.learner().difference(base.learner().save())
    assert difference == GOLDEN.read_bytes()
    service = base.learner()
    service.merge(difference)
    expected = Tables.of(follower.learner())
    expected.features[FEATURES - 1] = (150 + 75.25) * 200 / 300.5, 200
    merged = Tables.of(service)
    assert np.allclose(merged.features, expected.features, rtol=1e-6)
    assert np.array_equal(merged.gains, expected.gains)
    assert np.allclose(merged.weights, expected.weights, atol=2e-3)


def test_other_bytes_are_refused_whole() -> None:
    difference = GOLDEN.read_bytes()
    service = new_learner()
    before = service.save()
    random = np.random.default_rng(3)
    cuts = [0, 7, 8, 11, 12, len(difference) - 1, *random.integers(0, len(difference), 100).tolist()]
    for cut in cuts:
        assert not service.merge(difference[:cut]), cut
        assert not service.merge(difference[cut + 1 :]), cut
    for at in random.integers(0, len(difference) * 8, 300).tolist():
        damaged = bytearray(difference)
        damaged[at // 8] ^= 1 << at % 8
        assert not service.merge(bytes(damaged)), at
    for other in (before, b"\0" * len(difference), difference + b"\0", difference * 2, random.bytes(9000)):
        assert not service.merge(other)
    assert service.save() == before
    assert not service.changed
    assert service.merge(difference)


#: where the golden file has its values
GAIN = FEATURE_COUNTS + 2 * 4 + GAINS // 8
MOVE = GAIN + 8 + -(-WEIGHTS // 8)
NAN, INF = struct.pack("<f", float("nan")), struct.pack("<f", float("inf"))


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, b"SFXLRD02"),
        (FEATURE_BITS, b"\xff"),
        (FEATURE_COUNTS, struct.pack("<HH", 3 * 128 + 1, 3 * 128)),
        (FEATURE_COUNTS, struct.pack("<HH", 3 * 128, 200 * 128 + 1)),
        (FEATURE_COUNTS, struct.pack("<HH", 0xFFFF, 0xFFFF)),
        (GAIN, NAN),
        (GAIN, struct.pack("<f", -1)),
        (GAIN + 4, INF),
        (GAIN + 4, struct.pack("<f", 1.1e9)),
        (MOVE, NAN),
        (MOVE, INF),
        (MOVE, struct.pack("<f", -20.1)),
        (MOVE + 4, NAN[2:]),
        (MOVE + 4, INF[2:]),
        (MOVE + 4, struct.pack("<f", 41)[2:]),
        (MOVE - 1, b"\x80"),
    ],
    ids=[
        "version",
        "entries without values",
        "more right than seen",
        "more seen than the limit",
        "both",
        "tokens NaN",
        "tokens below 0",
        "cost infinite",
        "cost above the limit",
        "weight NaN",
        "weight infinite",
        "weight below the limit",
        "move NaN",
        "move infinite",
        "move above the limit",
        "bit after the table",
    ],
)
def test_values_that_no_learner_has_are_refused_whole(at: int, value: bytes) -> None:
    """With a right checksum, as a faulty or hostile follower could send them."""
    difference = GOLDEN.read_bytes()
    service = new_learner()
    before = service.save()

    def change(raw: bytearray) -> None:
        raw[at : at + len(value)] = value

    assert not service.merge(resealed(difference, change))
    assert service.save() == before
    assert service.merge(resealed(difference, lambda raw: None))


def test_bytes_after_the_tables_are_refused() -> None:
    service = new_learner()
    assert not service.merge(resealed(GOLDEN.read_bytes(), lambda raw: raw.extend(b"\0")))
    assert not service.changed
