"""A write is completed once: if it is interrupted, if a step of it fails, if its namespace is deleted."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

from suffixsvc import Limits, Policies, Policy, SuffixCache
from suffixsvc.engine.outputs import output_log
from suffixsvc.errors import StoreFullError, UnknownNamespaceError
from suffixsvc.index import NamespaceIndex
from suffixsvc.types import NewOutput
from support.engine_parts import index_of, parts_of

NS = "acme/m"
TEXT = list(range(100, 140))
#: timeout of conditions that are normally met at once
PATIENCE_SECONDS = 60.0


@pytest.fixture
def cache(place: Path | None) -> Iterator[SuffixCache]:
    """A cache with a limit, so that writes reserve bytes."""
    policies = Policies({NS: Policy(max_bytes=10_000_000)})
    with SuffixCache(place, policies=policies, background=False) as opened:
        yield opened


@pytest.fixture
def sigint_raises() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where a shell's background job ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def output(first: int, tokens: int = 30, uuid: bytes = b"") -> NewOutput:
    """An output of two runs, which is indexed as several texts."""
    ids = np.arange(first, first + tokens, dtype=np.int32)
    return NewOutput(NS, ids, (10, tokens - 10), np.asarray([5, 6], np.int32), uuid=uuid)


def require_settled(cache: SuffixCache, index: NamespaceIndex) -> None:
    """No write is in flight, and index and log agree."""
    parts_of(cache).store.barrier()
    parts_of(cache).outputs.finish_removals()
    assert index.writes == 0
    assert index.consistency_snapshot() is not None, "text is on its way for ever"
    assert not parts_of(cache).quotas.usage.reserved
    cache.check()


def in_time(work: Callable[[], object]) -> None:
    """Run a function in a thread, and fail if it does not end."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive(), "it waits for ever"
    assert not failed, failed


# --------------------------------------------------------------------------------------------- interrupts


