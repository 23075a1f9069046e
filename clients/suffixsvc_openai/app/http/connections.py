"""Connections that end in time, whatever their clients do.

    connected ──> headers complete ──> response ──> idle ──> next headers ..
       └─ HEADER_SECONDS ─┘               │           └─ uvicorn's keep-alive, then HEADER_SECONDS
                          the system ends a connection whose data is not taken

Connections are bounded (listener.py), so that files are left for the rest of the process. Beyond the bound a
new connection gets a 503 for its first bytes; the others go on. (uvicorn's ``limit_concurrency`` refuses
requests of the others instead, and accepts connections without a bound.)

uvicorn has no timer before the first response, nor from the first byte of a later request to the end of its
headers, and waits without limit until what it has written is taken.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any, Final

from h11 import IDLE, SEND_RESPONSE
from uvicorn.protocols.http.h11_impl import H11Protocol

from suffixsvc.runtime.request_ids import REQUEST_ID, new_request_id
from suffixsvc.transport.certificates import certificate_names
from suffixsvc_openai.app.http.authentication import CERTIFICATE_NAMES
from suffixsvc_openai.app.http.listener import Listener, connection_limit
from suffixsvc_openai.protocol.errors import RETRY_SECONDS, too_many_connections

#: seconds for the headers of a request to arrive
HEADER_SECONDS: Final = 60.0
#: connections that asyncio accepts in a row. The limit is looked at a few rounds of its loop later, so a
#: small multiple of them has files beyond it
ACCEPTED_AT_ONCE: Final = 8
#: connections that the system holds until they are accepted
BACKLOG: Final = 2048
#: seconds for the first bytes of a connection beyond the limit
_REFUSED_SECONDS: Final = 5.0


def _refusal() -> bytes:
    """Return the response to a connection beyond the limit."""
    body = json.dumps(too_many_connections(connection_limit()).body).encode()
    fields = (
        "HTTP/1.1 503 Service Unavailable",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"Retry-After: {RETRY_SECONDS}",
        f"{REQUEST_ID}: {new_request_id()}",
        "Connection: close",
    )
    return "\r\n".join((*fields, "", "")).encode() + body


def end_stalled(listening: socket.socket, seconds: float) -> None:
    """Let the system end the connections of a socket when a client takes no data for ``seconds``.

    It also ends those that the server has closed with data to send. Connections inherit it; an idle one has
    nothing to send, and stays. Systems without this option (macOS) end them after a limit of their own.
    """
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None:
        listening.setsockopt(socket.IPPROTO_TCP, option, round(seconds * 1000))


class TimedConnection(H11Protocol):
    """uvicorn's connection, closed unless the headers of a request arrive in time, refused beyond the limit.

    From the end of a response to the next byte uvicorn's keep-alive timer runs instead.

    Args:
        listener: that accepted it.
        uvicorn: arguments of uvicorn's connection.
    """

    app_state: dict[str, Any]  # copied to the state of each request

    def __init__(self, *, listener: Listener, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._listener = listener
        self._headers_timer: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Wait for headers."""
        super().connection_made(transport)
        encrypted = transport.get_extra_info("ssl_object")
        if encrypted is not None:  # its handshake is complete, and a certificate of the client verified
            names = certificate_names(encrypted.getpeercert())
            self.app_state = {**self.app_state, CERTIFICATE_NAMES: names}
        connection = self._listener.connection(transport.get_extra_info("socket").fileno())
        self._refused = connection is not None and connection.established()
        self._time_headers()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the headers, if they are incomplete."""
        if self._refused:
            self.transport.write(_refusal())
            self.transport.close()
            return
        super().data_received(data)
        self._time_headers()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP, unless their request has a response already: 403 needs no body."""
        if self.conn.our_state in (IDLE, SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True  # its response cannot be sent any more

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing."""
        self._stop()
        super().connection_lost(exc)
        # uvicorn keeps it for a connection that the client reset, and with it all that the connection holds
        self._unset_keepalive_if_required()

    def _time_headers(self) -> None:
        if self._in_request or self.transport.is_closing():
            self._stop()
        elif self._headers_timer is None:  # a byte now and then does not prolong it
            seconds = _REFUSED_SECONDS if self._refused else HEADER_SECONDS
            self._headers_timer = self.loop.call_later(seconds, self._late)

    @property
    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _late(self) -> None:
        self._headers_timer = None
        if not self._in_request:  # else uvicorn has begun a request that had arrived before
            self.transport.abort()  # close() would wait for a client to take its last response

    def _stop(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None
