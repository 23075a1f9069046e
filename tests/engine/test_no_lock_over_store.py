"""Calls of the store are made without any lock that other calls of the cache need."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from suffixsvc import Policies, Policy, SuffixCache
from suffixsvc.engine.base.close_guard import CloseGuard
from suffixsvc.errors import SessionClosedError
from suffixsvc.runtime.sync_points import with_sync_points
from support.engine_parts import parts_of
from support.store_parts import store_parts_of

TEXT = list(range(100, 140))
#: timeout of a hang
LONG = 60.0


class Gate:
    """A sync point that blocks the store's thread before a commit, after :meth:`shut`."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self.open.set()

    def shut(self) -> None:
        self.reached.clear()
        self.open.clear()

    def __call__(self, point: str) -> None:
        if point == "written" and not self.open.is_set():
            self.reached.set()
            assert self.open.wait(LONG)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture
def cache(tmp_path: Path, gate: Gate) -> Iterator[SuffixCache]:
    policies = Policies({"full": Policy(max_bytes=100_000), "old": Policy(ttl_seconds=5)})
    with with_sync_points(SuffixCache, gate)(tmp_path / "d", policies=policies, background=False) as opened:
        for path in ("a", "b", "full", "old"):
            namespace = opened.namespace(path)
            namespace.add_output(TEXT)
            namespace.add_output(TEXT, ttl_seconds=5)
        yield opened
        gate.open.set()
        opened.check()


#: calls that wait for a commit
BLOCKED: dict[str, Callable[[SuffixCache], object]] = {
    "forget": lambda cache: cache.namespace("a").delete(output_ids=[1]),
    "clear": lambda cache: cache.namespace("a").delete(),
    "expire": lambda cache: cache.expire(4e9),
    "add": lambda cache: cache.namespace("a").add_output(TEXT),
    "new namespace": lambda cache: cache.namespace("new").add_output(TEXT),
    "tokenizer": lambda cache: cache.namespace("a", "a-tokenizer").add_output(TEXT),
    "note": lambda cache: cache.namespace("a").put_note("n", b"x"),
    "close": lambda cache: written(cache).close(),
}


def written(cache: SuffixCache, path: str = "a"):  # type: ignore[no-untyped-def]  # a Session
    session = cache.namespace(path).open_session([1, 2, 3])
    session.step(TEXT, 0)
    return session


@pytest.mark.parametrize("blocked", BLOCKED)
@pytest.mark.parametrize("path", ["a", "b"])
def test_while_a_commit_hangs_everything_else_goes_on(
    cache: SuffixCache, gate: Gate, pool: ThreadPoolExecutor, blocked: str, path: str
) -> None:
    """Regression: the lock of the whole cache was held while outputs were deleted from the disk: 20,000 that
    expired together blocked every open for 1.5 s, and eight callers of Forget raised the median open from
    0.13 to 118 ms. Here the disk hangs, and opens, steps, statistics and closes without wait return."""
    gate.shut()
    waiting = pool.submit(BLOCKED[blocked], cache)
    assert gate.reached.wait(LONG)

    def others() -> None:
        live = written(cache, path)
        assert len(live.step(TEXT[:20], 8, 0.01))
        assert cache.stats().sessions >= 1
        assert cache.namespace(path).stats().outputs >= 1
        assert path in [record.path for record in cache.namespaces()]
        assert cache.has_namespace(path)
        live.close(commit=False)
        written(cache, path).close(wait=False)
        cache.namespace(path).open_session(TEXT, reads=["b"] if path == "a" else ["a"]).close()

    pool.submit(others).result(LONG)
    assert not waiting.done()
    gate.open.set()
    waiting.result(LONG)


def test_forgets_of_several_callers_share_a_commit(
    cache: SuffixCache, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    """Regression: serialised by a lock, each took one synchronisation of the disk."""
    namespace = cache.namespace("a")
    ids = [namespace.add_output([*TEXT, i]) for i in range(8)]
    gate.shut()
    first = pool.submit(namespace.put_note, "n", b"")
    assert gate.reached.wait(LONG)
    store = store_parts_of(parts_of(cache).store)
    before = store.environment.snapshot.counters.txn
    forgets = [pool.submit(namespace.delete, output_ids=[i], superseded=True) for i in ids[:7]]
    wait_for(lambda: store.queued() == 7)
    gate.open.set()
    first.result(LONG)
    for forget in forgets:
        forget.result(LONG)
    assert store.environment.snapshot.counters.txn - before == 2


def wait_for(condition: Callable[[], bool]) -> None:
    tick = threading.Event()
    for _ in range(int(LONG / 0.002)):
        if condition():
            return
        tick.wait(0.002)
    raise AssertionError("the condition did not become true in time")


def test_a_close_waits_for_the_calls_under_way(
    cache: SuffixCache, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    gate.shut()
    forget = pool.submit(cache.namespace("a").delete, output_ids=[1])
    assert gate.reached.wait(LONG)
    close = pool.submit(cache.close)
    wait_for(lambda: parts_of(cache).close_guard.closed)
    with pytest.raises(SessionClosedError):
        cache.namespace("a")
    assert not close.done()
    assert not forget.done()
    gate.open.set()
    forget.result(LONG)
    close.result(LONG)
    cache.check = lambda: None  # type: ignore[method-assign]  # closed: the fixture has nothing to look at


def test_the_gate_lets_calls_nest_and_ends_once(pool: ThreadPoolExecutor) -> None:
    close_guard = CloseGuard()
    inside, go_on = threading.Event(), threading.Event()

    def call() -> None:
        with close_guard.while_open():
            inside.set()
            assert go_on.wait(LONG)
            with close_guard.while_open():  # what began before the close is not cut in two
                pass

    calling = pool.submit(call)
    assert inside.wait(LONG)
    ending: Future[bool] = pool.submit(close_guard.close)
    wait_for(lambda: close_guard.closed)
    with pytest.raises(SessionClosedError):
        close_guard.require_open()
    assert not ending.done()
    go_on.set()
    calling.result(LONG)
    assert ending.result(LONG)
    assert not close_guard.close()


def test_a_call_can_close_what_it_is_in() -> None:
    """As in a signal handler that runs within a call."""
    close_guard = CloseGuard()
    with close_guard.while_open():
        assert close_guard.close()
