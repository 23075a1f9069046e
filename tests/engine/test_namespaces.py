"""Namespaces: there when something is written to them, gone when they are deleted."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sealing_testing import output

from suffixsvc import Limits, Policies, Policy, SuffixCache
from suffixsvc.engine.namespace import Namespace
from suffixsvc.errors import (
    InvalidNamespaceError,
    LimitExceededError,
    NamespaceInUseError,
    StoreError,
    StoreFullError,
    TokenizerMismatchError,
    UnknownNamespaceError,
    UnknownOutputError,
)
from suffixsvc.types import StoredOutput

TEXT = list(range(100, 140))


@pytest.fixture(params=["memory", "folder"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "d"


@pytest.fixture
def cache(place: Path | None) -> Iterator[SuffixCache]:
    policies = Policies({"small": Policy(max_bytes=100_000)})
    with SuffixCache(place, policies=policies, limits=Limits(seal_tokens=60), background=False) as opened:
        yield opened
        opened.check()


def paths(cache: SuffixCache) -> list[str]:
    return [record.path for record in cache.namespaces()]


def test_a_namespace_that_nobody_wrote_to_is_not_kept(cache: SuffixCache) -> None:
    """Opening a session created one for ever: 266 KiB of memory each, again at every start."""
    for number in range(50):
        session = cache.namespace(f"n/{number}").open_session(TEXT)
        session.step(TEXT[:5], 4)
        assert cache.has_namespace(f"n/{number}")
        session.close(commit=False)
        del session
        assert paths(cache) == []
    assert cache._store.namespaces() == []
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
    assert [(r.path, r.tokenizer) for r in cache._store.namespaces()] == [("a", "right")]


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
        cache._store.barrier()
        del session
    del namespace
    assert paths(cache) == ["small/a"]
    assert [(r.path, r.tokenizer) for r in cache._store.namespaces()] == [("small/a", "a-tokenizer")]
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
        assert cache._store.namespaces() == []


def test_unwritten_namespaces_answer(cache: SuffixCache) -> None:
    namespace = cache.namespace("a")
    assert namespace.clear() == 0
    assert namespace.note("n") is None
    assert namespace.stats().outputs == 0
    assert len(namespace.ngrams(2)[0]) == 0
    with pytest.raises(UnknownOutputError):
        namespace.forget(1)
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


# ------------------------------------------------------------------------------------------------ deleting


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
    assert cache._room._total == cache.stats().held_bytes > 0
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
    """Whatever is acknowledged after a deletion began is in the namespace that comes after it, or refused."""
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
                    continue  # of the one that goes
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
    cache._store.barrier()
    cache.check()
    assert cache.stats().outputs == cache._store.stats().outputs
    assert cache.stats().sessions == 0


def test_a_deletion_that_failed_half_way_stops_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store knew a namespace no more whose deletion an I/O error had interrupted, the engine still listed
    it: eviction, expiry, sealing and check of all namespaces ended at it with UnknownNamespaceError."""

    def fails(*_: object) -> int:
        raise StoreError("injected")

    with SuffixCache(tmp_path / "d", background=False) as cache:
        for path in ("a", "b"):
            cache.namespace(path).add_output(TEXT)
        with monkeypatch.context() as broken:
            broken.setattr(cache._store, "_delete_rest", fails)
            with pytest.raises(StoreError, match="injected"):
                cache.delete_namespace("a")
        assert cache.evict() == cache.expire() == 0
        assert cache.seal() == 1
        cache.check()
        cache.delete_namespace("a")
        assert paths(cache) == ["b"]
        cache.check()


def test_a_deletion_takes_texts_out_of_the_index_as_it_goes(tmp_path: Path) -> None:
    """Every output of the namespace, its tokens included, was kept in memory until the store had deleted the
    last of them, and only then was the first text taken out of the index."""
    with SuffixCache(tmp_path / "d", background=False) as cache:
        namespace = cache.namespace("a")
        namespace.add_outputs([output([n % 50, *TEXT], namespace="a") for n in range(1_000)])
        unindexer = cache._outputs._unindexer
        waiting: list[int] = []

        def counting(gone: Sequence[StoredOutput]) -> None:
            unindexer.forgotten(gone)
            waiting.append(len(unindexer._removals))

        cache._store.set_deletion_listener(counting)
        assert cache.delete_namespace("a") == 1_000
        assert len(waiting) >= 4, "in bounded transactions"
        assert max(waiting) <= 256
        assert not unindexer._removals
        assert namespace._index.index.stats().nodes == 1
        cache.check()


