"""Draft workers in this process for tests of pools, and helpers that wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from suffixsvc.errors import ServiceUnavailableError, VocabularyMismatchError
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.workers.pool.entry import WorkerState
from suffixsvc_driver.workers.pool.pool import WorkerPool
from suffixsvc_driver.workers.pool.pool_session import PoolSession
from suffixsvc_driver.workers.server.engine import DraftEngine
from suffixsvc_driver.workers.server.servicer import DraftWorkerServer, WorkerSettings
from suffixsvc_models.vocabulary import Vocabulary

PATIENT = 300.0
#: checks that the tests can wait for
SOON = {"recheck_seconds": (0.02, 0.05), "check_every_seconds": 0.05}


@contextmanager
def worker(address: str, model: Path, context: int = 512, checks: int = 0) -> Iterator[DraftEngine]:
    """A worker of ours, in this process."""
    settings = ContextSettings(
        context, slots=2, threads=1, max_width=1 + checks, flash_attention=False, kv_type="f32"
    )
    engine = DraftEngine(model, settings)
    server = DraftWorkerServer(engine, address, WorkerSettings(busy_after_seconds=PATIENT))
    server.start()
    try:
        yield engine
    finally:
        server.stop()
        engine.close()


def checked(pool: WorkerPool, vocabulary: Vocabulary) -> None:
    """Check until one that fits has answered; briefly, as a worker that is not there takes all the time."""

    def fits() -> bool:
        try:
            pool.check_vocabulary(vocabulary, 0.1)
        except (ServiceUnavailableError, VocabularyMismatchError):  # a busy machine: one answered too late
            return False
        return True

    until(fits)


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def states(pool: WorkerPool) -> list[WorkerState]:
    return [status.state for status in pool.status()]


def drafting(session: PoolSession, count: int = 3) -> list[int]:
    """Ask until there is a draft."""
    found: list[int] = []

    def asked() -> bool:
        found[:] = session.draft(count, PATIENT).token_ids.tolist()
        return bool(found)

    until(asked)
    return found
