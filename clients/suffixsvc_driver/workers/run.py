"""``suffixsvc draft-worker`` behind its options: load, listen, wait for a signal, stop."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from pathlib import Path

import structlog

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
        ready_file: written once the worker answers: JSON with "addresses" and "pid".
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    engine = DraftEngine(model, settings)
    try:
        server = DraftWorkerServer(engine, address)
        try:
            server.start()
            _log.info("drafting", model=model.name, seconds_per_token=round(engine.seconds_per_token, 5))
            _announce(ready_file, server.address)
            stop.wait()
        finally:
            server.stop()
            if ready_file is not None:
                ready_file.unlink(missing_ok=True)
            if address.startswith("unix:"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(address.removeprefix("unix:"))
    finally:
        engine.close()


def _announce(ready_file: Path | None, address: str) -> None:
    if ready_file is None:
        return
    fresh = ready_file.with_name(ready_file.name + ".new")
    fresh.write_text(json.dumps({"addresses": [address], "pid": os.getpid()}) + "\n", encoding="utf-8")
    fresh.replace(ready_file)  # at once, or a script would read half of it
