"""A persistent HTTP connection with JSON bodies to an untrusted server. Every failure is a typed error."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from suffixsvc.errors import InvalidConfigError, ProtocolError, ServiceTimeoutError, ServiceUnavailableError
from suffixsvc.transport.loopback import host_and_port

_CONNECT_SECONDS: Final = 3.0
#: timeout of one read; callers have shorter timeouts of their own
_READ_SECONDS: Final = 120.0
#: limit of a reply; the texts of 8192 tokens take about 1 MiB
_MAX_BYTES: Final = 16 << 20
#: errors of a request on a connection that the server has closed while it was idle
_CLOSED: Final = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Address of a server; ``prefix`` begins every path, "" or "/..."."""

    host: str
    port: int
    prefix: str = ""

    def __str__(self) -> str:
        return f"http://{host_and_port(self.host, self.port)}{self.prefix}"


def parse_http_address(text: str) -> HttpAddress:
    """Parse ``http://HOST:PORT`` or ``http://HOST:PORT/PREFIX``.

    Raises:
        InvalidConfigError: anything else.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    plain = parts.scheme == "http" and not (parts.username or parts.password or parts.query or parts.fragment)
    if not plain or not parts.hostname or not port:
        raise InvalidConfigError(
            "the address of a llama-server must be http://HOST:PORT, optionally followed by its --api-prefix",
            got=repr(text)[:80],
            remedy="Use a tunnel to a server with TLS.",
        )
    return HttpAddress(parts.hostname, port, parts.path.rstrip("/"))


class HttpConnection:
    """One connection, opened on demand. Used by one thread; :meth:`abort` may be called by any.

    Args:
        on_connect: called after every connect, before the request that needed it; its errors fail that
            request.
    """

    def __init__(
        self, address: HttpAddress, on_connect: Callable[[HttpConnection], None] = lambda _: None
    ) -> None:
        self.address = address
        self._on_connect = on_connect
        self._lock = threading.Lock()
        self._http: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._aborted = False

    def request(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request; return status and parsed JSON of the reply.

        Raises:
            ServiceUnavailableError: no connection, or a broken one.
            ServiceTimeoutError: no data for :data:`_READ_SECONDS`.
            ProtocolError: not JSON, or more than :data:`_MAX_BYTES`.
        """
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        was_open = self._http is not None
        try:
            try:
                return self._request(method, path, data)
            except _CLOSED:
                self.close()
                if not was_open:
                    raise
                return self._request(method, path, data)
        except TimeoutError as err:
            self.close()
            raise ServiceTimeoutError(f"{self.address} does not reply", got=err) from None
        except (OSError, http.client.HTTPException) as err:
            self.close()
            raise ServiceUnavailableError(f"{self.address} cannot be reached", got=repr(err)[:200]) from None
        except ProtocolError:
            self.close()  # the rest of the reply would be taken for the next one
            raise

    @contextlib.contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """Abort the connection if the block takes longer than ``seconds``."""
        timer = threading.Timer(seconds, self.abort)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def abort(self) -> None:
        """Make the running request fail now, and every later one. Any thread."""
        with self._lock:
            self._aborted = True
            if self._socket is not None:
                with contextlib.suppress(OSError):  # it may be closed already
                    self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        with self._lock:
            self._socket = None
        if self._http is not None:
            self._http.close()
            self._http = None

    def _request(self, method: str, path: str, data: bytes | None) -> tuple[int, Any]:
        connection = self._connected()
        headers = {"Content-Type": "application/json"} if data is not None else {}
        connection.request(method, self.address.prefix + path, data, headers)
        response = connection.getresponse()
        text = response.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise ProtocolError("the reply is too long", expected=f"at most {_MAX_BYTES} bytes")
        if response.length:  # missing bytes; http.client reports them only if everything is read at once
            raise http.client.IncompleteRead(text, response.length)
        if response.will_close:
            self.close()
        try:
            return response.status, json.loads(text)
        except (ValueError, RecursionError) as err:
            raise ProtocolError("the reply must be JSON", got=repr(err)[:200]) from None

    def _connected(self) -> http.client.HTTPConnection:
        if self._http is not None:
            return self._http
        http_connection = http.client.HTTPConnection(
            self.address.host, self.address.port, timeout=_CONNECT_SECONDS
        )
        http_connection.connect()
        http_connection.sock.settimeout(_READ_SECONDS)
        with self._lock:
            if self._aborted:
                http_connection.close()
                raise ConnectionAbortedError("aborted")
            self._socket = http_connection.sock
        self._http = http_connection
        try:
            self._on_connect(self)
        except BaseException:
            self.close()
            raise
        if self._http is None:  # the server closed the connection after a request of on_connect
            raise http.client.RemoteDisconnected("closed after the first reply")
        return http_connection
