"""Limits with sealed segments: sealed outputs are used, aged and evicted like hot ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from limits_testing import add, draft_from, ids, index_is_log, output

from suffixsvc import Limits, Policies, Policy, SuffixCache
from support.engine_parts import index_of, parts_of

KIB = 1 << 10


def open_cache(folder: Path, policies: Policies | None = None) -> SuffixCache:
    return SuffixCache(folder, policies=policies, limits=Limits(seal_tokens=800), background=False)


def filled(folder: Path) -> list[int]:
    """A cache with twelve outputs, the first ten of them in segments."""
    with open_cache(folder) as cache:
        written = [add(cache, "ns", [seed])[0] for seed in range(10)]
        assert cache.seal() == 10
        assert cache.namespace("ns").stats().segments > 1
        return written + [add(cache, "ns", [seed])[0] for seed in (10, 11)]


def test_sealed_outputs_are_evicted_first_when_they_are_the_longest_unused(tmp_path: Path) -> None:
    written = filled(tmp_path / "d")
    with open_cache(tmp_path / "d", Policies({"ns": Policy(max_bytes=50 * KIB)})) as cache:
        assert cache.evict() > 0
        stats = cache.namespace("ns").stats()
        assert stats.held_bytes <= 50 * KIB
        assert ids(cache, "ns") == written[-stats.outputs :]
        assert draft_from(cache, "ns", 0) == 0
        assert draft_from(cache, "ns", 11) > 0
        index_is_log(cache)
        held = stats.held_bytes
        cache.compact()
        assert cache.namespace("ns").stats().held_bytes <= held, (
            "deleted outputs were not counted before either"
        )
    with open_cache(tmp_path / "d", Policies({"ns": Policy(max_bytes=50 * KIB)})) as cache:
        assert ids(cache, "ns") == written[-stats.outputs :]
        index_is_log(cache)


def test_sealed_outputs_that_are_drafted_from_stay(tmp_path: Path) -> None:
    written = filled(tmp_path / "d")
    with open_cache(tmp_path / "d", Policies({"ns": Policy(max_bytes=60 * KIB)})) as cache:
        for seed in (3, 0):
            assert draft_from(cache, "ns", seed) > 0
        while cache.evict():
            pass
        kept = ids(cache, "ns")
        assert {written[0], written[3]} < set(kept)
        assert kept == sorted({written[0], written[3], *written[-(len(kept) - 2) :]})
        index_is_log(cache)


def test_what_moves_into_a_segment_keeps_its_age(tmp_path: Path) -> None:
    with open_cache(tmp_path / "d", Policies({"ns": Policy(max_bytes=90 * KIB)})) as cache:
        written = [add(cache, "ns", [seed])[0] for seed in range(6)]
        assert draft_from(cache, "ns", 1) > 0
        cache.compact()
        assert not len(index_of(cache.namespace("ns")).writers)
        while not cache.namespace("ns").stats().evicted_outputs:
            written += add(cache, "ns", [len(written)])
        kept = ids(cache, "ns")
        assert written[0] not in kept
        assert written[1] in kept
        index_is_log(cache)


@pytest.mark.parametrize("own", [0, 60])
def test_the_time_to_live_holds_for_sealed_outputs(tmp_path: Path, own: int) -> None:
    policies = Policies({"ns": Policy(ttl_seconds=0 if own else 60)})
    with open_cache(tmp_path / "d", policies) as cache:
        namespace = cache.namespace("ns")
        first = namespace.add_output([1, 2, 3, 4], ttl_seconds=own)
        cache.compact()
        written = parts_of(cache).store.get(first).written_at
        assert cache.expire(now=written + 59) == 0
        assert cache.expire(now=written + 62) == 1
        assert namespace.stats().outputs == 0
        index_is_log(cache)


def test_sealing_makes_room(tmp_path: Path) -> None:
    """A position takes a third of the bytes in a segment, so a limit holds more sealed outputs."""
    with open_cache(tmp_path / "d") as cache:
        cache.namespace("ns").add_outputs([output("ns", seed, 3000) for seed in range(5)])
        hot = cache.namespace("ns").stats().held_bytes
        cache.compact()
        assert cache.namespace("ns").stats().held_bytes < hot * 0.6
