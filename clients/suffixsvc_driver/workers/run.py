"""``suffixsvc draft-worker`` behind its options: load, listen, wait for a signal, stop."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import structlog

from suffixsvc.lifecycle import announce_ready, require_ready_file, stop_signal, withdraw_ready
from suffixsvc_driver.targets.llama_context import ContextSettings
from suffixsvc_driver.workers.engine import DraftEngine
from suffixsvc_driver.workers.server import DraftWorkerServer

__all__ = ["serve_until_signal"]

_log = structlog.get_logger(__name__)


def serve_until_signal(
    model: Path, address: str, settings: ContextSettings, ready_file: Path | None = None
) -> None:
    """Serve a draft model until SIGTERM or SIGINT. ModelError and ListenError before anything is answered.

    Args:
        address: ``unix:PATH`` or ``HOST:PORT``, checked and freed of stale files by the caller.
        ready_file: written once the worker answers: JSON with "addresses" and "pid". InvalidConfigError
            if it cannot be.
    """
    require_ready_file(ready_file)
    with stop_signal() as wait_for_stop:
        _serve(model, address, settings, ready_file, wait_for_stop)


def _serve(
    model: Path,
    address: str,
    settings: ContextSettings,
    ready_file: Path | None,
    wait_for_stop: Callable[[], None],
) -> None:
    engine = DraftEngine(model, settings)
    try:
        server = DraftWorkerServer(engine, address)
        try:
            server.start()
            _log.info("drafting", model=model.name, seconds_per_token=round(engine.seconds_per_token, 5))
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
