"""Followers and services as processes that are stopped, fork, or end."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from follower_program import CONFIG, PATH, TEXT

from suffixsvc import SuffixCache
from suffixsvc.service.listeners.listen import parse_address
from suffixsvc.service.server import SuffixServer
from suffixsvc_client import SuffixClient
from suffixsvc_follower import Follower, FollowState
from suffixsvc_follower.stream import connection
from support.following import held, logged
from support.serving import PATIENCE_S, ServeProcess, eventually, socket_dir

pytestmark = pytest.mark.crash

HERE = Path(__file__).parent
LEASE_S = 1.5


@contextmanager
def program(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program of this folder, which is killed in the end, or if it hangs."""
    command = [sys.executable, str(HERE / name), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "GRPC_ENABLE_FORK_SUPPORT": "1"}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    watchdog = threading.Timer(2 * PATIENCE_S, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGSTOP)
    ServeProcess._wait_until_stopped(process.pid)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def address(cache: SuffixCache) -> Iterator[str]:
    """A service over the cache with a short lease."""
    with socket_dir() as folder:
        server = SuffixServer(cache, [parse_address(f"unix:{folder / 's.sock'}")], lease_seconds=LEASE_S)
        [bound] = server.start()
        yield bound
        server.drain()


def test_a_follower_that_was_stopped_drafts_nothing_that_was_forgotten(
    cache: SuffixCache, address: str
) -> None:
    """Not even with the first step after its stop, whichever of its threads runs first."""
    output_id = cache.namespace(PATH).add_output(TEXT)
    with program("follower_program.py", "steps", address) as process, SuffixClient(address) as client:
        assert line(process) == "first 3"
        stop(process)
        receipt = client.namespace(PATH).delete(output_ids=[output_id]).receipt
        assert len(receipt.silent) == 1
        assert not receipt.acknowledged
        time.sleep(LEASE_S + 0.5)
        process.send_signal(signal.SIGCONT)
        assert line(process) == "resumed 0"


def test_a_service_that_is_stopped_ends_the_lease(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(connection, "_LONGEST_PAUSE", 0.1)
    caplog.set_level(logging.WARNING, "suffixsvc_follower")
    with socket_dir() as folder:
        bound = f"unix:{folder / 's.sock'}"
        with program("follower_service_child.py", bound, str(tmp_path / "d"), str(LEASE_S)) as service:
            assert line(service) == "ready"
            with SuffixClient(bound) as client:
                client.namespace(PATH).add_output(TEXT)
            with Follower(bound, CONFIG, [(PATH, "")]) as follower:
                assert follower.wait(PATH, 60)
                session = follower.namespace(PATH).open_session([1], private=True)
                assert len(session.step(TEXT[:3], max_draft_tokens=3)) == 3
                stop(service)
                eventually(lambda: follower.state is FollowState.LAPSED, "the lease is over")
                assert held(follower, PATH) == set()
                assert len(session.draft_after(TEXT[:3], max_draft_tokens=3)) == 0
                # its own text
                session.step([90, 91, 92, 93, 94, 95, 90, 91])
                assert session.step([92], max_draft_tokens=3).token_ids.tolist() == [93, 94, 95]
                time.sleep(1.0)  # several looks at the lease
                assert sum("longer than its lease" in each.message for each in caplog.records) == 1
                service.send_signal(signal.SIGCONT)
                eventually(lambda: len(held(follower, PATH)) == 1, "it follows again")
                assert follower.state is FollowState.FOLLOWING
                session.close()


def test_a_forked_child_follows_and_its_parents_sessions_raise(cache: SuffixCache, address: str) -> None:
    cache.namespace(PATH).add_output(TEXT)
    with program("follower_program.py", "forks", address) as process:
        assert line(process) == "done"
        assert process.wait(PATIENCE_S) == 0
    eventually(lambda: cache.stats().sessions == 0, "no session is left")
    assert len(logged(cache, PATH)) == 4


def test_forks_beside_threads_that_write_hang_nothing(cache: SuffixCache, address: str) -> None:
    """The children follow, and the parent loses nothing: gRPC would hang about every tenth child."""
    cache.namespace(PATH).add_output(TEXT)
    with program("follower_program.py", "forks_while_writing", address) as process:
        outputs = int(line(process))
        assert process.wait(PATIENCE_S) == 0
    assert len(logged(cache, PATH)) == 1 + outputs


def test_a_process_ends_while_its_follower_is_open_and_the_service_stopped(tmp_path: Path) -> None:
    with socket_dir() as folder:
        bound = f"unix:{folder / 's.sock'}"
        with program("follower_service_child.py", bound, str(tmp_path / "d"), "15") as service:
            assert line(service) == "ready"
            with program("follower_program.py", "ends", bound) as process:
                assert line(process) == "open"
                stop(service)
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
                assert line(process) == "done"
                assert process.wait(PATIENCE_S) == 0
