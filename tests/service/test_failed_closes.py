"""Sessions whose close fails: released, counted and bounded, while drafting goes on.

What happened: on a full store, or after one I/O error, every close failed and its session stayed open. Expiry
could not end it either. After max_sessions such closes every open was refused permanently, and health
reported SERVING: the service neither stored nor drafted, and did not report it.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixsvc import SuffixCache, wire
from suffixsvc.access.caller import OPERATOR_CALLER, Caller
from suffixsvc.access.control import AccessControl
from suffixsvc.errors import (
    LimitExceededError,
    StoreError,
    StoreFullError,
    SuffixError,
    UnknownSessionError,
)
from suffixsvc.service.handlers import Handlers
from suffixsvc.service.sessions import failed_closes
from suffixsvc.v1 import suffix_cache_pb2 as pb
from support.failing_disk import MAX_SESSIONS, FailingDisk, opened_cache, small_limits, writes
from support.service_sessions import live_entry, live_ids
from support.serving import eventually, socket_dir

RNG = np.random.default_rng(0)


def tokens(count: int) -> bytes:
    return wire.pack_tokens(RNG.integers(0, 50_000, count).astype(np.int32))


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


def open_session(handlers: Handlers, written: int = 10) -> str:
    opened = handlers.open_session(
        pb.OpenSessionRequest(namespace="a", prompt_token_ids=tokens(5)), OPERATOR_CALLER
    )
    handlers.step(
        pb.StepRequest(session_id=opened.session_id, new_token_ids=tokens(written), max_draft_tokens=4),
        OPERATOR_CALLER,
    )
    return opened.session_id


def close(handlers: Handlers, session_id: str) -> pb.CloseSessionReply:
    return handlers.close_session(pb.CloseSessionRequest(session_id=session_id), OPERATOR_CALLER)


def fail_to_close(handlers: Handlers) -> str:
    session_id = open_session(handlers)
    with pytest.raises(StoreError):
        close(handlers, session_id)
    return session_id


def counts(handlers: Handlers) -> tuple[int, int]:
    stats = handlers.get_stats(pb.GetStatsRequest(), OPERATOR_CALLER)
    return stats.unkept_sessions, stats.lost_sessions


def fill(handlers: Handlers) -> None:
    with contextlib.suppress(StoreFullError):
        while True:
            item = pb.OutputItem(token_ids=tokens(20_000))
            handlers.add_outputs([pb.AddOutputsRequest(namespace="a", outputs=[item])], OPERATOR_CALLER)


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def handlers(folder: Path, disk: FailingDisk) -> Iterator[Handlers]:
    with opened_cache(folder, disk, small_limits()) as cache:
        yield Handlers(cache, small_limits(), durable=True)


# ----------------------------------------------------------------------------------------------- the grace


def test_a_failed_close_can_be_repeated(handlers: Handlers, disk: FailingDisk) -> None:
    disk.failing.set()
    session_id = fail_to_close(handlers)
    with pytest.raises(StoreError):
        close(handlers, session_id)
    assert counts(handlers) == (1, 0)
    disk.failing.clear()
    reply: list[pb.CloseSessionReply] = []

    def stored() -> bool:
        try:
            reply.append(close(handlers, session_id))
        except StoreError:
            return False  # the store is about to find out
        return True

    eventually(stored, "the output is stored")
    assert reply[0].output_id
    assert counts(handlers) == (0, 0)


def test_failed_closes_are_released_for_new_sessions(handlers: Handlers, disk: FailingDisk) -> None:
    """The first that failed is released first; drafting goes on."""
    disk.failing.set()
    closed = [fail_to_close(handlers) for _ in range(5 * MAX_SESSIONS)]
    assert counts(handlers) == (MAX_SESSIONS, 4 * MAX_SESSIONS)
    assert live_ids(handlers) == closed[-MAX_SESSIONS:]
    with pytest.raises(UnknownSessionError, match="could not be stored"):
        close(handlers, closed[0])
    with pytest.raises(UnknownSessionError, match="could not be stored"):
        handlers.step(pb.StepRequest(session_id=closed[0], new_token_ids=tokens(1)), OPERATOR_CALLER)


def test_a_principal_at_its_own_limit_releases_nothing_of_others(
    handlers: Handlers, disk: FailingDisk, folder: Path
) -> None:
    policy = folder / "policies.toml"
    policy.write_text('[principals."alice"]\nmax_sessions = 1\n')
    alice = Caller("alice", "none", AccessControl(policy=policy))
    disk.failing.set()
    kept = fail_to_close(handlers)
    handlers.open_session(pb.OpenSessionRequest(namespace="alice/a"), alice)
    with pytest.raises(LimitExceededError, match="principal 'alice'"):
        handlers.open_session(pb.OpenSessionRequest(namespace="alice/a"), alice)
    assert kept in live_ids(handlers)
    assert counts(handlers) == (1, 0)


def test_sessions_in_use_are_not_released_for_new_ones(handlers: Handlers, disk: FailingDisk) -> None:
    """A session whose close failed and that is stepped again is an ordinary live session."""
    disk.failing.set()
    used = [fail_to_close(handlers) for _ in range(MAX_SESSIONS)]
    for session_id in used:
        handlers.step(
            pb.StepRequest(session_id=session_id, new_token_ids=tokens(1), max_draft_tokens=4),
            OPERATOR_CALLER,
        )
    with pytest.raises(LimitExceededError, match="too many live sessions"):
        open_session(handlers)
    assert live_ids(handlers) == used
    assert handlers.sessions.failed_closes.lost == 0
    with pytest.raises(StoreError):
        close(handlers, used[3])
    assert handlers.sessions.failed_closes.oldest()[0].name.id == used[3]
    open_session(handlers)
    assert used[3] not in live_ids(handlers)


INVALID_OPENS = {
    "labels": {"labels": {"": "x"}},
    "reads": {"reads": ["a//b"]},
    "output": {"output_token_ids": b"123"},
    "cost": {"verify_cost": {"per_token": -1.0}},
    "prompt": {"prompt_token_ids": tokens(2_000_000)},
}


@pytest.mark.parametrize("field", INVALID_OPENS)
def test_a_refused_open_releases_no_failed_close_and_binds_no_tokenizer(
    handlers: Handlers, disk: FailingDisk, field: str
) -> None:
    """It was checked after a failed close had been released for it, and after its tokenizer was bound."""
    disk.failing.set()
    for _ in range(MAX_SESSIONS):
        fail_to_close(handlers)
    disk.failing.clear()
    valid = {"namespace": "a", "tokenizer": "f" * 32, "prompt_token_ids": tokens(3)}
    with pytest.raises(SuffixError):
        handlers.open_session(pb.OpenSessionRequest(**(valid | INVALID_OPENS[field])), OPERATOR_CALLER)
    assert len(handlers.sessions.table) == MAX_SESSIONS
    assert handlers.sessions.failed_closes.lost == 0
    found = handlers.list_namespaces(pb.ListNamespacesRequest(prefix="a"), OPERATOR_CALLER).namespaces
    assert [each.tokenizer for each in found] == [""]


def test_a_refused_upload_binds_no_tokenizer(handlers: Handlers) -> None:
    item = pb.OutputItem(token_ids=tokens(9))
    handlers.add_outputs([pb.AddOutputsRequest(namespace="a", outputs=[item])], OPERATOR_CALLER)
    for refused in (pb.OutputItem(), pb.OutputItem(token_ids=tokens(9), segment_lens=[4])):
        with pytest.raises(SuffixError):
            handlers.add_outputs(
                [pb.AddOutputsRequest(namespace="a", tokenizer="f" * 32, outputs=[item, refused])],
                OPERATOR_CALLER,
            )
    handlers.add_outputs(
        [pb.AddOutputsRequest(namespace="a", tokenizer="e" * 32, outputs=[item])], OPERATOR_CALLER
    )


@pytest.mark.parametrize("bound", ["sessions", "bytes"])
def test_failed_closes_are_bounded_in_number_and_bytes(
    handlers: Handlers, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    if bound == "sessions":
        monkeypatch.setattr(failed_closes, "MAX_FAILED_CLOSES", 3)
    else:  # of five tokens of prompt and ten written
        monkeypatch.setattr(failed_closes, "MAX_FAILED_CLOSE_BYTES", 3 * 15 * failed_closes.BYTES_PER_TOKEN)
    disk.failing.set()
    closed = [fail_to_close(handlers) for _ in range(7)]
    assert counts(handlers) == (3, 4)
    assert live_ids(handlers) == closed[-3:]


def test_a_session_over_the_byte_limit_is_released_at_once(
    handlers: Handlers, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_closes, "MAX_FAILED_CLOSE_BYTES", 10)
    disk.failing.set()
    fail_to_close(handlers)
    assert counts(handlers) == (0, 1)
    assert live_ids(handlers) == []


def test_a_discarded_session_is_not_lost(handlers: Handlers, disk: FailingDisk) -> None:
    disk.failing.set()
    session_id = fail_to_close(handlers)
    handlers.close_session(pb.CloseSessionRequest(session_id=session_id, discard=True), OPERATOR_CALLER)
    assert counts(handlers) == (0, 0)


# ---------------------------------------------------------------------------------------- expiry and drain


def test_expiry_releases_failed_closes(folder: Path, disk: FailingDisk) -> None:
    """A session gets its grace period; after it, the session is committed once more and released."""
    idle = small_limits(session_idle_seconds=0.05)
    with opened_cache(folder, disk, idle) as cache:
        handlers = Handlers(cache, idle, durable=True)
        disk.failing.set()
        failed = fail_to_close(handlers)
        open_session(handlers)
        eventually(
            lambda: not handlers.sessions.expire() and not len(handlers.sessions.table), "all are ended"
        )
        assert counts(handlers) == (0, 2)
        with pytest.raises(UnknownSessionError):
            close(handlers, failed)
        open_session(handlers)


def test_repeated_closes_do_not_renew_the_grace_period(folder: Path, disk: FailingDisk) -> None:
    """What happened: each close counted as a use of the session and renewed its grace period: clients that
    retried held their sessions, and the memory of their text, for as long as the disk was full."""
    idle = small_limits(session_idle_seconds=0.5)
    with opened_cache(folder, disk, idle) as cache:
        handlers = Handlers(cache, idle, durable=True)
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
        assert counts(handlers) == (0, 1)


def test_expiry_commits_after_the_store_recovered(folder: Path, disk: FailingDisk) -> None:
    idle = small_limits(session_idle_seconds=0.05)
    with opened_cache(folder, disk, idle) as cache:
        handlers = Handlers(cache, idle, durable=True)
        disk.failing.set()
        fail_to_close(handlers)
        disk.failing.clear()
        eventually(lambda: writes(cache), "the store has recovered")
        eventually(lambda: handlers.sessions.expire() == 1, "the output is stored")
        assert counts(handlers) == (0, 0)
        assert cache.namespace("a").stats().outputs == 2


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("a defect")])
def test_an_exception_of_one_session_does_not_affect_others(
    folder: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happened: descriptors ran out while the map grew, the store raised a bare OSError, and the thread
    that expired sessions ended."""
    idle = small_limits(session_idle_seconds=0.05)
    with SuffixCache(folder / "d", limits=idle, background=False) as cache:
        handlers = Handlers(cache, idle, durable=True)
        bad, good = open_session(handlers), open_session(handlers)
        session = live_entry(handlers, bad).session
        assert session is not None

        close = session.close

        def broken(commit: bool = True, **options: Any) -> int | None:
            if commit:
                raise error
            return close(commit, **options)

        monkeypatch.setattr(session, "close", broken)
        eventually(lambda: handlers.sessions.expire() == 1, "the other output is stored")
        assert good not in live_ids(handlers)
        eventually(
            lambda: not handlers.sessions.expire() and not len(handlers.sessions.table), "it is released"
        )
        assert counts(handlers) == (0, 1)


