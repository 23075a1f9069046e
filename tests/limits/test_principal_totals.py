"""Totals of principals over all namespaces, compared with a count of the whole log; and what they cost."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import NewOutput, Policies, Policy, PrincipalQuota, Selection, SuffixCache
from suffixsvc.index.output_size import size_of
from suffixsvc.index.principal_totals import Written
from support.engine_parts import parts_of

PATHS = ["a", "a/b", "c", "d"]
NAMES = ["p", "q", ""]
QUOTA = {"*": PrincipalQuota(max_bytes=1 << 30)}


def written(path: str, seed: int, principal: str, *, corpus: bool = False) -> NewOutput:
    rng = np.random.default_rng(seed)
    tokens = int(rng.integers(1, 20))
    return NewOutput(
        path,
        rng.integers(0, 1000, tokens).astype(np.int32),
        (tokens,),
        rng.integers(0, 1000, seed % 65).astype(np.int32),
        labels={"n": "x" * (seed % 40)},
        principal=principal,
        corpus=corpus,
    )


def recounted(cache: SuffixCache, principal: str) -> tuple[Written, set[str]]:
    total, paths = Written(), set()
    for each in parts_of(cache).store.scan():
        output = each.output
        if output.principal == principal:
            pinned = output.corpus or bool(cache.namespace(output.namespace).policy.pinned)
            total.count(1, size_of(output), pinned=pinned)
            paths.add(output.namespace)
    return total, paths


def test_totals_are_those_of_the_log(tmp_path: Path) -> None:
    rng = random.Random(7)
    pinned: set[str] = set()
    restarts = 0

    def policies() -> Policies:
        return Policies({path: Policy(pinned=True) for path in pinned}, principals=QUOTA)

    cache = SuffixCache(tmp_path / "d", policies=policies(), background=False)
    for turn in range(150):
        kind, path, name = rng.randrange(12), rng.choice(PATHS), rng.choice(NAMES)
        if kind < 5:
            new = [written(path, 10 * turn + n, name, corpus=rng.random() < 0.2) for n in range(4)]
            cache.namespace(path).add_outputs(new)
        elif kind == 5:
            with cache.namespace(path).open_session([1, 2], principal=name) as session:
                session.step([turn, 3, 4], 0)
                count, size = parts_of(cache).catalog.totals.sessions_of(name)
                assert (count, size > 0) == (1, True)
        elif kind == 6:
            pinned ^= {path}
            cache.set_policies(policies())
        elif kind == 7:
            cache.delete(Selection(principal=name, older_than_seconds=0 if rng.random() < 0.5 else None))
        elif kind == 8 and rng.random() < 0.5 and cache.has_namespace(path):
            cache.delete_namespace(path)
        elif kind == 9:
            ids = [each.output_id for each in parts_of(cache).store.scan() if each.output.namespace == path]
            if len(ids) > 1:
                cache.namespace(path).delete(output_ids=rng.sample(ids, len(ids) // 2))
        elif kind == 10:
            cache.seal()
        elif kind == 11:
            cache.close()
            cache = SuffixCache(tmp_path / "d", policies=policies(), background=False)
            restarts += 1
            if rng.random() < 0.5:  # before anything is counted
                cache.delete(Selection(principal=name))
        if rng.random() < 0.6:
            continue
        cache.principal_stats(NAMES)  # has the outputs of earlier processes counted
        totals = parts_of(cache).catalog.totals
        assert not totals.uncounted()
        assert totals.live_bytes() == 0
        for each in NAMES:
            assert (totals.written_by(each), set(totals.paths_of(each))) == recounted(cache, each)
    assert restarts > 2
    for path in [record.path for record in cache.namespaces()]:
        cache.delete_namespace(path, force=True)
    assert parts_of(cache).catalog.totals.principals() == []
    cache.close()


def test_sessions_of_a_deleted_namespace_count_until_they_are_closed() -> None:
    with SuffixCache(policies=Policies(principals=QUOTA)) as cache:
        session = cache.namespace("a").open_session([1] * 500, principal="p")
        abandoned = cache.namespace("c").open_session([1] * 500, principal="p")
        cache.delete_namespace("a", force=True)
        both = cache.principal_stats()["p"]
        assert (both.sessions, both.session_bytes > 500) == (2, True)
        assert cache.stats().session_bytes == both.session_bytes
        del abandoned
        assert cache.principal_stats()["p"].sessions == 1
        session.close(commit=False)
        assert cache.principal_stats() == {}


def calls_of(work: Callable[[], object]) -> int:
    """Number of Python functions that this thread calls."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("limit", [1 << 30, 1 << 15])
def test_namespaces_of_others_cost_an_admission_nothing(limit: int) -> None:
    """Regression: each write and each open visited every namespace several times.

    Args:
        limit: of the quota; with the lower one each write evicts.
    """
    policies = Policies(principals={"*": PrincipalQuota(max_bytes=limit), "m": PrincipalQuota(1 << 30)})
    with SuffixCache(policies=policies) as cache:
        seeds = iter(range(1, 1_000_000, 65))

        def add() -> None:
            namespace.add_outputs([written("mine", next(seeds), "p") for _ in range(20)])

        def open_and_close() -> None:
            namespace.open_session([1, 2, 3], principal="p").close()

        namespace = cache.namespace("mine")
        for _ in range(10):
            add()
        before = [min(calls_of(work) for _ in range(5)) for work in (add, open_and_close)]
        for n in range(300):
            cache.namespace(f"of-another/{n}").add_outputs([written(f"of-another/{n}", n, "m")])
        after = [min(calls_of(work) for _ in range(5)) for work in (add, open_and_close)]
        assert cache.principal_stats()["p"].evicted_outputs > 0 or limit > 1 << 20
        for few, many in zip(before, after, strict=True):
            assert many < few + 150, "fewer than one for two namespaces"