def test_a_deletion_that_was_interrupted_at_its_end_can_be_finished(
    place: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store had deleted the namespace when an interrupt came. The engine listed it until the next start:
    the store did not know it any more when it was to be deleted again."""
    with SuffixCache(place, background=False) as cache:
        cache.namespace("a").add_output(TEXT)
        delete = cache._store.delete_namespace

        def interrupted(*args: Any) -> int:
            delete(*args)
            raise KeyboardInterrupt

        with monkeypatch.context() as broken:
            broken.setattr(cache._store, "delete_namespace", interrupted)
            with pytest.raises(KeyboardInterrupt):
                cache.delete_namespace("a")
        assert cache.delete_namespace("a") == 0
        assert paths(cache) == []
        cache.namespace("a", "another").add_output(TEXT)
        cache.check()
        assert cache.stats().outputs == 1


# ------------------------------------------------------------------------------------------- its tokenizer


def stored_tokenizers(cache: SuffixCache) -> dict[str, str]:
    return {record.path: record.tokenizer for record in cache._store.namespaces()}


@pytest.mark.parametrize("kept", [True, False])
def test_a_tokenizer_that_is_bound_while_the_first_write_is_in_flight_is_stored(
    place: Path | None, cache: SuffixCache, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """The write had been handed to the store without a tokenizer, and the store did not hold the namespace
    yet: the tokenizer was bound in memory alone, and after a restart another one could be bound."""
    append = cache._store.append
    begun, go_on, bound = threading.Event(), threading.Event(), threading.Event()

    def late(*args: Any, **more: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        if not kept:
            raise StoreError("injected")
        return append(*args, **more)

    def write() -> None:
        with contextlib.suppress(StoreError):
            cache.namespace("a").add_output(TEXT)

    def bind() -> None:
        held.append(cache.namespace("a", "a-tokenizer"))
        bound.set()

    held: list[Namespace] = []
    monkeypatch.setattr(cache._store, "append", late)
    threads = [threading.Thread(target=write), threading.Thread(target=bind)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    early = bound.wait(0.2)
    go_on.set()
    for thread in threads:
        thread.join()
    assert not early, "bound before it was known whether the namespace is stored"
    assert held[0].tokenizer == "a-tokenizer"
    assert stored_tokenizers(cache) == ({"a": "a-tokenizer"} if kept else {})
    monkeypatch.undo()
    held[0].add_output(TEXT)
    assert stored_tokenizers(cache) == {"a": "a-tokenizer"}


def test_a_tokenizer_that_could_not_be_stored_is_stored_later(
    place: Path | None, cache: SuffixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store failed to note the tokenizer of a namespace that had none. Memory had it from then on, so no
    later call saw anything to be stored, until the restart that lost it."""

    def fails(*_: object) -> None:
        raise StoreError("injected")

    cache.namespace("a").add_output(TEXT)
    for _ in range(2):
        with monkeypatch.context() as broken:
            broken.setattr(cache._store, "add_namespace", fails)
            with pytest.raises(StoreError, match="injected"):
                cache.namespace("a", "a-tokenizer")
    assert stored_tokenizers(cache) == {"a": ""}
    cache.namespace("a", "a-tokenizer")
    assert stored_tokenizers(cache) == {"a": "a-tokenizer"}
    with monkeypatch.context() as broken:
        broken.setattr(cache._store, "add_namespace", fails)
        cache.namespace("a", "a-tokenizer")  # what is stored is not stored again


def test_the_next_write_stores_a_tokenizer_that_could_not_be_stored(
    place: Path | None, cache: SuffixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own transaction, for a caller that binds it no second time."""

    def fails(*_: object) -> None:
        raise StoreError("injected")

    namespace = cache.namespace("a")
    namespace.add_output(TEXT)
    with monkeypatch.context() as broken:
        broken.setattr(cache._store, "add_namespace", fails)
        with pytest.raises(StoreError, match="injected"):
            cache.namespace("a", "a-tokenizer")
    namespace.add_output(TEXT)
    assert stored_tokenizers(cache) == {"a": "a-tokenizer"}


def test_a_tokenizer_that_came_with_the_first_write_is_not_stored_twice(
    cache: SuffixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise StoreError("injected")

    cache.namespace("a", "a-tokenizer").add_output(TEXT)
    monkeypatch.setattr(cache._store, "add_namespace", fails)
    cache.namespace("a", "a-tokenizer").add_output(TEXT)
    assert stored_tokenizers(cache) == {"a": "a-tokenizer"}
