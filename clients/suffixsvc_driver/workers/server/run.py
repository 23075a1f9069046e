"""The process of ``suffixsvc draft-worker``: load, listen, wait for a signal, stop."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import structlog

from suffixsvc.runtime.log_output import queued_log_output
from suffixsvc.runtime.server_lifecycle import (
    remove_ready_file,
    require_writable_ready_file,
    stop_signal,
    write_ready_file,
)
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.workers.server.engine import DraftEngine
from suffixsvc_driver.workers.server.servicer import DraftWorkerServer

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Limits of a worker that serves several clients.

    Attributes:
        queue: requests that may wait for the model; further ones are refused as busy at once.
        busy_after_seconds: how long a request may wait for its start; None = the time of two tokens, at
            least 5 ms.
        batch_width: sessions computed in one batch; 0 = the width that pays by the measured costs.
        drivers: concurrent sessions.
    """

    queue: int = 8
    busy_after_seconds: float | None = None
    batch_width: int = 0
    drivers: int = 64


def serve_until_signal(
    model: Path,
    address: str,
    context: ContextSettings,
    worker: WorkerSettings,
    ready_file: Path | None,
) -> None:
    """Serve a draft model until SIGTERM or SIGINT.

    Args:
        address: ``unix:PATH`` or ``HOST:PORT``; the caller has checked it and removed stale socket files.
        ready_file: written once the worker serves: JSON with "addresses" and "pid".

    Raises:
        ModelError: the model cannot be loaded.
        ListenError: the address cannot be used.
        InvalidConfigError: the ready file cannot be written.
    """
    require_writable_ready_file(ready_file)
    with queued_log_output(), stop_signal() as wait_for_stop, ExitStack() as stack:
        engine = DraftEngine(model, context, batch_width=worker.batch_width)
        stack.callback(engine.close)
        server = DraftWorkerServer(
            engine,
            address,
            queue=worker.queue,
            busy_after_seconds=worker.busy_after_seconds,
            drivers=worker.drivers,
        )
        if address.startswith("unix:"):
            stack.callback(Path(address.removeprefix("unix:")).unlink, missing_ok=True)
        stack.callback(remove_ready_file, ready_file)
        stack.callback(server.stop)
        server.start()
        _log.info(
            "drafting",
            model=model.name,
            seconds_per_token=round(engine.seconds_per_token, 5),
            batch_width=engine.costs.lanes,
            busy_after_seconds=round(server.scheduler.busy_after_seconds, 5),
        )
        write_ready_file(ready_file, addresses=[server.address])
        wait_for_stop()
