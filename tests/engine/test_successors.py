"""State of a deleted namespace: nothing of it is left, and nothing of it affects its successor, the next
namespace of the same path."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from sealing_testing import NS, damage, files, ngram_oracle, ngrams, open_cache, output

from suffixsvc import Limits, Policies, Policy, SuffixCache
from suffixsvc.engine.sealing import maintenance
from suffixsvc.errors import SegmentCorruptError, StoreError, UnknownNamespaceError
from support.engine_parts import parts_of

TEXT = list(range(100, 140))


def known_paths(cache: SuffixCache) -> set[str]:
    """The paths that parts of the engine shared by all namespaces hold."""
    quotas, maintenance = parts_of(cache).quotas, parts_of(cache).maintenance
    parts = [quotas, maintenance, maintenance and maintenance.sealer]
    tables = [table for part in parts if part is not None for table in vars(part).values()]
    return {key for table in tables if isinstance(table, dict) for key in table if isinstance(key, str)}


def in_agreement(cache: SuffixCache, path: str = NS) -> None:
    cache.check()
    kept = [stored.output for stored in parts_of(cache).store.scan(path)]
    assert cache.namespace(path).stats().outputs == len(kept)
    assert ngrams(cache, 2, path) == ngram_oracle(kept, 2)


def test_nothing_is_left_of_a_deleted_namespace(tmp_path: Path) -> None:
    """Regression: policy, bytes, pauses and merge plans were held by path: a service whose clients choose
    paths grew by an entry for every path that was ever used, also by sessions without output."""
    limits = Limits(max_cache_bytes=1 << 26, seal_tokens=60)
    policies = Policies({"n": Policy(max_bytes=1 << 24, ttl_seconds=1000)})
    with SuffixCache(tmp_path / "d", limits=limits, policies=policies, background=False) as cache:
        assert parts_of(cache).maintenance is not None
        for number in range(5):
            session = cache.namespace(f"n/unwritten/{number}").open_session(TEXT)
            session.close(commit=False)
            del session
        for number in range(5):
            path = f"n/written/{number}"
            for _ in range(6):
                cache.namespace(path).add_output([*TEXT, number])
            parts_of(cache).maintenance.run_once()
            cache.evict()
            index = weakref.ref(parts_of(cache).catalog.index_of(path))
            cache.delete_namespace(path)
            assert index() is None
        assert known_paths(cache) == set()


def test_a_session_of_a_deleted_namespace_does_not_change_its_successors_bytes() -> None:
    """Regression: the old session's close reset the bytes of its path to zero. The successor's outputs no
    longer counted towards the limit of the whole cache, which could then be exceeded by as much."""
    with SuffixCache(limits=Limits(max_cache_bytes=1 << 22)) as cache:
        old = cache.namespace("a").open_session([1])
        old.step(TEXT, 0)
        cache.delete_namespace("a", force=True)
        cache.namespace("a").add_outputs([output([n, *TEXT], namespace="a") for n in range(50)])
        held = cache.stats().held_bytes
        assert parts_of(cache).quotas.usage.used == held > 0
        old.close()
        assert parts_of(cache).quotas.usage.used == cache.stats().held_bytes == held
        cache.delete_namespace("a")
        assert parts_of(cache).quotas.usage.used == 0


def test_a_successor_is_sealed_though_sealing_its_predecessor_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the pause after a failure, up to five minutes, was held by path: the successor was not
    sealed."""
    monkeypatch.setattr(maintenance, "_FIRST_PAUSE_SECONDS", 300.0)
    broken = [True]

    def hook(point: str) -> None:
        if point == "seal-read" and broken:
            raise OSError(24, "Too many open files")

    with open_cache(tmp_path / "d", sync_point=hook) as cache:
        assert parts_of(cache).maintenance is not None
        for generation in range(2):
            cache.namespace(NS).add_outputs([output([*TEXT, n, generation]) for n in range(3)])
            parts_of(cache).maintenance.run_once()
            assert (cache.stats().segments > 0) == (not broken)
            if broken:
                cache.delete_namespace(NS)
                broken.clear()
        in_agreement(cache)


