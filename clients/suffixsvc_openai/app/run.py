"""The process of ``suffixsvc openai``: load, listen, wait for a signal, drain, stop.

SIGTERM ──> new calls get 503 ──> running ones end, or are cancelled after the grace period ──> stop
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import uvicorn

from suffixsvc.access.control import AccessControl
from suffixsvc.access.refreshing import refreshing
from suffixsvc.access.served_log import prepare_log, remember_access
from suffixsvc.errors import ListenError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.runtime.log_output import queued_log_output
from suffixsvc.runtime.server_lifecycle import (
    remove_ready_file,
    report_ready,
    require_writable_ready_file,
    stop_signal,
)
from suffixsvc.transport.loopback import host_and_port, require_loopback, resolve
from suffixsvc.transport.tls import ServerTls
from suffixsvc_openai.app.application import create_application
from suffixsvc_openai.app.http import streaming
from suffixsvc_openai.app.http.authentication import Authentication
from suffixsvc_openai.app.http.connections import ACCEPTED_AT_ONCE, BACKLOG, TimedConnection, end_stalled
from suffixsvc_openai.app.http.listener import Listener
from suffixsvc_openai.app.metrics import Metrics
from suffixsvc_openai.app.service import Service
from suffixsvc_openai.chat.chat_model import ChatModel
from suffixsvc_openai.engine.engine import Engine, EngineSettings
from suffixsvc_openai.live.feed import Feed

_log = structlog.get_logger(__name__)

#: seconds between two checks of what still runs
_POLL: Final = 0.05
#: seconds between two checks that the HTTP server still runs
_WATCH_SECONDS: Final = 1.0
#: seconds for responses to be sent after their answers have ended
_FLUSH_SECONDS: Final = 5.0
#: seconds after which an idle connection is closed; far longer than clients keep one (httpx: 5), or one of
#: their requests would meet its end
_KEEP_ALIVE_SECONDS: Final = 75


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the process serves.

    Attributes:
        engine: what to load.
        model: id of the model in the API.
        host, port: where to listen; port 0 takes a free one.
        access: tokens and policy; without any, only loopback addresses are allowed.
        tls: certificates; None: connections are not encrypted, and only loopback addresses are allowed.
        open_to_all: serve stored outputs that were served with access control without it, from now on.
        grace_seconds: time for running calls to end after a signal.
        ready_file: written once the server answers: JSON with "addresses" and "pid".
    """

    engine: EngineSettings
    model: str
    host: str = "127.0.0.1"
    port: int = 8000
    access: AccessControl = field(default_factory=AccessControl)
    grace_seconds: float = 30.0
    ready_file: Path | None = None
    tls: ServerTls | None = None
    open_to_all: bool = False


