"""Life of namespaces: created with their first output, deleted with their contents."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from namespace_testing import TEXT, paths
from sealing_testing import output

from suffixsvc import Deletion, Limits, Policies, Policy, SuffixCache
from suffixsvc.errors import (
    InvalidNamespaceError,
    LimitExceededError,
    NamespaceInUseError,
    StoreError,
    StoreFullError,
    TokenizerMismatchError,
    UnknownNamespaceError,
)
from suffixsvc.types import StoredOutput
from support.engine_parts import index_of, parts_of, queued_removals, unindexer_of


@pytest.fixture
def cache(place: Path | None) -> Iterator[SuffixCache]:
    policies = Policies({"small": Policy(max_bytes=100_000)})
    with SuffixCache(place, policies=policies, limits=Limits(seal_tokens=60), background=False) as opened:
        yield opened
        opened.check()


def test_a_namespace_without_a_write_is_not_kept(cache: SuffixCache) -> None:
    """Regression: opening a session created a namespace permanently: 266 KiB of memory each, also after a
    restart."""
    for number in range(50):
        session = cache.namespace(f"n/{number}").open_session(TEXT)
        session.step(TEXT[:5], 4)
        assert cache.has_namespace(f"n/{number}")
        session.close(commit=False)
        del session
        assert paths(cache) == []
    assert parts_of(cache).store.namespaces() == []
    assert cache.stats().namespaces == 0


def test_a_wrong_tokenizer_binds_no_longer_than_its_session_lives(cache: SuffixCache) -> None:
    session = cache.namespace("a", "wrong").open_session(TEXT)
    with pytest.raises(TokenizerMismatchError):
        cache.namespace("a", "right")
    session.close(commit=False)
    del session
    right = cache.namespace("a", "right")
    right.add_output(TEXT)
    del right
    with pytest.raises(TokenizerMismatchError):
        cache.namespace("a", "wrong")
    assert [(r.path, r.tokenizer) for r in parts_of(cache).store.namespaces()] == [("a", "right")]


def test_a_session_that_was_dropped_takes_its_namespace_along(cache: SuffixCache) -> None:
    session = cache.namespace("a").open_session(TEXT)
    session.step(TEXT, 0)
    del session
    gc.collect()
    assert cache.stats().sessions == 0
    assert paths(cache) == []


@pytest.mark.parametrize("way", ["session", "no wait", "bulk", "note"])
def test_the_first_thing_kept_keeps_the_namespace(place: Path | None, cache: SuffixCache, way: str) -> None:
    namespace = cache.namespace("small/a", "a-tokenizer")
    if way == "bulk":
        namespace.add_output(TEXT)
    elif way == "note":
        namespace.put_note("n", b"x")
    else:
        session = namespace.open_session([1])
        session.step(TEXT, 0)
        session.close(wait=way == "session")
        parts_of(cache).store.barrier()
        del session
    del namespace
    assert paths(cache) == ["small/a"]
    assert [(r.path, r.tokenizer) for r in parts_of(cache).store.namespaces()] == [("small/a", "a-tokenizer")]
    if place is not None:
        cache.close()
        with SuffixCache(place, background=False) as again:
            assert [(r.path, r.tokenizer) for r in again.namespaces()] == [("small/a", "a-tokenizer")]
        cache.check = lambda: None  # type: ignore[method-assign]  # closed: the fixture has nothing to look at


def test_a_first_write_that_fails_keeps_no_namespace() -> None:
    with SuffixCache(limits=Limits(max_store_bytes=1 << 20)) as cache:
        with pytest.raises(StoreFullError):
            cache.namespace("a").add_output(list(range(400_000)))
        gc.collect()  # the error's traceback held it
        assert paths(cache) == []
        assert parts_of(cache).store.namespaces() == []


def test_unwritten_namespaces_answer(cache: SuffixCache) -> None:
    namespace = cache.namespace("a")
    assert namespace.delete() == Deletion()
    assert namespace.note("n") is None
    assert namespace.stats().outputs == 0
    assert len(namespace.ngrams(2)[0]) == 0
    assert namespace.delete(output_ids=[1]) == Deletion()
    assert cache.seal("a") == 0
    assert cache.evict() == cache.expire(4e9) == 0
    cache.check()


def test_namespaces_are_still_bounded() -> None:
    with SuffixCache(limits=Limits(max_namespaces=2)) as cache:
        held = [cache.namespace("a"), cache.namespace("b")]
        with pytest.raises(LimitExceededError, match="too many namespaces"):
            cache.namespace("c")
        held.pop()
        cache.namespace("c")


# --------------------------------------------------------------------------------------------------- deletion


def test_what_was_deleted_is_gone_for_good(place: Path | None, cache: SuffixCache) -> None:
    namespace = cache.namespace("small/a", "old")
    ids = [namespace.add_output([*TEXT, n]) for n in range(6)]
    namespace.put_note("n", b"x")
    other = cache.namespace("small/b")
    other.add_output([7, *TEXT])
    cache.seal("small/a")
    ids.append(namespace.add_output([*TEXT, 99]))
    reader = cache.namespace("reader").open_session([1], reads=["small/a"])
    assert len(reader.step(TEXT[:10], 8, 0.01))
    assert cache.delete_namespace("small/a") == 7
    assert len(reader.step(TEXT[10:20], 8, 0.01, at=11)) == 0 or place is None
    assert not cache.has_namespace("small/a")
    assert "small/a" not in paths(cache)
    assert parts_of(cache).quotas.usage.used == cache.stats().held_bytes > 0
    reader.close(commit=False)
    if place is not None:
        assert list((place / "segments").iterdir()) == []
    with pytest.raises(UnknownNamespaceError):
        cache.delete_namespace("small/a")
    with pytest.raises(UnknownNamespaceError):
        namespace.add_output(TEXT)
    again = cache.namespace("small/a", "new")
    assert again.note("n") is None
    assert again.stats().outputs == 0
    new = again.add_output([1, 2, 3])
    assert new > max(ids)
    assert other.stats().outputs == 1


def test_live_sessions_hold_a_deletion_back_unless_forced(cache: SuffixCache) -> None:
    namespace = cache.namespace("a")
    namespace.add_output(TEXT)
    live = namespace.open_session([1])
    live.step(TEXT, 0)
    with pytest.raises(NamespaceInUseError, match="namespace a must have no live sessions") as caught:
        cache.delete_namespace("a")
    assert caught.value.got == 1
    assert cache.namespace("a").stats().outputs == 1, "nothing happened"
    assert cache.delete_namespace("a", force=True) == 1
    live.step([5, 6], 4)
    assert live.close() is None
    assert paths(cache) == []
    assert cache.stats().sessions == 0


def test_what_every_session_reads_is_not_deleted(cache: SuffixCache) -> None:
    cache.namespace("corpus", "t").add_output(TEXT)
    cache.read_by_default(["corpus"])
    with pytest.raises(InvalidNamespaceError):
        cache.delete_namespace("corpus")


def test_writers_beside_deletions_keep_index_and_log_agreed(cache: SuffixCache) -> None:
    """A write that is acknowledged after a deletion began is in the next namespace of the path, or
    rejected."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            while not stop.is_set():
                try:
                    namespace = cache.namespace("a")
                    if number % 2:
                        namespace.add_output([number, *TEXT])
                    else:
                        session = namespace.open_session([1])
                        session.step([number, *TEXT], 0)
                        session.close()
                except (UnknownNamespaceError, StoreError):
                    continue  # of the deleted namespace
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    deleted = 0
    for _ in range(300):
        try:
            cache.delete_namespace("a", force=True)
            deleted += 1
        except UnknownNamespaceError:
            pass
        if deleted >= 15:
            break
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed, failed
    parts_of(cache).store.barrier()
    cache.check()
    assert cache.stats().outputs == parts_of(cache).store.stats().outputs
    assert cache.stats().sessions == 0


