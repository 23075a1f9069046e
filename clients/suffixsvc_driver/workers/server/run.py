"""The process of ``suffixsvc draft-worker``: load, listen, wait for a signal, stop."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import structlog

from suffixsvc.runtime.log_output import queued_log_output
from suffixsvc.runtime.server_lifecycle import (
    remove_ready_file,
    report_ready,
    require_writable_ready_file,
    stop_signal,
)
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.llama.offload import Offload
from suffixsvc_driver.targets.llama.passing_thread import in_passing_thread
from suffixsvc_driver.workers.server.engine import DraftEngine
from suffixsvc_driver.workers.server.servicer import DraftWorkerServer, WorkerEdge, WorkerSettings

_log = structlog.get_logger(__name__)


def serve_until_signal(
    model: Path,
    address: str,
    context: ContextSettings,
    worker: WorkerSettings,
    ready_file: Path | None,
    offload: Offload,
    edge: WorkerEdge,
) -> None:
    """Serve a draft model until SIGTERM or SIGINT.

    Args:
        address: ``unix:PATH`` or ``HOST:PORT``; the caller has checked it and removed stale socket files.
        ready_file: written once the worker serves: JSON with "addresses" and "pid".
        offload: the part of the model that is on GPUs.
        edge: who may use the worker.

    Raises:
        ModelError: the model cannot be loaded.
        ListenError: the address cannot be used.
        InvalidConfigError: the ready file cannot be written, or llama.cpp does not have the GPUs.
    """
    require_writable_ready_file(ready_file)
    with queued_log_output(), stop_signal() as wait_for_stop, ExitStack() as stack:
        load = partial(DraftEngine, model, context, batch_width=worker.batch_width, offload=offload)
        engine = in_passing_thread(load)  # the scheduler's thread drafts
        stack.callback(engine.close)
        server = DraftWorkerServer(engine, address, worker, edge)
        if address.startswith("unix:"):
            stack.callback(Path(address.removeprefix("unix:")).unlink, missing_ok=True)
        stack.callback(remove_ready_file, ready_file)
        stack.callback(server.stop)
        server.start()
        _log.info(
            "drafting",
            model=model.name,
            device=engine.model.device,
            seconds_per_token=round(engine.seconds_per_token, 5),
            batch_width=engine.costs.lanes,
            busy_after_seconds=round(server.scheduler.busy_after_seconds, 5),
        )
        report_ready(ready_file, addresses=[server.address])
        wait_for_stop()
