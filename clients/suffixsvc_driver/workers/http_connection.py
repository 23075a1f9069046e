"""JSON over one kept-alive HTTP connection, every failure a typed error. For a server nobody vouches for."""

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

__all__ = ["HttpAddress", "HttpConnection", "parse_http_address"]

_CONNECT_SECONDS: Final = 3.0
#: a silence this long inside an answer ends it: whoever waits has a timer of his own
_READ_SECONDS: Final = 120.0
#: token texts of 8192 ids take about one of these
_MOST_BYTES: Final = 16 << 20
#: what a server that closed an idle connection makes of the next request on it
_CLOSED: Final = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where a server is; ``prefix`` begins every path, "" or "/..."."""

    host: str
    port: int
    prefix: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{self.prefix}"


def parse_http_address(text: str) -> HttpAddress:
    """``http://HOST:PORT`` or ``http://HOST:PORT/PREFIX``. InvalidConfigError for anything else."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    plain = parts.scheme == "http" and not (parts.username or parts.password or parts.query or parts.fragment)
    if not plain or not parts.hostname or not port:
        raise InvalidConfigError(
            "not the address of a llama-server",
            expected="http://HOST:PORT, perhaps with the server's --api-prefix behind it",
            got=repr(text)[:80],
            remedy="For a server behind TLS use a tunnel to it.",
        )
    return HttpAddress(parts.hostname, port, parts.path.rstrip("/"))


class HttpConnection:
    """One connection, made when it is needed. Used by one thread; :meth:`abort` by any.

    Args:
        on_connect: called whenever it was made anew, before the request that needed it; what it raises
            fails that request.
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

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and parsed JSON of an answer.

        Raises:
            ServiceUnavailableError: no connection, or a broken one.
            ServiceTimeoutError: silence.
            ProtocolError: no JSON, or too much of it.
        """
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        was_open = self._http is not None
        try:
            try:
                return self._ask(method, path, data)
            except _CLOSED:
                self.close()
                if not was_open:
                    raise
                return self._ask(method, path, data)
        except TimeoutError as err:
            self.close()
            raise ServiceTimeoutError(f"{self.address} does not answer", got=err) from None
        except (OSError, http.client.HTTPException) as err:
            self.close()
            raise ServiceUnavailableError(f"{self.address} cannot be asked", got=repr(err)[:200]) from None
        except ProtocolError:
            self.close()  # whatever is left of the answer would be taken for the next one
            raise

    @contextlib.contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """Everything inside is over after so many seconds: the connection is aborted then."""
        timer = threading.Timer(seconds, self.abort)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def abort(self) -> None:
        """Have what runs fail now, and everything after it. Any thread."""
        with self._lock:
            self._aborted = True
            if self._socket is not None:
                with contextlib.suppress(OSError):  # it may be closed already
                    self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the next request makes another one."""
        with self._lock:
            self._socket = None
        if self._http is not None:
            self._http.close()
            self._http = None

    def _ask(self, method: str, path: str, data: bytes | None) -> tuple[int, Any]:
        connection = self._connected()
        headers = {"Content-Type": "application/json"} if data is not None else {}
        connection.request(method, self.address.prefix + path, data, headers)
        response = connection.getresponse()
        text = response.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ProtocolError("an answer has no end", expected=f"at most {_MOST_BYTES} bytes")
        if response.length:  # what is missing; http.client reports it only where everything is read at once
            raise http.client.IncompleteRead(text, response.length)
        if response.will_close:
            self.close()
        try:
            return response.status, json.loads(text)
        except (ValueError, RecursionError) as err:
            raise ProtocolError("an answer is no JSON", expected="JSON", got=repr(err)[:200]) from None

    def _connected(self) -> http.client.HTTPConnection:
        if self._http is not None:
            return self._http
        made = http.client.HTTPConnection(self.address.host, self.address.port, timeout=_CONNECT_SECONDS)
        made.connect()
        made.sock.settimeout(_READ_SECONDS)
        with self._lock:
            if self._aborted:
                made.close()
                raise ConnectionAbortedError("given up")
            self._socket = made.sock
        self._http = made
        try:
            self._on_connect(self)
        except BaseException:
            self.close()
            raise
        if self._http is None:  # what was asked first made the server close it
            raise http.client.RemoteDisconnected("closed after the first answer")
        return made