class OpenAIServer(ClosedOnExit):
    """A server in threads of this process. Start it, then drain it; close it at the end.

    Args:
        settings: what to serve.

    Attributes:
        service: its parts.
        address: HOST:PORT, after :meth:`start`.

    Raises:
        ListenError: the address cannot be used, or the stored outputs must be served with access control.
            What :class:`Engine` raises.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        with ExitStack() as opened:
            self._socket = opened.enter_context(_listen(settings))
            metrics = Metrics(settings.model)
            feed = Feed()
            authentication = Authentication(settings.access)
            engine = opened.enter_context(
                Engine(settings.engine, metrics.ended, feed, authentication.principals)
            )
            if engine.log is not None:
                address = host_and_port(settings.host, settings.port)
                prepare_log(engine.log, settings.access, [address], open_to_all=settings.open_to_all)
            chat = opened.enter_context(ChatModel(engine))
            metrics.watch(engine)
            self.service = Service(engine, chat, authentication, metrics, settings.model, feed)
            self._access = refreshing(settings.access, self._keep_access)
            opened.callback(self._access.stop)
            config = uvicorn.Config(
                create_application(self.service),
                log_config=None,
                access_log=False,
                lifespan="off",
                loop="asyncio",  # others do not accept with the listener's method
                http=partial(TimedConnection, listener=self._socket),  # type: ignore[arg-type] # called only
                ws="none",
                server_header=False,
                timeout_graceful_shutdown=int(_FLUSH_SECONDS),
                backlog=ACCEPTED_AT_ONCE,  # asyncio accepts as many in a row
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            )
            config.load()
            config.ssl = None if settings.tls is None else settings.tls.ssl_context()
            self._uvicorn = uvicorn.Server(config)
            self._thread = threading.Thread(target=self._run, name="suffixsvc-http", daemon=True)
            self._opened = opened.pop_all()
        host, port = self._socket.getsockname()[:2]
        self.address = host_and_port(host, port)

    def _keep_access(self) -> None:
        """End the live pages of revoked tokens; mark the log once there is a token."""
        self.service.live.end_revoked()
        log = self.service.engine.log
        if log is not None:
            remember_access(log, self._settings.access)

    def _run(self) -> None:
        self._uvicorn.run(sockets=[self._socket])

    def start(self) -> None:
        """Answer requests from now on."""
        self._access.start()
        self._thread.start()
        while not self._uvicorn.started:
            self.require_http()
            time.sleep(_POLL / 10)
        self._socket.listen(BACKLOG)

    def require_http(self) -> None:
        """Raise ListenError if the HTTP server has ended: nothing listens any more."""
        if not self._thread.is_alive():
            raise ListenError(
                f"cannot serve on {self.address}", got="the HTTP server has ended", remedy="See the log."
            )

    def drain(self) -> None:
        """Refuse new calls, and wait for the running ones until the grace period ends."""
        self.service.draining = True
        engine, end = self.service.engine, time.monotonic() + self._settings.grace_seconds
        if engine.drafting.models is not None:
            engine.drafting.models.stop_restarting()  # a supervisor may stop all processes of a unit
        while engine.unfinished and time.monotonic() < end:
            time.sleep(_POLL)

    def close(self) -> None:
        """Cancel what runs, store its output, and stop. Idempotent."""
        self.service.draining = True
        engine = self.service.engine
        engine.stop()  # clients of cancelled answers get their 503 while the HTTP server still runs
        self.service.feed.closed = True
        self._uvicorn.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._opened.close()


def serve_until_signal(settings: ServerSettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Raises:
        ListenError: the address cannot be used, or the HTTP server has ended.
        ModelError, StoreError: the model or the stored outputs cannot be opened.
        InvalidConfigError: the ready file cannot be written.
    """
    require_writable_ready_file(settings.ready_file)
    with queued_log_output(), stop_signal() as wait_for_stop, ExitStack() as stack:
        server = stack.enter_context(OpenAIServer(settings))
        stack.callback(remove_ready_file, settings.ready_file)
        server.start()
        here = f"{'http' if settings.tls is None else 'https'}://{server.address}"
        _log.info("ready", address=f"{here}/v1", page=f"{here}/", model=settings.model)
        report_ready(settings.ready_file, addresses=[server.address])
        while not wait_for_stop(_WATCH_SECONDS):
            server.require_http()
        load = server.service.engine.load
        _log.info("draining", running=load.running, waiting=load.waiting)
        server.drain()


def _require_loopback(host: str, port: int, danger: str, remedy: str) -> None:
    try:
        require_loopback(host, port, danger)
    except ListenError as error:
        raise error.with_remedy(f"{remedy} Or pass --insecure-network if the network is trusted.") from None


def _listen(settings: ServerSettings) -> Listener:
    """Return a bound socket, before anything large is loaded."""
    host, port, access = settings.host, settings.port, settings.access
    if not access.insecure_network:
        if not access.required:
            _require_loopback(host, port, "use the model", "Give the clients tokens: --tokens FILE.")
        if settings.tls is None:
            danger = "read tokens and texts on their way"
            _require_loopback(host, port, danger, "Encrypt connections: --tls-cert FILE --tls-key FILE.")
    family, ip = resolve(host, port)[0]
    found = Listener(family, encrypted=settings.tls is not None)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        end_stalled(found, streaming.STALL_SECONDS)
        found.bind((ip, port))
    except OSError as error:
        found.close()
        raise ListenError(
            f"cannot listen on {host_and_port(host, port)}",
            expected="a free port of this machine",
            got=error.strerror,
            remedy="Stop the process that uses it or choose another port (0 selects a free one).",
        ) from None
    return found
