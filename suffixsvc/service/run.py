"""Implementation of `suffixsvc serve`: open the store, listen, wait for a signal, drain, close."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from suffixsvc.access.control import OWNER_ONLY, AccessControl
from suffixsvc.access.served_log import prepare_log, require_one_choice
from suffixsvc.access.tokens import TOKENS_FILE, TokenFile
from suffixsvc.config import Limits
from suffixsvc.engine import SuffixCache
from suffixsvc.errors import ListenError
from suffixsvc.runtime.log_output import queued_log_output
from suffixsvc.runtime.server_lifecycle import (
    remove_ready_file,
    report_ready,
    require_writable_ready_file,
    stop_signal,
)
from suffixsvc.service.calls.admission import MAX_FOLLOWERS
from suffixsvc.service.listeners.listen import (
    TcpAddress,
    open_addresses,
    parse_address,
    prepare,
    require_unix_address,
)
from suffixsvc.service.logs import LogFormat, configure_logs
from suffixsvc.service.metrics.definitions import DEFAULT_NAMESPACES
from suffixsvc.service.recovery import recovery_progress
from suffixsvc.service.server import SuffixServer
from suffixsvc.transport.tls import ServerTls

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Checked options of `suffixsvc serve`."""

    #: data folder, created if it does not exist
    data: Path
    #: ``unix:PATH`` and ``HOST:PORT``, any number
    listen: tuple[str, ...]
    #: listen on addresses other machines can reach, without authentication or encryption
    insecure_network: bool = False
    #: permissions of unix sockets; if others than the owner can open them, all callers need an identity
    socket_mode: int = OWNER_ONLY
    #: certificates of TCP addresses; None: they are not encrypted
    tls: ServerTls | None = None
    #: file of the tokens, one of which callers must have, also while it has none; None: TOKENS_FILE in the
    #: data folder, as soon as it has one
    tokens: Path | None = None
    #: policy file; None: no limits of namespaces, and no principals
    policies: Path | None = None
    #: serve a log that was served with access control without it, from now on
    open_to_all: bool = False
    #: written once the service accepts calls: JSON with addresses, pid and instance id
    ready_file: Path | None = None
    log_format: LogFormat = "auto"
    debug: bool = False
    #: limit on concurrent streams; each occupies a thread
    max_streams: int = 512
    #: limit on followers; each occupies a thread; 0: none are allowed
    max_followers: int = MAX_FOLLOWERS
    limits: Limits = field(default_factory=Limits)
    #: migrate a data folder of an earlier release, after a backup
    migrate: bool = False
    #: ``HOST:PORT`` of the metrics for Prometheus; None: they are not served
    metrics: str | None = None
    #: namespaces with metrics of their own, the busiest; the others are summed
    metrics_namespaces: int = DEFAULT_NAMESPACES
    #: fills namespaces before the service accepts calls; returns those that sessions read by default
    preload: Callable[[SuffixCache], Sequence[str]] | None = None


def serve_until_signal(config: ServeConfig) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Before the service listens, both signals have Python's default action.

    Raises:
        ListenError, StoreError: before any call is accepted.
        InvalidConfigError: a setting is invalid, or the ready file cannot be written; the latter after the
            drain if calls were accepted.
    """
    configure_logs(config.log_format, debug=config.debug)
    with queued_log_output():
        _serve_until_signal(config)


def _serve_until_signal(config: ServeConfig) -> None:
    if not config.listen:
        raise ListenError("--listen must be given at least once", expected="unix:PATH or HOST:PORT")
    require_writable_ready_file(config.ready_file)
    addresses = [parse_address(text) for text in config.listen]
    require_unix_address(addresses, config.socket_mode)
    secure, shared = config.insecure_network or config.tls is not None, config.socket_mode != OWNER_ONLY
    for address in addresses:  # before a recovery that may take minutes
        prepare(address, insecure_network=secure, shared=shared)
    metrics = None if config.metrics is None else _prepared(config.metrics, config.insecure_network)
    access = AccessControl(
        TokenFile(config.tokens or config.data / TOKENS_FILE),
        config.policies,
        insecure_network=config.insecure_network,
        required=config.tokens is not None,
        socket_mode=config.socket_mode,
    )
    require_one_choice(access, open_to_all=config.open_to_all)
    with recovery_progress() as progress:
        cache = SuffixCache(
            str(config.data),
            limits=config.limits,
            progress=progress,
            policies=access.policies,
            migrate=config.migrate,
            ids_from_clock=True,
        )
    with cache:
        listened = [*addresses, *([] if metrics is None else [metrics])]
        prepare_log(cache, access, open_addresses(listened), open_to_all=config.open_to_all)
        if config.preload is not None:
            cache.read_by_default(config.preload(cache))
        server = SuffixServer(
            cache,
            addresses,
            limits=config.limits,
            durable=True,
            access=access,
            tls=config.tls,
            insecure_network=config.insecure_network,
            max_streams=config.max_streams,
            max_followers=config.max_followers,
        )
        with _served_metrics(cache, server, config, access, metrics) as about:
            _serve(server, config, about)
    log.info("stopped")


def _prepared(metrics: str, insecure_network: bool) -> TcpAddress:
    from suffixsvc.service.metrics.http_server import (  # noqa: PLC0415 - prometheus_client is slow to load
        metrics_address,
        prepare_metrics,
    )

    address = metrics_address(metrics)
    prepare_metrics(address, insecure_network=insecure_network)
    return address


@contextlib.contextmanager
def _served_metrics(
    cache: SuffixCache,
    server: SuffixServer,
    config: ServeConfig,
    access: AccessControl,
    address: TcpAddress | None,
) -> Iterator[dict[str, str]]:
    """Serve the metrics in the block, also while the service drains; yields fields of the ready file."""
    if address is None:
        yield {}
        return
    from suffixsvc.service.metrics.collector import service_registry  # noqa: PLC0415 - as above
    from suffixsvc.service.metrics.http_server import MetricsServer  # noqa: PLC0415

    registry = service_registry(cache, server.handlers, config.metrics_namespaces, config.tls)
    with MetricsServer(registry, address, access, insecure_network=config.insecure_network) as served:
        yield {"metrics": f"http://{served.address}/metrics"}


def _serve(server: SuffixServer, config: ServeConfig, about: Mapping[str, str]) -> None:
    with stop_signal() as wait_for_stop:
        remove_ready_file(config.ready_file)  # a killed service may have left one
        try:
            bound = server.start()
            log.info("ready", addresses=bound, data=str(config.data), pid=os.getpid(), **about)
            instance_id = server.handlers.instance_id
            report_ready(config.ready_file, addresses=bound, instance_id=instance_id, **about)
            wait_for_stop()
            log.info("draining", sessions=len(server.handlers.sessions.table))
        finally:
            committed = server.drain()
            remove_ready_file(config.ready_file)  # last: it may raise
        log.info("drained", committed_incomplete=committed)