def test_a_drain_leaves_no_session(handlers: Handlers, disk: FailingDisk) -> None:
    disk.failing.set()
    fail_to_close(handlers)
    open_session(handlers)
    assert handlers.sessions.drain() == 0
    assert len(handlers.sessions.table) == 0
    assert counts(handlers) == (0, 2)


def test_closes_fail_alike_on_a_full_store(folder: Path) -> None:
    small = small_limits(max_store_bytes=2 << 20)
    with SuffixCache(folder / "d", limits=small, background=False) as cache:
        handlers = Handlers(cache, small, durable=True)
        fill(handlers)
        drafted = 0
        for _ in range(3 * MAX_SESSIONS):
            session_id = open_session(handlers, 20_000)
            drafted += 1
            with pytest.raises(StoreFullError):
                close(handlers, session_id)
        assert drafted == 3 * MAX_SESSIONS
        assert counts(handlers) == (MAX_SESSIONS, 2 * MAX_SESSIONS)


def test_concurrent_closes_on_a_failing_store_are_counted(handlers: Handlers, disk: FailingDisk) -> None:
    """Eight threads. Each session is stored, lost or still live."""
    opened = refused = stored = 0
    lock = threading.Lock()
    stop = time.monotonic() + 3.0

    def work() -> None:
        nonlocal opened, refused, stored
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
                    stored += 1
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
    assert opened == stored + handlers.sessions.failed_closes.lost + len(handlers.sessions.table)
    assert len(handlers.sessions.failed_closes) <= len(handlers.sessions.table)