def test_a_damaged_segment_does_not_affect_the_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a damaged segment that could not be dropped from the manifest was dropped from the
    successor's: each seal retried it in vain, and its file stayed until the next start."""
    limits = Limits(seal_tokens=40_000)
    with open_cache(tmp_path / "d", limits) as cache:
        cache.namespace(NS).add_outputs([output([n % 50 for n in range(k, k + 2_000)]) for k in range(30)])
        cache.compact()
    with open_cache(tmp_path / "d", limits) as cache:
        assert parts_of(cache).maintenance is not None
        (sealed,) = parts_of(cache).catalog.index_of(NS).sealed()
        damage(Path(sealed.segment.path))
        with pytest.raises(SegmentCorruptError):
            cache.check()

        def fails(*_: object) -> None:
            raise StoreError("injected")

        with monkeypatch.context() as broken:
            broken.setattr(parts_of(cache).store, "drop_segments", fails)
            parts_of(cache).maintenance.run_once()
        del sealed
        cache.delete_namespace(NS)
        assert files(tmp_path / "d") == []
        cache.namespace(NS).add_outputs([output([n, *TEXT]) for n in range(3)])
        with structlog.testing.capture_logs() as lines:
            assert cache.seal() == 3
        assert lines == []
        in_agreement(cache)


def deleting(cache: Callable[[], SuffixCache], path: str, succeeded: bool) -> Callable[[str], None]:
    """A sync point function that deletes a namespace, and may write to its successor, once, at the end of a
    seal."""
    left = [path]

    def hook(point: str) -> None:
        if point == "seal-done" and left:
            gone = left.pop()
            cache().delete_namespace(gone)
            if succeeded:
                cache().namespace(gone).add_outputs([output([n, *TEXT], namespace=gone) for n in range(2)])

    return hook


@pytest.mark.parametrize("succeeded", [True, False])
@pytest.mark.parametrize("work", ["seal", "compact"])
def test_a_namespace_that_is_deleted_before_its_turn_is_not_sealed(
    tmp_path: Path, work: str, succeeded: bool
) -> None:
    """Regression: sealing all namespaces continued with the index of a deleted one: it read the
    successor's rows and added a segment of them to the successor's manifest. Without a successor it raised
    UnknownNamespaceError."""
    cache = open_cache(tmp_path / "d", sync_point=deleting(lambda: cache, "b", succeeded))
    with cache:
        for path in ("a", "b"):
            cache.namespace(path).add_outputs([output([n, *TEXT], namespace=path) for n in range(3)])
        with structlog.testing.capture_logs() as lines:
            getattr(cache, work)()
        assert lines == []
        for path in ("a", "b") if succeeded else ("a",):
            in_agreement(cache, path)


def test_eviction_and_expiry_pass_over_a_namespace_that_is_deleted_meanwhile(tmp_path: Path) -> None:
    """Regression: the periodic run of the service raised UnknownNamespaceError, and skipped the namespaces
    after that one."""
    policies = Policies(default=Policy(max_bytes=1 << 20, ttl_seconds=1000))
    for _ in range(2):
        with SuffixCache(tmp_path / "d", policies=policies, background=False) as cache:
            for path in ("a", "b"):
                cache.namespace(path).add_output(TEXT)
    with SuffixCache(tmp_path / "d", policies=policies, background=False) as cache:
        parts = parts_of(cache)
        evictor, clock = parts.quotas.evictor, parts.store.clock
        indexes = parts.catalog.stored()
        cache.delete_namespace("a")
        due = clock.expiry_cutoff()
        assert evictor.evict(indexes) == evictor.expire(indexes, due) == 0
        evictor.save(indexes)
        far = type(due).at(clock.now_us() + 2_000_000_000)
        assert evictor.expire(indexes, far) == 2
        assert cache.stats().outputs == 0


def test_a_handle_of_a_deleted_namespace_does_nothing_to_its_successor(tmp_path: Path) -> None:
    """Regression: a deletion through such a handle deleted outputs of the successor, and
    note() returned the successor's note."""
    with open_cache(tmp_path / "d") as cache:
        old = cache.namespace(NS)
        old.add_output(TEXT)
        cache.delete_namespace(NS)
        new = cache.namespace(NS)
        kept = new.add_output(TEXT)
        new.put_note("n", b"new")
        for use in (
            old.delete,
            lambda: old.delete(output_ids=[kept]),
            lambda: old.note("n"),
            lambda: old.put_note("n", b"old"),
            lambda: old.ngrams(2),
            lambda: old.export_ngrams([], tmp_path),
        ):
            with pytest.raises(UnknownNamespaceError):
                use()
        assert new.note("n") == b"new"
        assert new.stats().outputs == 1
        in_agreement(cache)