def test_a_deletion_that_failed_half_way_stops_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the store no longer had a namespace whose deletion an I/O error had interrupted, while the
    engine still listed it: eviction, expiry, sealing and check of all namespaces failed at it with
    UnknownNamespaceError."""

    def fails(*_: object) -> int:
        raise StoreError("injected")

    with SuffixCache(tmp_path / "d", background=False) as cache:
        for path in ("a", "b"):
            cache.namespace(path).add_output(TEXT)
        with monkeypatch.context() as broken:
            broken.setattr(parts_of(cache).store, "_delete_rest", fails)
            with pytest.raises(StoreError, match="injected"):
                cache.delete_namespace("a")
        assert cache.evict() == cache.expire() == 0
        assert cache.seal() == 1
        cache.check()
        cache.delete_namespace("a")
        assert paths(cache) == ["b"]
        cache.check()


def test_a_deletion_takes_texts_out_of_the_index_as_it_goes(tmp_path: Path) -> None:
    """Regression: every output of the namespace with its tokens was held in memory until the store had
    deleted the last one, and only then was the first text removed from the index."""
    with SuffixCache(tmp_path / "d", background=False) as cache:
        namespace = cache.namespace("a")
        namespace.add_outputs([output([n % 50, *TEXT], namespace="a") for n in range(1_000)])
        unindexer = unindexer_of(cache)
        waiting: list[int] = []

        def counting(gone: Sequence[StoredOutput]) -> None:
            unindexer.forgotten(gone)
            waiting.append(queued_removals(cache))

        parts_of(cache).store.set_deletion_listener(counting)
        assert cache.delete_namespace("a") == 1_000
        assert len(waiting) >= 4, "in bounded transactions"
        assert max(waiting) <= 256
        assert not queued_removals(cache)
        assert index_of(namespace).index.stats().nodes == 1
        cache.check()


def test_a_deletion_that_was_interrupted_at_its_end_can_be_finished(
    place: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: an interrupt came after the store had deleted the namespace. The engine listed it until the
    next start, because the store did not have it when it was deleted again."""
    with SuffixCache(place, background=False) as cache:
        cache.namespace("a").add_output(TEXT)
        delete = parts_of(cache).store.delete_namespace

        def interrupted(*args: Any) -> int:
            delete(*args)
            raise KeyboardInterrupt

        with monkeypatch.context() as broken:
            broken.setattr(parts_of(cache).store, "delete_namespace", interrupted)
            with pytest.raises(KeyboardInterrupt):
                cache.delete_namespace("a")
        assert cache.delete_namespace("a") == 0
        assert paths(cache) == []
        cache.namespace("a", "another").add_output(TEXT)
        cache.check()
        assert cache.stats().outputs == 1
