"""`suffixsvc serve` behind its options: open the store, listen, wait for a signal, drain, close."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from suffixsvc import __version__
from suffixsvc.config import Limits
from suffixsvc.engine import SuffixCache
from suffixsvc.errors import ListenError
from suffixsvc.service.listen import parse_address, prepare
from suffixsvc.service.logs import LogFormat, configure_logs
from suffixsvc.service.recovery import recovery_progress
from suffixsvc.service.server import SuffixServer

__all__ = ["ServeConfig", "serve_until_signal"]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """What `suffixsvc serve` was told."""

    #: data folder, created when it is not there
    data: Path
    #: ``unix:PATH`` and ``HOST:PORT``, any number
    listen: tuple[str, ...]
    #: listen on addresses other machines can reach, without authentication or encryption
    insecure_network: bool = False
    #: written once the service answers: JSON with addresses, pid and instance id
    ready_file: Path | None = None
    log_format: LogFormat = "auto"
    debug: bool = False
    #: streams at a time; each takes a thread
    max_streams: int = 512
    limits: Limits = field(default_factory=Limits)


def serve_until_signal(config: ServeConfig) -> None:
    """Serve until SIGTERM or SIGINT, then drain. ListenError, StoreError before anything was answered."""
    configure_logs(config.log_format, debug=config.debug)
    if not config.listen:
        raise ListenError("no address to listen on", expected="--listen unix:PATH or --listen HOST:PORT")
    addresses = [parse_address(text) for text in config.listen]
    for address in addresses:  # before a recovery that may take minutes
        prepare(address, insecure_network=config.insecure_network)
    with recovery_progress() as progress:
        cache = SuffixCache(str(config.data), limits=config.limits, progress=progress)
    try:
        server = SuffixServer(
            cache,
            addresses,
            limits=config.limits,
            durable=True,
            version=__version__,
            insecure_network=config.insecure_network,
            max_streams=config.max_streams,
        )
        _serve(server, config)
    finally:
        cache.close()
    log.info("stopped")


def _serve(server: SuffixServer, config: ServeConfig) -> None:
    with _stop_signal() as wait_for_stop:
        _withdraw(config)  # what a killed service left behind would be taken for ours
        try:
            bound = server.start()
            _announce(config, server, bound)
            wait_for_stop()
            log.info("draining", sessions=len(server.handlers.sessions))
        finally:
            committed = server.drain()
            _withdraw(config)
        log.info("drained", committed_incomplete=committed)


@contextmanager
def _stop_signal() -> Iterator[Callable[[], None]]:
    """A function that blocks until SIGTERM or SIGINT came. A second one meets the default action: it kills.

    Signals are told through a pipe: one that arrives just before the main thread goes to sleep on a lock,
    as in ``threading.Event.wait``, or on another thread, would never wake it.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    stopping = (signal.SIGTERM, signal.SIGINT)
    wakeup_before = signal.set_wakeup_fd(writer)
    before = {number: signal.signal(number, _next_one_kills) for number in stopping}

    def wait() -> None:
        while os.read(reader, 1)[0] not in stopping:
            pass

    try:
        yield wait
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup_before)
        os.close(reader)
        os.close(writer)


def _next_one_kills(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)


def _announce(config: ServeConfig, server: SuffixServer, bound: list[str]) -> None:
    log.info("ready", addresses=bound, data=str(config.data), pid=os.getpid())
    if config.ready_file is not None:
        told = {"addresses": bound, "pid": os.getpid(), "instance_id": server.handlers.instance_id}
        draft = config.ready_file.with_name(config.ready_file.name + ".new")
        draft.write_text(json.dumps(told) + "\n")
        draft.replace(config.ready_file)  # at once, or a script would read half of it


def _withdraw(config: ServeConfig) -> None:
    if config.ready_file is not None:
        config.ready_file.unlink(missing_ok=True)