@pytest.mark.usefixtures("sigint_raises")
def test_an_interrupt_while_a_write_is_handed_over_does_not_take_it_back(
    cache: SuffixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: Ctrl-C while the store received the outputs, delivered right after that: the engine
    removed their texts from the index and ended the write, and the store's thread ended it again. The rows
    were in the log, their texts were not in the index, and the namespace counted -1 writes, so that its
    deletion hung.

    After the submission only the store decides."""
    append = parts_of(cache).store.append

    def interrupted(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return append(*arguments)

    namespace = cache.namespace(NS)
    index = index_of(namespace)
    with monkeypatch.context() as patch:
        patch.setattr(parts_of(cache).store, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            namespace.add_outputs([output(1), output(1000)])
    require_settled(cache, index)
    assert cache.stats().outputs == 2
    in_time(lambda: cache.delete_namespace(NS))


@pytest.mark.usefixtures("sigint_raises")
@pytest.mark.parametrize("fails", [False, True], ids=["kept", "refused"])
def test_an_interrupt_at_any_line_of_a_bulk_load_leaves_index_and_log_agreed(
    tmp_path: Path, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a text that was inserted in part, or not recorded yet, stayed in the index: no log had
    it, and it could not be forgotten. Each line that a bulk load runs is interrupted once, by a real
    signal."""
    code = codes_of(output_log.OutputLog._log)
    with SuffixCache(tmp_path / "d", background=False) as cache:
        if fails:

            def refused(*arguments: Any) -> Any:
                raise StoreFullError("injected")

            monkeypatch.setattr("suffixsvc.store.transactions.write_view.WriteView.append", refused)
        index = index_of(cache.namespace(NS))
        uuid = bytes(16)
        line = 0
        while True:
            line += 1
            new = [output(1, uuid=uuid), output(1000 * line, 20), output(1000 * line, 20)]
            if not interrupted_at(line, code, lambda new=new: parts_of(cache).outputs._log(index, new, "")):  # type: ignore[misc]  # bound now
                break
            require_settled(cache, index)
        assert line > 10, "it was interrupted at few lines"
        in_time(lambda: cache.delete_namespace(NS))


def codes_of(*functions: Callable[..., object]) -> set[CodeType]:
    """The code objects of functions and of the functions inside them."""
    found: set[CodeType] = set()
    left = [function.__code__ for function in functions]  # type: ignore[attr-defined]  # functions of ours
    while left:
        code = left.pop()
        found.add(code)
        left += [each for each in code.co_consts if isinstance(each, CodeType)]
    return found


def interrupted_at(line: int, codes: set[CodeType], work: Callable[[], object]) -> bool:
    """Run work with a signal at the line-th line that it runs of these; returns whether there was one."""
    left = [line]

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code not in codes:
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except (KeyboardInterrupt, StoreFullError):
        pass
    finally:
        sys.settrace(before)
    return left[0] <= 0


# -------------------------------------------------------------------------- steps of completion that fail


@pytest.mark.parametrize("way", ["bulk", "session", "session of two runs"])
def test_a_completion_that_fails_wakes_its_waiters(
    cache: SuffixCache, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Regression: an exception while a committed output was counted skipped the steps after it: the write
    stayed in flight, its bytes reserved, and the deletion of its namespace hung with the maintenance lock
    held, so that sealing and checks of every namespace hung as well."""

    def fails(*arguments: object) -> None:
        raise MemoryError("injected")

    namespace = cache.namespace(NS)
    index = index_of(namespace)
    with monkeypatch.context() as patch:
        patch.setattr(NamespaceIndex, "record_logged", fails)
        write(cache, way)
        parts_of(cache).store.barrier()
    assert index.writes == 0
    assert not parts_of(cache).quotas.usage.reserved
    assert index.consistency_snapshot() is not None
    in_time(lambda: cache.delete_namespace(NS))
    write(cache, way)
    cache.check()


def write(cache: SuffixCache, way: str) -> None:
    namespace = cache.namespace(NS)
    if way == "bulk":
        namespace.add_outputs([output(1), output(1000)])
        return
    session = namespace.open_session([1])
    session.step(TEXT, 0)
    if way != "session":
        session.append_context([7])
        session.step(TEXT, 0)
    session.close()


def test_texts_that_are_there_already_leave_the_index_one_by_one(
    cache: SuffixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a bulk load of outputs that the log already had failed to remove the text of one from the
    index: the others of the load were not counted, and the load stayed in flight forever."""
    namespace = cache.namespace(NS)
    namespace.add_outputs([output(1, uuid=bytes(16)), output(5000, uuid=bytes([1] * 16))])
    remove, failed = NamespaceIndex.remove, []

    def fails_once(index: NamespaceIndex, gone: NewOutput) -> None:
        remove(index, gone)
        if not failed:
            failed.append(gone)
            raise UnknownNamespaceError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(NamespaceIndex, "remove", fails_once)
        with pytest.raises(UnknownNamespaceError, match="injected"):
            namespace.add_outputs(
                [output(1, uuid=bytes(16)), output(3000), output(5000, uuid=bytes([1] * 16))]
            )
    require_settled(cache, index_of(namespace))
    assert cache.stats().outputs == 3


# ----------------------------------------------------------------------------------- deleted namespaces


def test_a_handle_of_a_deleted_namespace_opens_no_session(cache: SuffixCache) -> None:
    """Regression: the session was opened, and could never be closed with commit: it held its slot, and the
    memory of the deleted namespace, until the process ended."""
    namespace = cache.namespace(NS)
    namespace.add_output(TEXT)
    cache.delete_namespace(NS)
    with pytest.raises(UnknownNamespaceError, match=NS) as caught:
        namespace.open_session([1, 2, 3], [4, 5])
    assert "get it from the cache again" in str(caught.value)
    assert cache.stats().sessions == 0
    assert parts_of(cache).sessions.live == 0
    assert index_of(namespace).index.stats().tokens == 0, "what it had written is in the index"
    session = cache.namespace(NS).open_session([1])
    session.step(TEXT, 0)
    assert session.close() is not None
    cache.check()


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("wait", [False, True])
def test_a_close_that_meets_the_deletion_of_its_namespace_ends_the_session(
    cache: SuffixCache, monkeypatch: pytest.MonkeyPatch, turns: int, wait: bool
) -> None:
    """Regression: the namespace was deleted with force while the session's commit was in flight: its close
    raised UnknownNamespaceError, and so did every later one; the session held its slot."""
    namespace = cache.namespace(NS)
    namespace.add_output(TEXT)
    session = namespace.open_session([1])
    for _ in range(turns):
        session.append_context([7])
        session.step(TEXT, 0)
    discard = NamespaceIndex.discard_live
    ids: list[int | None] = []

    def close_before(index: NamespaceIndex) -> None:
        """The namespace rejects writes already, and its sessions are not discarded yet."""
        ids.append(session.close(wait=wait))
        discard(index)

    monkeypatch.setattr(NamespaceIndex, "discard_live", close_before)
    in_time(lambda: cache.delete_namespace(NS, force=True))
    assert ids == [None]
    assert session.closed
    assert session.close() is None
    assert parts_of(cache).sessions.live == 0
    assert index_of(namespace).consistency_snapshot() is not None
    assert index_of(namespace).live_sessions == 0
    cache.check()


def test_sessions_that_are_opened_beside_deletions_can_all_be_closed(place: Path | None) -> None:
    """Regression: opening read the flag before the deletion set it, and entered the namespace after the
    deletion had discarded its sessions."""
    with SuffixCache(place, limits=Limits(max_sessions=4), background=False) as cache:
        stop = threading.Event()
        failed: list[BaseException] = []

        def generate() -> None:
            try:
                while not stop.is_set():
                    namespace = cache.namespace("a")
                    for _ in range(3):
                        session = namespace.open_session([1], [2, 3])
                        session.step(TEXT, 0)
                        session.close()
            except BaseException as error:
                failed.append(error)

        def patient() -> None:
            while not stop.is_set() and not any(not deleted(error) for error in failed):
                generate()

        threads = [threading.Thread(target=patient) for _ in range(3)]
        for thread in threads:
            thread.start()
        gone = 0
        for _ in range(3000):
            try:
                cache.delete_namespace("a", force=True)
                gone += 1
            except UnknownNamespaceError:
                continue
            if gone >= 30:
                break
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert not [thread for thread in threads if thread.is_alive()]
        assert not [error for error in failed if not deleted(error)]
        parts_of(cache).store.barrier()
        assert cache.stats().sessions == parts_of(cache).sessions.live == 0
        cache.check()


def deleted(error: BaseException) -> bool:
    """The errors of a handle whose namespace is being deleted, or was."""
    return isinstance(error, UnknownNamespaceError) or "is being deleted" in str(error)
