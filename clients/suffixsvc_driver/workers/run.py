"""``suffixsvc draft-worker`` behind its options: load, listen, wait for a signal, stop."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from suffixsvc.lifecycle import announce_ready, require_ready_file, stop_signal, withdraw_ready
from suffixsvc.log_output import queued_log_lines
from suffixsvc_driver.targets.llama_context import ContextSettings
from suffixsvc_driver.workers.engine import DraftEngine
from suffixsvc_driver.workers.server import DraftWorkerServer

__all__ = ["WorkerSettings", "serve_until_signal"]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker does for several drivers.

    Attributes:
        queue: requests that may wait for the model; one more is told "busy" at once.
        busy_after_seconds: how long one may wait for its start; None = two tokens, 5 ms at least.
        batch_width: sessions computed in one batch; 0 = as many as pays by what batches cost here.
        drivers: sessions served at a time.
    """

    queue: int = 8
    busy_after_seconds: float | None = None
    batch_width: int = 0
    drivers: int = 64


def serve_until_signal(
    model: Path,
    address: str,
    context: ContextSettings,
    worker: WorkerSettings | None = None,
    ready_file: Path | None = None,
) -> None:
    """Serve a draft model until SIGTERM or SIGINT. ModelError and ListenError before anything is answered.

    Args:
        address: ``unix:PATH`` or ``HOST:PORT``, checked and freed of stale files by the caller.
        ready_file: written once the worker answers: JSON with "addresses" and "pid". InvalidConfigError
            if it cannot be.
    """
    require_ready_file(ready_file)
    with queued_log_lines(), stop_signal() as wait_for_stop:
        _serve(model, address, context, worker or WorkerSettings(), ready_file, wait_for_stop)


def _serve(
    model: Path,
    address: str,
    context: ContextSettings,
    worker: WorkerSettings,
    ready_file: Path | None,
    wait_for_stop: Callable[[], None],
) -> None:
    engine = DraftEngine(model, context, batch_width=worker.batch_width)
    try:
        server = DraftWorkerServer(
            engine,
            address,
            queue=worker.queue,
            busy_after_seconds=worker.busy_after_seconds,
            drivers=worker.drivers,
        )
        try:
            server.start()
            _log.info(
                "drafting",
                model=model.name,
                seconds_per_token=round(engine.seconds_per_token, 5),
                batch_width=engine.costs.lanes,
                busy_after_seconds=round(server.busy_after_seconds, 5),
            )
            announce_ready(ready_file, addresses=[server.address])
            wait_for_stop()
        finally:
            server.stop()
            withdraw_ready(ready_file)
            if address.startswith("unix:"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(address.removeprefix("unix:"))
    finally:
        engine.close()
