"""Sessions that the store cannot keep: released, counted and bounded, while drafting goes on.

What happened: on a full store, or after one I/O error, every close failed and its session stayed open. Expiry
could not end it either. After max_sessions such closes every open was refused, for good, and health said
SERVING: the service neither kept nor drafted, and did not say so.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from suffixsvc_client import ClientConfig, SuffixClient
from support.failing_disk import FailingDisk
from support.serving import PATIENCE_S, eventually, serving, socket_dir

from suffixsvc import Limits, SuffixCache, wire
from suffixsvc.errors import (
    LimitExceededError,
    StoreError,
    StoreFullError,
    SuffixError,
    UnknownSessionError,
)
from suffixsvc.service import unkept as unkept_module
from suffixsvc.service.handlers import Handlers
from suffixsvc.service.server import DURABILITY_NAME, SERVICE_NAME
from suffixsvc.v1 import suffix_cache_pb2 as pb

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
RNG = np.random.default_rng(0)
PLACES = 8


def tokens(count: int) -> bytes:
    return wire.pack_tokens(RNG.integers(0, 50_000, count).astype(np.int32))


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


def limits(**changed: Any) -> Limits:
    return Limits(**{"max_sessions": PLACES, "session_idle_seconds": 3600.0, **changed})


def open_session(handlers: Handlers, written: int = 10) -> str:
    opened = handlers.open_session(pb.OpenSessionRequest(namespace="a", prompt_token_ids=tokens(5)))
    handlers.step(
        pb.StepRequest(session_id=opened.session_id, new_token_ids=tokens(written), max_draft_tokens=4)
    )
    return opened.session_id


def close(handlers: Handlers, session_id: str) -> pb.CloseSessionReply:
    return handlers.close_session(pb.CloseSessionRequest(session_id=session_id))


def fail_to_close(handlers: Handlers) -> str:
    session_id = open_session(handlers)
    with pytest.raises(StoreError):
        close(handlers, session_id)
    return session_id


def unkept(handlers: Handlers) -> tuple[int, int]:
    stats = handlers.get_stats(pb.GetStatsRequest())
    return stats.unkept_sessions, stats.lost_sessions


def fill(handlers: Handlers) -> None:
    with contextlib.suppress(StoreFullError):
        while True:
            item = pb.OutputItem(token_ids=tokens(20_000))
            handlers.add_outputs([pb.AddOutputsRequest(namespace="a", outputs=[item])])


@contextlib.contextmanager
def opened_cache(folder: Path, disk: FailingDisk, chosen: Limits) -> Iterator[SuffixCache]:
    """With the namespaces "a" and "b", as making one is a write, too; it can be written to at the end."""
    with SuffixCache(folder / "d", limits=chosen, crash_hook=disk, background=False) as cache:
        for path in ("a", "b"):
            cache.namespace(path).add_output([1])
        yield cache
        disk.failing.clear()
        eventually(lambda: writes(cache), "the store has recovered")


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def handlers(folder: Path, disk: FailingDisk) -> Iterator[Handlers]:
    with opened_cache(folder, disk, limits()) as cache:
        yield Handlers(cache, limits(), durable=True, version="")


# ----------------------------------------------------------------------------------------------- the grace


def test_a_failed_close_can_be_repeated(handlers: Handlers, disk: FailingDisk) -> None:
    disk.failing.set()
    session_id = fail_to_close(handlers)
    with pytest.raises(StoreError):
        close(handlers, session_id)
    assert unkept(handlers) == (1, 0)
    disk.failing.clear()
    reply: list[pb.CloseSessionReply] = []

    def kept() -> bool:
        try:
            reply.append(close(handlers, session_id))
        except StoreError:
            return False  # the store is about to find out
        return True

    eventually(kept, "the session is kept")
    assert reply[0].output_id
    assert unkept(handlers) == (0, 0)


def test_sessions_that_cannot_be_kept_make_room_for_new_ones(handlers: Handlers, disk: FailingDisk) -> None:
    """The first that failed goes first; drafting goes on for ever."""
    disk.failing.set()
    closed = [fail_to_close(handlers) for _ in range(5 * PLACES)]
    assert unkept(handlers) == (PLACES, 4 * PLACES)
    assert handlers.sessions.ids() == closed[-PLACES:]
    with pytest.raises(UnknownSessionError, match="could not be stored"):
        close(handlers, closed[0])
    with pytest.raises(UnknownSessionError, match="could not be stored"):
        handlers.step(pb.StepRequest(session_id=closed[0], new_token_ids=tokens(1)))


def test_sessions_in_use_are_not_released_for_new_ones(handlers: Handlers, disk: FailingDisk) -> None:
    """One whose close failed and that is stepped again is alive like any other."""
    disk.failing.set()
    used = [fail_to_close(handlers) for _ in range(PLACES)]
    for session_id in used:
        handlers.step(pb.StepRequest(session_id=session_id, new_token_ids=tokens(1), max_draft_tokens=4))
    with pytest.raises(LimitExceededError, match="too many live sessions"):
        open_session(handlers)
    assert handlers.sessions.ids() == used
    assert handlers.sessions.unkept.lost == 0
    with pytest.raises(StoreError):
        close(handlers, used[3])
    assert handlers.sessions.unkept.oldest()[0].session_id == used[3]
    open_session(handlers)
    assert used[3] not in handlers.sessions.ids()


@pytest.mark.parametrize("bound", ["sessions", "bytes"])
def test_their_number_and_their_bytes_are_bounded(
    handlers: Handlers, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    if bound == "sessions":
        monkeypatch.setattr(unkept_module, "MAX_UNKEPT_SESSIONS", 3)
    else:  # of five tokens of prompt and ten written
        monkeypatch.setattr(unkept_module, "MAX_UNKEPT_BYTES", 3 * 15 * unkept_module.BYTES_A_TOKEN)
    disk.failing.set()
    closed = [fail_to_close(handlers) for _ in range(7)]
    assert unkept(handlers) == (3, 4)
    assert handlers.sessions.ids() == closed[-3:]


def test_a_session_larger_than_all_may_be_is_released_at_once(
    handlers: Handlers, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unkept_module, "MAX_UNKEPT_BYTES", 10)
    disk.failing.set()
    fail_to_close(handlers)
    assert unkept(handlers) == (0, 1)
    assert handlers.sessions.ids() == []


def test_a_discarded_session_is_not_lost(handlers: Handlers, disk: FailingDisk) -> None:
    disk.failing.set()
    session_id = fail_to_close(handlers)
    handlers.close_session(pb.CloseSessionRequest(session_id=session_id, discard=True))
    assert unkept(handlers) == (0, 0)


# ---------------------------------------------------------------------------------------- expiry and drain


def test_expiry_ends_what_cannot_be_kept(folder: Path, disk: FailingDisk) -> None:
    """A session that is idle gets its grace; one whose grace is over is tried once more and released."""
    idle = limits(session_idle_seconds=0.05)
    with opened_cache(folder, disk, idle) as cache:
        handlers = Handlers(cache, idle, durable=True, version="")
        disk.failing.set()
        failed = fail_to_close(handlers)
        open_session(handlers)
        eventually(lambda: handlers.sessions.expire() == 0 and len(handlers.sessions) == 0, "all are ended")
        assert unkept(handlers) == (0, 2)
        with pytest.raises(UnknownSessionError):
            close(handlers, failed)
        open_session(handlers)


def test_a_client_that_closes_again_and_again_does_not_renew_the_grace(
    folder: Path, disk: FailingDisk
) -> None:
    """What happened: each close counted as a use of the session, so that its grace began anew: clients that
    retried kept their sessions, and the memory of their text, for as long as the disk was full."""
    idle = limits(session_idle_seconds=0.5)
    with opened_cache(folder, disk, idle) as cache:
        handlers = Handlers(cache, idle, durable=True, version="")
        disk.failing.set()
        session_id = fail_to_close(handlers)

        def released() -> bool:
            try:
                close(handlers, session_id)
            except StoreError:
                handlers.sessions.expire()
                return False
            except UnknownSessionError:
                return True
            raise AssertionError("the disk fails")

        eventually(released, "the session is released")
        assert unkept(handlers) == (0, 1)


def test_expiry_keeps_what_can_be_kept_again(folder: Path, disk: FailingDisk) -> None:
    idle = limits(session_idle_seconds=0.05)
    with opened_cache(folder, disk, idle) as cache:
        handlers = Handlers(cache, idle, durable=True, version="")
        disk.failing.set()
        fail_to_close(handlers)
        disk.failing.clear()
        eventually(lambda: writes(cache), "the store has recovered")
        eventually(lambda: handlers.sessions.expire() == 1, "the session is kept")
        assert unkept(handlers) == (0, 0)
        assert cache.namespace("a").stats().outputs == 2


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("a defect")])
def test_no_exception_of_one_session_keeps_the_others_from_ending(
    folder: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happened: descriptors ran out while the map grew, the store raised a bare OSError, and the thread
    that expired sessions was gone for good."""
    idle = limits(session_idle_seconds=0.05)
    with SuffixCache(folder / "d", limits=idle, background=False) as cache:
        handlers = Handlers(cache, idle, durable=True, version="")
        bad, good = open_session(handlers), open_session(handlers)
        session = handlers.sessions._entries[bad].session
        assert session is not None

        def broken(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(session._commitment, "begin", broken)
        eventually(lambda: handlers.sessions.expire() == 1, "the other one is kept")
        assert good not in handlers.sessions.ids()
        eventually(lambda: handlers.sessions.expire() == 0 and len(handlers.sessions) == 0, "it is released")
        assert unkept(handlers) == (0, 1)


def test_a_drain_leaves_no_session_behind(handlers: Handlers, disk: FailingDisk) -> None:
    disk.failing.set()
    fail_to_close(handlers)
    open_session(handlers)
    assert handlers.sessions.drain() == 0
    assert len(handlers.sessions) == 0
    assert unkept(handlers) == (0, 2)


def test_a_full_store_is_the_same(folder: Path) -> None:
    small = limits(max_store_bytes=2 << 20)
    with SuffixCache(folder / "d", limits=small, background=False) as cache:
        handlers = Handlers(cache, small, durable=True, version="")
        fill(handlers)
        drafted = 0
        for _ in range(3 * PLACES):
            session_id = open_session(handlers, 20_000)
            drafted += 1
            with pytest.raises(StoreFullError):
                close(handlers, session_id)
        assert drafted == 3 * PLACES
        assert unkept(handlers) == (PLACES, 2 * PLACES)


def test_closes_and_opens_at_once_on_a_failing_store_lose_no_count(
    handlers: Handlers, disk: FailingDisk
) -> None:
    """Eight threads. Each session ends as kept, as lost, or is still there."""
    opened = refused = kept = 0
    lock = threading.Lock()
    stop = time.monotonic() + 3.0

    def work() -> None:
        nonlocal opened, refused, kept
        while time.monotonic() < stop:
            try:
                session_id = open_session(handlers)
            except LimitExceededError:
                with lock:
                    refused += 1
                continue
            except UnknownSessionError:  # opened, and released for another one before its first step
                with lock:
                    opened += 1
                continue
            with lock:
                opened += 1
            try:
                close(handlers, session_id)
                with lock:
                    kept += 1
            except SuffixError:
                pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        disk.failing.set()
        time.sleep(0.05)
        disk.failing.clear()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert opened == kept + handlers.sessions.unkept.lost + len(handlers.sessions)
    assert len(handlers.sessions.unkept) <= len(handlers.sessions)


# --------------------------------------------------------------------------------------- health, statistics


def test_health_tells_drafting_and_durability_apart(folder: Path, disk: FailingDisk) -> None:
    with (
        opened_cache(folder, disk, limits()) as cache,
        serving(cache, f"unix:{folder}/s", limits()) as (_, address),
        grpc.insecure_channel(address) as channel,
        SuffixClient(address, ClientConfig(step_timeout_s=300, open_timeout_s=300)) as client,
    ):
        stub = health_pb2_grpc.HealthStub(channel)

        def status(name: str) -> int:
            request = health_pb2.HealthCheckRequest(service=name)
            return int(stub.Check(request, timeout=PATIENCE_S).status)

        assert status(DURABILITY_NAME) == SERVING
        assert client.server_info().store_failure is None
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=DURABILITY_NAME), timeout=PATIENCE_S)
        assert next(watch).status == SERVING
        disk.failing.set()
        for _ in range(2 * PLACES):  # twice as many as there are places
            session = client.namespace("a").open_session([1, 2, 3])
            session.step([4, 5, 6])
            with pytest.raises(StoreError):
                session.close()
        assert client.counts.steps == 2 * PLACES, "drafting went on"
        assert next(watch).status == NOT_SERVING
        assert status(DURABILITY_NAME) == NOT_SERVING
        assert status("") == status(SERVICE_NAME) == SERVING
        assert isinstance(client.server_info().store_failure, StoreError)
        stats = client.stats()
        assert stats.store_failing
        assert (stats.unkept_sessions, stats.lost_sessions) == (PLACES, PLACES)
        disk.failing.clear()
        assert next(watch).status == SERVING
        assert client.server_info().store_failure is None
        assert not client.stats().store_failing


