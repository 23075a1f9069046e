"""Pinned namespaces and corpora, and times to live of policies."""

from __future__ import annotations

from pathlib import Path

import pytest
from limits_testing import KIB, OUTPUT, add, ids, index_is_log, output, text

from suffixsvc import Policies, Policy, SuffixCache
from suffixsvc.engine.limits.eviction import BATCH_OUTPUTS
from suffixsvc.errors import LimitExceededError
from support.engine_parts import parts_of

# ------------------------------------------------------------------------------------------------- pinned


def test_pinned_namespaces_refuse_rather_than_forget(place: Path | None, opened: list[SuffixCache]) -> None:
    pinned = Policy(max_bytes=60 * KIB, ttl_seconds=10, pinned=True)
    cache = SuffixCache(place, policies=Policies({"docs": pinned}))
    opened.append(cache)
    kept: list[int] = []
    while cache.namespace("docs").stats().held_bytes < 60 * KIB - OUTPUT:
        kept += add(cache, "docs", [len(kept)])
    with pytest.raises(LimitExceededError, match="namespace docs is full of pinned outputs") as caught:
        add(cache, "docs", [98])
    assert "unpin" in str(caught.value.remedy)
    assert len(kept) > 3
    session = cache.namespace("docs").open_session([1])
    session.step(text(99), 0)
    assert session.close() is None
    assert cache.evict() == 0
    assert cache.expire(now=4e9) == 0, "the policy's time to live does not apply"
    assert ids(cache, "docs") == kept
    assert cache.namespace("docs").stats().held_bytes <= 60 * KIB


def test_an_own_ttl_holds_even_in_a_pinned_namespace(place: Path | None, opened: list[SuffixCache]) -> None:
    """The writer relies on the time to live that it gave."""
    cache = SuffixCache(place, policies=Policies({"docs": Policy(pinned=True)}))
    opened.append(cache)
    cache.namespace("docs").add_output([1, 2, 3], ttl_seconds=5)
    assert cache.expire(now=4e9) == 1
    assert ids(cache, "docs") == []


def test_a_corpus_within_a_namespace_stays_while_the_rest_goes(small: SuffixCache) -> None:
    namespace = small.namespace("small/ns")
    corpus = namespace.add_outputs([output("small/ns", 500 + n, corpus=True) for n in range(3)])
    corpus += namespace.add_outputs([output("small/ns", 510 + n, corpus=True) for n in range(3)])
    for seed in range(60):
        add(small, "small/ns", [seed])
    assert set(corpus) < set(ids(small, "small/ns"))
    with pytest.raises(LimitExceededError, match="full of pinned outputs"):
        namespace.add_outputs([output("small/ns", 600 + n) for n in range(4)])


# -------------------------------------------------------------------------------------------- time to live


def test_a_policys_ttl_applies_to_outputs_without_one(place: Path | None, opened: list[SuffixCache]) -> None:
    policies = Policies({"ns": Policy(ttl_seconds=3600), "ns/keep": Policy(ttl_seconds=0)})
    cache = SuffixCache(place, policies=policies)
    opened.append(cache)
    outputs = [
        output("ns", 1),
        output("ns", 2, ttl_seconds=10),
        output("ns", 3, ttl_seconds=7200),
        output("ns", 4, corpus=True),
    ]
    none, _short, long, corpus = cache.namespace("ns").add_outputs(outputs)
    keep = add(cache, "ns/keep", [5])
    written = parts_of(cache).store.get(none).written_at
    assert cache.expire(now=written + 11) == 1
    assert ids(cache, "ns") == [none, long, corpus]
    assert cache.expire(now=written + 3599) == 0
    assert cache.expire(now=written + 3602) == 1
    assert ids(cache, "ns") == [long, corpus]
    assert cache.expire(now=written + 7300) == 1
    assert ids(cache, "ns") == [corpus]
    assert ids(cache, "ns/keep") == keep
    assert cache.namespace("ns").stats().evicted_outputs == 0, "that was not eviction"


def test_a_policys_ttl_holds_for_what_was_written_before_it(tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "data") as cache:
        [output_id] = add(cache, "ns", [1])
        written = parts_of(cache).store.get(output_id).written_at
    with SuffixCache(tmp_path / "data", policies=Policies(default=Policy(ttl_seconds=60))) as cache:
        assert cache.expire(now=written + 59) == 0
        assert cache.expire(now=written + 61) == 1
        index_is_log(cache)


def test_many_outputs_expire_in_batches(place: Path | None, opened: list[SuffixCache]) -> None:
    cache = SuffixCache(place, policies=Policies(default=Policy(ttl_seconds=60)))
    opened.append(cache)
    cache.namespace("ns").add_outputs([output("ns", n, 2) for n in range(2 * BATCH_OUTPUTS + 3)])
    assert cache.expire(now=4e9) == 2 * BATCH_OUTPUTS + 3
    assert cache.namespace("ns").stats().held_bytes == 0
