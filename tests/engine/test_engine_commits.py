"""Commits of sessions that are interrupted or fail, and sessions that are not closed."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from engine_testing import SQL

from suffixsvc import Limits, SuffixCache
from suffixsvc.errors import (
    SessionClosedError,
    StoreFullError,
)
from suffixsvc.store.base import Store
from suffixsvc.types import NewOutput
from support.engine_parts import parts_of


def test_sessions_dropped_without_close_free_their_place_and_take_their_text_back() -> None:
    """Regression: an exception between open and close leaked a session slot and text that was in no log."""
    with SuffixCache(limits=Limits(max_sessions=3)) as cache:
        namespace = cache.namespace("m")
        for i in range(9):
            namespace.open_session([i]).step(SQL[:20], max_draft_tokens=0)
            gc.collect()
        assert cache.stats().sessions == 0
        assert namespace.stats().index_nodes == 1


def test_a_session_is_a_context_manager(cache: SuffixCache) -> None:
    namespace = cache.namespace("m")
    with namespace.open_session([1]) as session:
        session.step(SQL, max_draft_tokens=0)
    assert namespace.stats().outputs == 1

    def fails() -> None:
        with namespace.open_session([1]) as failing:
            failing.step(SQL, max_draft_tokens=0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert namespace.stats().outputs == 1
    assert cache.stats().sessions == 0


class SlowStore:
    """A store whose commits finish when the test completes them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.waiting: list[tuple[Future[list[int]], Sequence[NewOutput], Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(
        self, outputs: Sequence[NewOutput], create: Any = (), on_committed: Any = None
    ) -> Future[list[int]]:
        future: Future[list[int]] = InterruptedOnce()
        self.waiting.append((future, outputs, create, on_committed))
        return future

    def finish(self) -> None:
        for future, outputs, create, on_committed in self.waiting:
            future.set_result(self._store.append(outputs, create, on_committed).result())
        self.waiting.clear()


class InterruptedOnce(Future):  # type: ignore[type-arg] # generic only for type checkers
    """A future whose first wait is interrupted, as by Ctrl-C."""

    interrupted = False

    def result(self, timeout: float | None = None) -> Any:
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        return super().result(timeout)


def test_an_interrupted_wait_leaves_index_and_log_in_step() -> None:
    """Regression: Ctrl-C during a commit undid the index but not the log; a second close() stored the output
    again."""
    with SuffixCache() as cache:
        store = SlowStore(parts_of(cache).store)
        parts_of(cache).outputs._store = store  # type: ignore[assignment] # a store in all it is asked
        namespace = cache.namespace("m")
        with pytest.raises(KeyboardInterrupt):
            namespace.add_output(SQL)
        session = namespace.open_session([1])
        session.step(SQL[::-1], max_draft_tokens=0)
        with pytest.raises(KeyboardInterrupt):
            session.close()
        with pytest.raises(SessionClosedError):
            session.step([1])
        store.finish()
        output_id = session.close()
        assert output_id is not None
        assert namespace.stats().outputs == 2
        assert store.stats().outputs == 2
        namespace.delete(output_ids=[output_id])
        namespace.delete(output_ids=[output_id - 1])
        assert namespace.stats().index_nodes == 1
        cache.check()


def test_a_failed_commit_leaves_the_session_open_and_nothing_half_kept() -> None:
    with SuffixCache(limits=Limits(max_store_bytes=1 << 20)) as cache:
        namespace = cache.namespace("m")

        def fill() -> None:
            for i in range(1000):
                namespace.add_output(list(range(i, i + 4000)))

        with pytest.raises(StoreFullError):
            fill()
        kept = namespace.stats().outputs
        assert kept == parts_of(cache).store.stats().outputs
        session = namespace.open_session([1])
        session.step(list(range(5000)), max_draft_tokens=0)
        with pytest.raises(StoreFullError):
            session.close()
        assert not session.closed
        assert session.close(commit=False) is None
        assert namespace.stats().outputs == kept
        cache.check()


def test_a_closed_session_says_so_and_closing_again_repeats_its_answer(cache: SuffixCache) -> None:
    session = cache.namespace("acme/m").open_session([1])
    session.step([5, 6])
    output_id = session.close()
    assert session.closed
    assert session.close() == output_id
    with pytest.raises(SessionClosedError):
        session.step([7])
    with pytest.raises(SessionClosedError):
        session.append_context([7])
    assert cache.namespace("acme/m").open_session([1]).close() is None