def test_a_client_keeps_its_text_and_can_close_after_the_store_recovered(
    folder: Path, disk: FailingDisk
) -> None:
    """Also where the service has released the session meanwhile: the client opens it again with its text."""
    with (
        opened_cache(folder, disk, limits()) as cache,
        serving(cache, f"unix:{folder}/s", limits()) as (_, address),
        SuffixClient(address, ClientConfig(step_timeout_s=300, open_timeout_s=300)) as client,
    ):
        disk.failing.set()
        sessions = [client.namespace("a").open_session([1, 2, n]) for n in range(PLACES)]
        for n, session in enumerate(sessions):
            session.step([n, 5, 6])
            with pytest.raises(StoreError):
                session.close()
        pushing = [client.namespace("b").open_session([n]) for n in range(PLACES)]
        assert client.stats().lost_sessions == PLACES, "their places were needed"
        for session in pushing:
            session.close(commit=False)
        disk.failing.clear()
        for session in sessions:
            eventually(lambda session=session: closes(session.close), "the session is kept")
        assert client.namespace("a").stats().outputs == PLACES + 1


def writes(cache: SuffixCache) -> bool:
    with contextlib.suppress(StoreError):
        cache.namespace("b").add_output([1])
    return cache.durability() is None


def closes(close: Callable[[], object]) -> bool:
    try:
        return close() is not None
    except StoreError:
        return False
