"""Signal handlers that raise: deferred during work, and never leaving a lock held."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest

from suffixsvc import SuffixCache
from suffixsvc.index.pending_commit import PendingCommit
from suffixsvc.runtime.signal_guard import AtomicCondition, JoinedThreads, uninterrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def came() -> Iterator[list[int]]:
    """Signals that reached the program's handlers; the handler of SIGINT raises."""
    seen: list[int] = []

    def own(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, own) for number in SIGNALS}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_signals_reach_their_handlers_after_the_work(came: list[int]) -> None:
    def work() -> str:
        signal.raise_signal(signal.SIGTERM)
        assert came == []
        return "done"

    assert uninterrupted(work) == "done"
    assert came == [signal.SIGTERM]


def test_an_interrupt_while_the_handlers_are_put_back_leaves_every_signal_its_handler(
    came: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: after a Ctrl-C during the restoration of handlers, SIGTERM and SIGHUP remained deferred by
    a finished call, and could not end the process."""
    install = signal.signal

    def put_back(number: int, handler: object) -> object:
        before = install(number, handler)  # type: ignore[arg-type]  # as signal.signal accepts it
        if number == signal.SIGINT and ready:
            signal.raise_signal(signal.SIGINT)
        return before

    ready: list[bool] = []
    monkeypatch.setattr(signal, "signal", put_back)
    with pytest.raises(KeyboardInterrupt):
        uninterrupted(lambda: ready.append(True))
    monkeypatch.undo()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.raise_signal(number)
    assert came == [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("name", ["SIGALRM", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGVTALRM", "SIGPROF"])
def test_other_signals_whose_handlers_raise_wait_for_the_work(name: str) -> None:
    """Programs time calls out with a handler of SIGALRM that raises; it must not interrupt the work."""
    number = getattr(signal, name)
    done = []

    def give_up(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    def work() -> None:
        signal.raise_signal(number)
        done.append(True)

    before = signal.signal(number, give_up)
    try:
        with pytest.raises(TimeoutError):
            uninterrupted(work)
    finally:
        signal.signal(number, before)
    assert done


def _use(cache: SuffixCache) -> None:
    namespace = cache.namespace("a")
    session = namespace.open_session([1, 2, 3])
    session.step([4, 5, 6])
    output_id = session.close()
    assert output_id is not None
    namespace.delete(output_ids=[output_id])
    cache.seal()
    cache.expire()
    cache.evict()
    cache.stats()
    cache.delete_namespace("a")


def test_calls_enter_no_condition_in_which_an_interrupt_can_leave_its_lock_held(tmp_path: Path) -> None:
    """`threading.Condition.__enter__` is Python code: an exception of a signal handler between its acquire
    and the block left the lock held, and every later call hung."""
    entered = []

    def watch(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code is threading.Condition.__enter__.__code__:
            assert frame.f_back is not None
            entered.append(f"{frame.f_back.f_code.co_filename}:{frame.f_back.f_lineno}")

    with SuffixCache(tmp_path) as cache:
        gc.collect()
        gc.disable()  # the collector would end channels and calls that other tests left, within these calls
        sys.setprofile(watch)
        try:
            _use(cache)
        finally:
            sys.setprofile(None)
            gc.enable()
    assert not entered


def test_an_interrupt_cannot_come_between_a_condition_and_its_block() -> None:
    """No Python frame is entered between the acquire of the lock and the block."""
    condition = AtomicCondition()
    calls = []

    def watch(frame: FrameType, event: str, _argument: object) -> None:
        if event == "return":
            calls.append(condition._is_owned())  # type: ignore[attr-defined]  # defined by every condition

    sys.setprofile(watch)
    try:
        with condition:
            sys.setprofile(None)
            held = list(calls)
    finally:
        sys.setprofile(None)
    assert not any(held)


def test_an_interrupt_while_abandoned_sessions_are_ended_leaves_none_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, came: list[int]
) -> None:
    """Regression: after a Ctrl-C between the removal of an abandoned session from its list and its end, the
    session remained counted as live, and its namespace could not be deleted."""
    with SuffixCache(tmp_path) as cache:
        session = cache.namespace("a").open_session([1])
        session.step([2, 3])
        del session
        gc.collect()
        release = PendingCommit.release

        def interrupted(self: PendingCommit) -> None:
            signal.raise_signal(signal.SIGINT)
            release(self)

        monkeypatch.setattr(PendingCommit, "release", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.stats()
        monkeypatch.undo()
        assert cache.stats().sessions == 0
    assert came == [signal.SIGINT]


def test_a_pool_whose_end_is_interrupted_waits_for_its_threads(came: list[int]) -> None:
    """Regression: a second Ctrl-C ended the wait for the threads of a build, Python took them for ended, and
    the process was aborted as one of them came back from the core."""
    started, release = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait()

    def interrupt(pool: JoinedThreads) -> None:
        with suppress(RuntimeError):  # raised once the pool is shutting down
            while True:
                pool.submit(int)
                time.sleep(0.01)
        for _ in range(2):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.2)
        release.set()

    with pytest.raises(KeyboardInterrupt), JoinedThreads(1) as pool:  # noqa: PT012 - all of it is the story
        done = pool.submit(work)
        started.wait()
        interrupter = threading.Thread(target=interrupt, args=(pool,))
        interrupter.start()
    interrupter.join()
    assert came == [signal.SIGINT, signal.SIGINT] or came == [signal.SIGINT]
    assert done.done()
