"""Agreement of index and log after failed writes, in both directions, and under concurrency."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import Limits, Policies, Policy, SuffixCache
from suffixsvc.errors import IndexCorruptError, LimitExceededError, StoreFullError
from suffixsvc.types import NewOutput, TokenArray
from support.engine_parts import parts_of, queued_removals

NS = "acme/m"
BIG = 10_000  #: tokens


def text(seed: int, tokens: int = 2000) -> TokenArray:
    return np.random.default_rng(seed).integers(0, 50_000, tokens).astype(np.int32)


def full_cache(folder: Path | None) -> SuffixCache:
    """A cache whose store has no space for another output of BIG tokens."""
    cache = SuffixCache(folder, limits=Limits(max_store_bytes=1 << 20), background=False)
    with contextlib.suppress(StoreFullError):
        for seed in range(1000, 1100):
            cache.namespace(NS).add_output(text(seed, BIG))
    assert cache.stats().outputs < 100
    return cache


def drafted(cache: SuffixCache, written: TokenArray) -> int:
    """Tokens of a text that are drafted after a prefix of it."""
    session = cache.namespace(NS).open_session(written[100:140])
    draft = session.step(written[140:144], 16, 0.0).token_ids
    session.close(commit=False)
    return int(np.sum(draft == written[144 : 144 + len(draft)]))


@pytest.mark.parametrize("place", ["memory", "folder"])
@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("wait", [False, True])
def test_a_session_whose_output_finds_no_room_leaves_no_text(
    tmp_path: Path, place: str, turns: int, wait: bool
) -> None:
    """Regression: after ``close(wait=False)`` on a full store the text stayed in the index and was
    drafted, but was in no log and could not be forgotten; ``check()`` did not detect it."""
    with full_cache(None if place == "memory" else tmp_path / "d") as cache:
        before = cache.namespace(NS).stats()
        secret = text(1, BIG)
        session = cache.namespace(NS).open_session([1, 2, 3])
        for part in np.array_split(secret, turns):
            session.append_context([7])
            session.step(part, 0)
        if wait:
            with pytest.raises(StoreFullError):
                session.close()
            assert not session.closed
            assert drafted(cache, secret) > 0, "it is live"
            cache.check()
            session.close(commit=False)
        else:
            assert session.close(wait=False) is None
            parts_of(cache).store.barrier()
        assert drafted(cache, secret) == 0
        after = cache.namespace(NS).stats()
        assert (after.outputs, after.tokens) == (before.outputs, before.tokens)
        assert after.outputs == parts_of(cache).store.stats().outputs
        cache.check()
        cache.namespace(NS).delete()
        assert cache.namespace(NS).stats().index_nodes == 1
        cache.check()


@pytest.mark.parametrize("place", ["memory", "folder"])
def test_a_bulk_load_that_finds_no_room_leaves_no_text(tmp_path: Path, place: str) -> None:
    with full_cache(None if place == "memory" else tmp_path / "d") as cache:
        secret = text(1, BIG)
        with pytest.raises(StoreFullError):
            cache.namespace(NS).add_outputs([output(secret), output(text(2, BIG), [5, 6])])
        assert drafted(cache, secret) == 0
        cache.check()


@pytest.mark.parametrize("place", ["memory", "folder"])
def test_a_large_bulk_load_that_fails_half_way_leaves_no_text(tmp_path: Path, place: str) -> None:
    """It takes several transactions; those before the failure are rolled back in log and index."""
    folder = None if place == "memory" else tmp_path / "d"
    with SuffixCache(folder, limits=Limits(max_store_bytes=2 << 20), background=False) as cache:
        cache.namespace(NS).add_output(text(9999))
        with pytest.raises(StoreFullError):
            cache.namespace(NS).add_outputs([output(text(seed, 400)) for seed in range(2000)])
        assert drafted(cache, text(1, 400)) == 0
        assert parts_of(cache).store.stats().outputs == cache.stats().outputs == 1
        cache.check()
        cache.namespace(NS).delete()
        assert cache.stats().index_nodes == 1


def output(tokens: TokenArray, tail: list[int] | None = None, ttl_seconds: int = 0) -> NewOutput:
    return NewOutput(NS, tokens, (len(tokens),), np.asarray(tail or [], np.int32), ttl_seconds=ttl_seconds)


def test_check_finds_text_that_is_in_no_log() -> None:
    with SuffixCache() as cache:
        namespace = cache.namespace(NS)
        namespace.add_output(text(1))
        live = namespace.open_session([1, 2, 3])
        live.step(text(2), 0)
        cache.check()
        parts_of(cache).catalog.index_of(NS).insert(output(text(3)))
        with pytest.raises(
            IndexCorruptError, match="must hold the text of the log and of live sessions only"
        ):
            cache.check()


def test_check_finds_outputs_that_are_miscounted() -> None:
    with SuffixCache() as cache:
        cache.namespace(NS).add_output(text(1))
        index = parts_of(cache).catalog.index_of(NS)
        index.record_logged(output(text(3)), index.insert(output(text(3))), 17)
        with pytest.raises(IndexCorruptError, match="must count the outputs of the log"):
            cache.check()


def test_forgetting_takes_its_text_out_before_it_returns(tmp_path: Path) -> None:
    """Concurrent calls of forget share the work: each returns after its text was removed."""
    with SuffixCache(tmp_path / "d", background=False) as cache:
        namespace = cache.namespace(NS)
        texts = {namespace.add_output(text(seed)): text(seed) for seed in range(64)}
        failed: list[BaseException] = []

        def forget(ids: list[int]) -> None:
            try:
                for output_id in ids:
                    namespace.delete(output_ids=[output_id])
                    assert drafted(cache, texts[output_id]) == 0
            except BaseException as error:
                failed.append(error)

        run([lambda k=k: forget(sorted(texts)[k::8]) for k in range(8)])  # type: ignore[misc]  # bound now
        assert not failed
        assert namespace.stats().index_nodes == 1
        cache.check()


def run(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("place", ["memory", "folder"])
def test_concurrent_operations_leave_index_and_log_agreed(tmp_path: Path, place: str) -> None:
    """Sessions that close with and without wait, bulk loads, forgets, expiry, eviction, sealing, merging, and
    concurrent checks. The seed is printed."""
    seed = random.randrange(2**32)
    print("seed", seed)
    policies = Policies({NS: Policy(max_bytes=300_000), f"{NS}/ttl": Policy(ttl_seconds=1)})
    cache = SuffixCache(
        None if place == "memory" else tmp_path / "d",
        limits=Limits(seal_tokens=2000),
        policies=policies,
        background=place == "folder",
    )
    failed: list[BaseException] = []
    until = time.monotonic() + 4.0

    def repeat(number: int, once: Callable[[random.Random], object]) -> None:
        dice = random.Random(seed + number)
        try:
            while time.monotonic() < until and not failed:
                once(dice)
        except BaseException as error:
            failed.append(error)

    def path(dice: random.Random) -> str:
        return dice.choice([NS, NS, f"{NS}/ttl", "free"])

    def invented(dice: random.Random) -> TokenArray:
        start = dice.randrange(50)
        return np.arange(start, start + dice.choice([3, 30, 300]), dtype=np.int32)

    def session(dice: random.Random) -> None:
        live = cache.namespace(path(dice)).open_session(invented(dice)[:70])
        for _ in range(dice.choice([1, 1, 3])):
            live.append_context([1, 2])
            live.step(invented(dice), dice.choice([0, 8]))
        live.close(commit=dice.random() < 0.8, wait=dice.random() < 0.5)

    def bulk(dice: random.Random) -> None:
        where = path(dice)
        new = []
        for _ in range(dice.randrange(1, 8)):
            tokens = invented(dice)
            cut = dice.randrange(len(tokens))
            segments = (cut, len(tokens) - cut) if cut else (len(tokens),)
            tail = np.asarray([5] * dice.choice([0, 3]), np.int32)
            new.append(NewOutput(where, tokens, segments, tail, ttl_seconds=dice.choice([0, 0, 1])))
        try:
            cache.namespace(where).add_outputs(new)
        except LimitExceededError:
            assert where == NS

    def forget(dice: random.Random) -> None:
        where = path(dice)
        namespace = cache.namespace(where)
        last = cache.stats().last_lsn
        if dice.random() < 0.02:
            namespace.delete()
        elif ids := parts_of(cache).store.output_ids(where, max(0, last - 200), last):
            namespace.delete(output_ids=[dice.choice(ids)])

    def tidy(dice: random.Random) -> None:
        dice.choice(
            [cache.seal, cache.compact, cache.evict, cache.expire, lambda: cache.expire(4e9), cache.check]
        )()

    works = [session, session, bulk, forget, forget, tidy, lambda dice: cache.check()]
    for where in (NS, f"{NS}/ttl", "free"):
        cache.namespace(where).put_note("here", b"")
    run([lambda n=n, once=once: repeat(n, once) for n, once in enumerate(works)])  # type: ignore[misc]  # as above
    assert not failed, failed
    parts_of(cache).store.barrier()
    cache.check()
    for index in parts_of(cache).catalog.values():
        assert index.consistency_snapshot() is not None, "nothing is on its way any more"
    stats = cache.stats()
    assert stats.sessions == 0
    assert stats.outputs == parts_of(cache).store.stats().outputs
    for where in (NS, f"{NS}/ttl", "free"):
        cache.namespace(where).delete()
    cache.check()
    assert cache.stats().index_nodes == 3
    assert cache.stats().held_bytes == 0
    assert not queued_removals(cache)
    assert not parts_of(cache).quotas.usage.reserved
    cache.close()
