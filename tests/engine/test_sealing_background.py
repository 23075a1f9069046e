"""Background sealing: backpressure, failures, many namespaces, and the end of the thread."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path

import pytest
import structlog
from sealing_testing import LIMITS, NS, SQL, fill, open_cache, output

from suffixsvc.engine.sealing.sealer import Sealer
from suffixsvc.engine.sealing.tiering import MAX_SEGMENTS
from suffixsvc.errors import SessionClosedError, StoreFullError
from support.engine_parts import parts_of


def test_a_load_that_is_faster_than_sealing_waits(tmp_path: Path) -> None:
    """Without backpressure the hot index would hold all of it: the thread runs once a second."""
    with open_cache(tmp_path / "d", background=True) as cache:
        batch = LIMITS.seal_tokens
        for i in range(20):
            cache.namespace(NS).add_outputs([output([i] * batch)])
            assert cache.stats().hot_tokens <= 5 * batch
        cache.check()


def test_a_load_goes_on_where_sealing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Sealer, index: object) -> int:
        raise StoreFullError("no space left")

    monkeypatch.setattr(Sealer, "seal", full)
    with open_cache(tmp_path / "d", background=True) as cache:
        with structlog.testing.capture_logs() as lines:
            for i in range(10):
                cache.namespace(NS).add_outputs([output([i] * LIMITS.seal_tokens)])
        assert {line["event"] for line in lines} == {"sealing failed; it is retried"}
        assert cache.stats().outputs == 10
        cache.check()


def wait_for(what: str, ready: object) -> None:
    end = time.monotonic() + 60
    while not ready():  # type: ignore[operator]  # a function without arguments
        assert time.monotonic() < end, what
        time.sleep(0.02)


def test_the_background_seals_and_merges_by_itself(tmp_path: Path) -> None:
    with open_cache(tmp_path / "d", background=True) as cache:
        for _ in range(8):
            fill(cache, 6)
        index = parts_of(cache).catalog.index_of(NS)
        wait_for("sealed", lambda: index.hot_tokens < LIMITS.seal_tokens)
        wait_for("merged", lambda: len(index.sealed()) <= MAX_SEGMENTS)
        wait_for("settled", lambda: all(not e.segment.stats().uncorrected for e in index.sealed()))
        cache.check()
        assert cache.stats().outputs == 48


def test_many_small_namespaces_are_sealed_too(tmp_path: Path) -> None:
    """None of them reaches the threshold; together they would be indexed again at every restart."""
    with open_cache(tmp_path / "d", background=True) as cache:
        for i in range(20):
            cache.namespace(f"n/{i}").add_outputs([output(range(40), namespace=f"n/{i}")])
        wait_for("sealed", lambda: cache.stats().hot_tokens <= 4 * LIMITS.seal_tokens)
        cache.check()


def test_closing_ends_the_thread_and_is_idempotent(tmp_path: Path) -> None:
    cache = open_cache(tmp_path / "d", background=True)
    fill(cache, 60)
    threads = [threading.Thread(target=cache.close) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cache.close()
    assert not [t for t in threading.enumerate() if t.name == "suffixsvc-maintenance"]
    with pytest.raises(SessionClosedError):
        cache.seal()
    with pytest.raises(SessionClosedError):
        cache.check()
    with open_cache(tmp_path / "d") as cache:
        assert cache.stats().outputs == 60
        cache.check()


def test_an_unclosed_cache_releases_its_folder(tmp_path: Path) -> None:
    cache = open_cache(tmp_path / "d", background=True)
    fill(cache, 9)
    del cache
    gc.collect()
    open_cache(tmp_path / "d").close()


def test_a_cache_lives_as_long_as_its_sessions_and_no_longer(tmp_path: Path) -> None:
    cache = open_cache(tmp_path / "d", background=True)
    fill(cache, 9)
    session = cache.namespace(NS).open_session([1])
    alive = weakref.ref(parts_of(cache).sessions)
    gc.disable()  # no part of a cache references it
    try:
        del cache
        assert alive() is not None
        session.step(SQL, max_draft_tokens=0)
        assert session.close() == 10
        del session
        assert alive() is None
    finally:
        gc.enable()
    with open_cache(tmp_path / "d") as again:
        assert again.stats().outputs == 10
