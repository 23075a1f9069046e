"""LSNs that are times: they disclose nothing of how much is written, and rise whatever the clock does."""

from __future__ import annotations

from pathlib import Path

from suffixsvc import SuffixCache


def test_ids_are_times_of_writing(tmp_path: Path) -> None:
    with SuffixCache(tmp_path, ids_from_clock=True) as cache:
        clock = cache._parts.store.clock
        before = clock.now_us()
        first = cache.namespace("a").add_output([1, 2])
        between = clock.now_us()
        assert before <= first <= between
        for n in range(20):
            cache.namespace("b").add_output([n])
        later = clock.now_us()
        second = cache.namespace("a").add_output([3, 4])
        assert later <= second <= clock.now_us()
        assert cache.check() is None


def test_a_counting_log_goes_on_with_times_and_back(tmp_path: Path) -> None:
    with SuffixCache(tmp_path) as cache:
        assert cache.namespace("a").add_output([1]) == 1
    with SuffixCache(tmp_path, ids_from_clock=True) as cache:
        time_us = cache.namespace("a").add_output([2])
        assert time_us > 10**15
        cache.seal()
        cache.namespace("a").add_output([3])
        cache.compact()
    with SuffixCache(tmp_path) as cache:
        last = cache.stats().last_lsn
        assert cache.namespace("a").add_output([4]) == last + 1
        cache.check()
        rows = [row.output.token_ids.tolist() for row in cache._parts.store.scan("a")]
        assert rows == [[1], [2], [3], [4]]


def test_a_clock_that_stands_still_does_not_repeat_an_id(tmp_path: Path) -> None:
    with SuffixCache(tmp_path, ids_from_clock=True) as cache:
        far = 4 * 10**15
        store = cache._parts.store
        store.clock.now_us = lambda: far  # type: ignore[method-assign]
        ids = [cache.namespace("a").add_output([n]) for n in range(3)]
        store.clock.now_us = lambda: far - 10**12  # type: ignore[method-assign]
        ids += [cache.namespace("a").add_output([n]) for n in range(3)]
        assert ids == list(range(far, far + 6))
