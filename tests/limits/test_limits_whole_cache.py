"""The limit of the whole cache: writes evict from their own namespace."""

from __future__ import annotations

from pathlib import Path

import pytest
from limits_testing import KIB, add, ids, index_is_log, output, text

from suffixsvc import Limits, Policies, SuffixCache
from suffixsvc.errors import LimitExceededError


def whole(kib: int, policies: Policies | None = None, path: Path | None = None) -> SuffixCache:
    return SuffixCache(path, limits=Limits(max_cache_bytes=kib * KIB), policies=policies)


def test_a_write_to_a_full_cache_evicts_from_its_namespace(
    place: Path | None, opened: list[SuffixCache]
) -> None:
    cache = whole(300, path=place)
    opened.append(cache)
    others = {path: add(cache, path, range(n, n + 8)) for n, path in enumerate(["a", "b"])}
    mine: list[int] = []
    for seed in range(100, 160):
        mine += add(cache, "mine", [seed])
        assert cache.stats().held_bytes <= cache.stats().limit_bytes == 300 * KIB
    assert {path: ids(cache, path) for path in others} == others
    kept = ids(cache, "mine")
    assert kept == mine[-len(kept) :]
    assert 2 < len(kept) < 60
    assert cache.stats().held_bytes > 250 * KIB


def test_a_namespace_without_evictable_outputs_is_rejected_when_the_cache_is_full(
    opened: list[SuffixCache],
) -> None:
    cache = whole(150)
    opened.append(cache)
    for seed in range(40):
        add(cache, "early", [seed])
    with pytest.raises(
        LimitExceededError, match="cache is full and namespace late has too few outputs"
    ) as caught:
        cache.namespace("late").add_outputs([output("late", 1000 + n) for n in range(3)])
    assert "max_cache_bytes" in str(caught.value.expected)
    before = ids(cache, "early")
    session = cache.namespace("late").open_session([1])
    session.step(text(5000), 16)
    assert session.close() is None, "the session itself is not hurt"
    assert ids(cache, "early") == before
    assert add(cache, "early", [7777]), "a namespace with evictable outputs can be written to"


def test_a_full_cache_with_lower_limit_shrinks_as_it_is_written_to(tmp_path: Path) -> None:
    """The first write does not evict all of the excess."""
    with SuffixCache(tmp_path / "data") as cache:
        add(cache, "a", range(50))
        add(cache, "b", range(50, 100))
    with whole(400, path=tmp_path / "data") as cache:
        assert cache.stats().held_bytes > 450 * KIB
        add(cache, "a", [1000])
        assert 40 < cache.namespace("a").stats().outputs < 50
        assert cache.namespace("b").stats().outputs == 50
        for seed in range(2000, 2080):
            add(cache, "ab"[seed % 2], [seed])
        assert cache.stats().held_bytes <= 400 * KIB
        index_is_log(cache)
