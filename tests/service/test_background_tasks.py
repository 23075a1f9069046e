"""Background tasks of the service: none ends silently or blocks the others, and all are in the statistics.

What happened: expiry of sessions, expiry of outputs and eviction shared a thread that caught only the
project's own errors. While descriptors were exhausted the store raised a bare OSError when its map had to
grow; the thread ended without a log line. From then on idle sessions stayed, outputs outlived their time to
live and nothing was evicted, and neither health nor the statistics showed it.
"""

from __future__ import annotations

import contextlib
import errno
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from suffixsvc import SuffixCache
from suffixsvc.service import server as server_module
from suffixsvc.service.sessions.registry import SessionRegistry
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_client.protocol.replies import BackgroundTask
from support.serving import PATIENCE_S, eventually, serving, socket_dir

TASKS = ("expire-sessions", "expire-outputs", "evict", "durability", "stalled-calls")


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LONGEST_EXPIRY_PERIOD_SECONDS", 0.05)
    monkeypatch.setattr(server_module, "CHECK_INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(server_module, "PROBE_REPORT_SECONDS", 0.05)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[SuffixClient]:
    with (
        SuffixCache(folder / "data") as cache,
        serving(cache, f"unix:{folder}/s") as (_, address),
        SuffixClient(address, ClientConfig(call_timeout_s=30)) as client,
    ):
        yield client


def tasks(client: SuffixClient) -> dict[str, BackgroundTask]:
    return {task.name: task for task in client.stats().background_tasks}


@pytest.mark.parametrize(
    ("owner", "method", "name"),
    [
        (SessionRegistry, "expire", "expire-sessions"),
        (SuffixCache, "expire", "expire-outputs"),
        (SuffixCache, "evict", "evict"),
    ],
)
@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("a defect"), SystemExit()], ids=repr
)
def test_a_task_that_fails_runs_on_and_does_not_affect_others(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: type[Any],
    method: str,
    name: str,
    error: BaseException,
) -> None:
    def broken(*_: object, **__: object) -> int:
        raise error

    with served(folder) as client:
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, broken)
            eventually(lambda: tasks(client)[name].failures_in_a_row >= 3, "it failed and was tried again")
            runs = {other: task.runs for other, task in tasks(client).items()}
            eventually(
                lambda: all(
                    task.runs > runs[other] for other, task in tasks(client).items() if other != name
                ),
                "the others run",
            )
            failed = tasks(client)[name]
            assert failed.alive
            assert type(error).__name__ in failed.last_error
        before = time.time()
        eventually(lambda: tasks(client)[name].failures_in_a_row == 0, "it succeeds again")
        recovered = tasks(client)[name]
        assert recovered.failures >= 3
        assert recovered.last_success >= before - 1.0


def test_the_statistics_show_every_task(folder: Path) -> None:
    with served(folder) as client:
        eventually(lambda: all(task.runs for task in tasks(client).values()), "all have run")
        assert {*TASKS, "maintenance"} <= set(tasks(client))
        for task in tasks(client).values():
            assert (task.alive, task.failures, task.last_error) == (True, 0, "")
            assert abs(task.last_success - time.time()) < PATIENCE_S


def test_a_drain_ends_all_tasks(folder: Path) -> None:
    with SuffixCache() as cache:
        with serving(cache, f"unix:{folder}/s") as (server, _):
            own = list(server.handlers.background_tasks)
            assert own
        assert not any(task.alive for task in own)


#: idle sessions whose outputs need a larger map, while this process cannot open files
_EXHAUSTED = """
import functools, os, resource, sys, time
import numpy as np
from suffixsvc import Limits, SuffixCache, store as stores
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.service.listeners.listen import parse_address
from suffixsvc.service.server import SuffixServer
from suffixsvc.v1 import suffix_cache_pb2 as pb

folder = sys.argv[1]
stores.LmdbStore = functools.partial(stores.LmdbStore, map_bytes_initial=1)
limits = Limits(session_idle_seconds=1.0)
cache = SuffixCache(f"{folder}/d", limits=limits, background=False)
server = SuffixServer(cache, [parse_address(f"unix:{folder}/s")], limits=limits, durable=True)
server.start()
handlers = server.handlers
for k in range(2):
    opened = handlers.open_session(pb.OpenSessionRequest(namespace="a"), OPERATOR_CALLER)
    text = np.tile(np.arange(50, dtype="<i4") + k, 2_000).tobytes()
    step = pb.StepRequest(session_id=opened.session_id, new_token_ids=text, max_draft_tokens=0)
    handlers.step(step, OPERATOR_CALLER)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
highest = max(map(int, os.listdir("/proc/self/fd")))
resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
while True:
    try:
        held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        break

def until(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)

ended = lambda: [task.name for task in handlers.background_tasks if not task.alive]
closes = handlers.sessions.failed_closes
until(lambda: len(closes) or closes.lost or not len(handlers.sessions.table))
assert ended() == [], ended()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
for each in held:
    os.close(each)
until(lambda: len(handlers.sessions.table) == 0)
assert ended() == [], ended()
print("lost", handlers.sessions.failed_closes.lost)
server.drain()
cache.close()
"""


@pytest.mark.crash
def test_exhausted_descriptors_end_no_task(folder: Path) -> None:
    """The reproduction, in a separate process: without free descriptors, idle sessions expire into a store
    that must grow; afterwards the tasks are alive and no session is left."""
    done = subprocess.run(
        [sys.executable, "-c", _EXHAUSTED, str(folder)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
