"""HTTP server of the metrics: ``GET /metrics``, in prometheus_client's text formats.

It has threads of its own and no part in the service's calls. What it holds is bounded: a few connections at a
time, each for one request and some seconds; further ones are closed.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog

from suffixsvc.access.control import AccessControl
from suffixsvc.access.presented import bearer_token, peer_at
from suffixsvc.access.principals import Right
from suffixsvc.errors import ListenError, MissingExtraError, PermissionDeniedError, UnauthenticatedError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.service.listeners.listen import TcpAddress, bind_error, parse_address, prepare
from suffixsvc.transport.loopback import resolve

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
except ModuleNotFoundError as error:
    raise MissingExtraError("server", error.name or "prometheus_client") from None

log = structlog.get_logger(__name__)

_REACHABLE_REMEDY: Final = (
    "Metrics have no TLS: let a scraper on this machine or a proxy with TLS pass them on, or, in a trusted "
    "network, pass --insecure-network."
)
#: connections at a time
_MAX_CONNECTIONS: Final = 8
#: time in which a client sends its request, and reads each piece of the answer
_TIMEOUT_SECONDS: Final = 10.0
#: period in which the server's thread looks whether it should end
_POLL_SECONDS: Final = 0.1

_Start = Callable[[str, list[tuple[str, str]]], object]


def metrics_address(text: str) -> TcpAddress:
    """Parse ``HOST:PORT``. ListenError for anything else."""
    address = parse_address(text)
    if not isinstance(address, TcpAddress):
        raise ListenError("--metrics must be HOST:PORT", got=repr(text)[:80])
    return address


def prepare_metrics(address: TcpAddress, *, insecure_network: bool) -> None:
    """As :func:`suffixsvc.service.listeners.listen.prepare`. ListenError: the address cannot be used."""
    try:
        prepare(address, insecure_network=insecure_network, danger="read the metrics")
    except ListenError as error:
        if error.remedy is not None and "--insecure-network" in error.remedy:
            raise error.with_remedy(_REACHABLE_REMEDY) from None
        raise


class MetricsServer(ClosedOnExit):
    """Serves the metrics of a registry from its construction to :meth:`close`.

    Args:
        registry: read by every request.
        address: port 0 selects a free one.
        access: its callers need the right to administer every namespace.
        insecure_network: see :func:`suffixsvc.service.listeners.listen.prepare`.

    Raises:
        ListenError: the address cannot be used.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        address: TcpAddress,
        access: AccessControl,
        *,
        insecure_network: bool = False,
    ) -> None:
        prepare_metrics(address, insecure_network=insecure_network)
        [(family, _), *_] = resolve(address.host, address.port)
        kind = _server_class(family)
        try:
            self._server = make_server(
                address.host, address.port, _only_metrics(make_wsgi_app(registry), access), kind, _Request
            )
        except OSError as failure:
            raise bind_error(address, failure.strerror) from None
        #: the address, with the port that was selected
        self.address = str(TcpAddress(address.host, self._server.server_port))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the server. Requests in progress are not waited for. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _only_metrics(
    serve: Callable[..., Iterable[bytes]], access: AccessControl
) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    """The WSGI application ``serve``, for ``GET /metrics`` of an administrator only."""

    def application(environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/metrics":
            return _refused(start, "404 Not Found")
        if environ["REQUEST_METHOD"] != "GET":
            return _refused(start, "405 Method Not Allowed", ("Allow", "GET"))
        try:
            _require_administrator(environ, access)
            return serve(environ, start)
        except UnauthenticatedError as error:
            return _refused(start, "401 Unauthorized", ("WWW-Authenticate", "Bearer"), why=error)
        except PermissionDeniedError as error:
            return _refused(start, "403 Forbidden", why=error)
        except Exception:
            log.exception("the metrics could not be read")
            return _refused(start, "500 Internal Server Error")

    return application


def _require_administrator(environ: dict[str, Any], access: AccessControl) -> None:
    """Raise AccessError for a caller that may not see the rates of every namespace."""
    header = environ.get("HTTP_AUTHORIZATION")
    token = bearer_token([] if header is None else [header])
    caller = access.authenticate(token, (), peer_at(environ.get("REMOTE_ADDR", "")))
    caller.require_everywhere(Right.ADMIN, "the metrics")


def _refused(
    start: _Start, status: str, *headers: tuple[str, str], why: object = "metrics are at GET /metrics"
) -> list[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8"), *headers])
    return [f"{status}; {why}\n".encode()]


class _Request(WSGIRequestHandler):
    timeout = _TIMEOUT_SECONDS

    def log_message(self, format: str, *_: Any) -> None:
        """No line per request."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        self._places = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__(*arguments)

    def server_bind(self) -> None:
        """As the base class, without the look-up of the host's name, which can take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or was too slow, is no event."""


def _server_class(family: socket.AddressFamily) -> type[_Server]:
    return type("_FamilyServer", (_Server,), {"address_family": family})
